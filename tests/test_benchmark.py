"""`fcam benchmark`: what is timed is what runs elsewhere; figures are complete and land whole."""

from __future__ import annotations

import json

import pytest
import torch

from fcam.benchmark import published, timing
from fcam.benchmark.pictures import drawn, pictures
from fcam.benchmark.report import as_markdown, tables
from fcam.benchmark.runtime import PLAIN, TITLES, build, measure_runtime
from fcam.benchmark.timing import Spread, pick_device, side_by_side
from fcam.benchmark.train_step import PARTS, Step, covered
from fcam.cli import main
from fcam.errors import FcamError

TINY = "timm:test_resnet"
CPU = torch.device("cpu")


def run(tmp_path, *arguments) -> dict:
    assert main(["benchmark", "--quick", "--device", "cpu", "--out", str(tmp_path), *arguments]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["benchmark.json", "benchmark.md"]
    return json.loads((tmp_path / "benchmark.json").read_text())


def test_runtime_table_has_a_row_per_method(tmp_path, capsys):
    result = run(tmp_path, "--backbones", TINY, "--scores")
    (one,) = result["runtime"]
    assert sorted(row["method"] for row in one["rows"]) == sorted(TITLES)
    assert one["rows"][0]["method"] == PLAIN
    assert one["rows"][0]["ratio"] == 1
    assert all(row["ms"]["low"] <= row["ms"]["median"] <= row["ms"]["high"] for row in one["rows"])
    by_name = {row["method"]: row for row in one["rows"]}
    assert by_name["fcam"]["map"] == [64, 64]
    assert by_name["cam"]["map"] == one["features"]["map"] == [8, 8]
    assert by_name["fcam"]["parameters"] == sum(one["parameters"].values())
    assert by_name["cam"]["paper_p100_ms"] is None  # the paper's images are larger
    page = (tmp_path / "benchmark.md").read_text()
    assert "P100" not in page
    assert "| F-CAM |" in page
    assert result["environment"]["device"] in capsys.readouterr().out


def test_the_papers_figures_stand_beside_only_at_its_setting():
    options = {"precision": "no", "repeats": 1, "warm_up": 1, "score_channels": 0}
    one = measure_runtime("tf_efficientnet_lite0", CPU, size=224, batch_size=1, **options)
    assert all(row["paper_p100_ms"] is None for row in one["rows"])
    assert published.p100("gradcam", "vgg16") == 7.7
    assert published.p100("fcam", "resnet50") == 18.5
    assert published.p100("refinecam", "resnet50") is None
    one["rows"][1]["paper_p100_ms"] = 0.2
    (table,) = tables({"runtime": [one]})
    assert table.columns[-1] == "paper, P100 (ms)"
    assert published.P100_NOTE in table.notes


@pytest.fixture
def step() -> Step:
    return Step(TINY, CPU, "no", pictures(2, 64))


def test_the_step_in_parts_is_the_step_of_training(step):
    before = {name: value.clone() for name, value in step.model.state_dict().items()}
    step.generator.manual_seed(5)
    whole = {name: value.detach().clone() for name, value in step.whole().items()}
    after = {name: value.clone() for name, value in step.model.state_dict().items()}
    again = Step(TINY, CPU, "no", pictures(2, 64))
    assert all(torch.equal(value, before[name]) for name, value in again.model.state_dict().items())
    again.generator.manual_seed(5)
    terms, laps = again.in_parts()
    assert list(terms) == list(whole)
    for name, value in terms.items():
        assert value.isfinite()
        torch.testing.assert_close(value.detach(), whole[name])
    for name, value in again.model.state_dict().items():
        torch.testing.assert_close(value, after[name])
    assert set(laps) == set(PARTS)


def test_train_step_reports_parts_and_rate(tmp_path, capsys):
    result = run(tmp_path, "--train-step", "--backbones", TINY, "--batch-size", "2")
    (one,) = result["train_step"]
    assert one["images_per_second"] == pytest.approx(2e3 / one["whole"]["median"])
    assert one["gpu_busy"] is None
    assert one["authors_ms"] is None  # another batch and size
    assert "authors" not in (tmp_path / "benchmark.md").read_text()
    assert "whole step" in capsys.readouterr().out


def test_the_authors_step_is_named_where_it_is_comparable(tmp_path):
    one = run(tmp_path, "--train-step", "--backbones", TINY)["train_step"][0]
    one |= {"authors_ms": 4132.0, "authors_parts_ms": published.AUTHORS_PARTS_MS["resnet50"]}
    one["whole"]["median"] = 413.2
    (table,) = tables({"train_step": [one]})
    assert table.columns[-2:] == [f"{published.AUTHORS_LABEL} (ms)", "theirs / ours"]
    assert table.rows[-1][-2:] == ["4132", "10.0"]
    assert published.AUTHORS_NOTE in table.notes


def test_crf_tables(tmp_path, capsys):
    crf = run(tmp_path, "--crf")["crf"]
    assert [(row["method"], row["batch_size"]) for row in crf["times"]] == [
        ("gaussian", 1),
        ("gaussian", 2),
        ("lattice", 1),
        ("lattice", 2),
    ]
    assert [row["side"] for row in crf["growth"]] == [32, 64]
    errors = {row["method"]: row["error"] for row in crf["errors"]}
    assert errors["gaussian"] < 0.02 < 0.1 < errors["lattice"]


def test_modes_can_be_asked_for_together(tmp_path, capsys):
    result = run(tmp_path, "--crf", "--train-step", "--backbones", TINY)
    assert set(result) == {"environment", "crf", "train_step"}
    assert len(tables(result)) == 4
    assert as_markdown(result) == (tmp_path / "benchmark.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--repeats", "0"], "repeats"),
        (["--size", "8"], "size"),
        (["--batch-size", "0"], "batch-size"),
        (["--backbones", "resnet5"], "resnet50"),
        (["--crf", "--photos", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_sentences(arguments, words, capsys):
    assert main(["benchmark", *arguments]) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == CPU
    with pytest.raises(FcamError, match="no GPU"):
        pick_device("cuda")


def test_ratios_are_taken_within_a_round(monkeypatch):
    now = 0.0  # a clock of our own: nothing here depends on how busy the machine is
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now)
    calls = 0

    def takes(share: float) -> None:  # the machine slows down from round to round
        nonlocal now, calls
        now += share * (1 + calls // 2)
        calls += 1

    timed = side_by_side({"plain": lambda: takes(1), "double": lambda: takes(2)}, "plain", CPU, 5, 0)
    assert timed["plain"] == (Spread(3e3, 2e3, 4e3, 5), 1)
    assert timed["double"] == (Spread(6e3, 4e3, 8e3, 5), 2)


def test_spread_and_union_of_spans():
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.5, 2.5, 3)
    assert Spread.of([4.0]) == Spread(4.0, 4.0, 4.0, 1)
    assert covered([(0, 2), (1, 3), (5, 6), (5.5, 5.7)]) == 4
    assert covered([]) == 0


def test_drawn_pictures_have_the_colours_of_photographs(shared):
    def colours(images: torch.Tensor) -> float:
        cells = (images.long() * 10 // 54 * torch.tensor([4096, 64, 1])[:, None, None]).sum(1)
        return sum(len(image.unique()) for image in cells) / len(images)

    photos = colours(pictures(16, 224, shared / "data"))
    assert 0.6 < colours(drawn(16, 224)) / photos < 1.7


def test_models_are_built_for_inference():
    model = build(TINY, CPU)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.classifier.parameters())
