"""The page of `fcam report`: it holds the run's numbers, nothing from elsewhere, and nothing unescaped."""

from __future__ import annotations

import base64
import csv
import dataclasses
import html
import io
import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from fcam import demo, paper_tables
from fcam.attachment.attach import attach
from fcam.cli import main
from fcam.data import EvalTransform, open_dataset
from fcam.errors import FcamError
from fcam.model import FCAM
from fcam.report import command, gallery
from fcam.report.collect import group, papers_number, read_run, read_runs, repeated, training_seconds
from fcam.report.command import ReportConfig, run_report
from fcam.report.curves import EXACT, Measure, open_run, survey
from fcam.report.gallery import spread
from fcam.report.tables import backbone_means, localization
from fcam.run import config_to_dict, load_config
from fcam.tables import Number
from fcam.tables.formats import as_csv, as_html, as_latex, as_markdown

HOSTILE = "<script>alert(1)</script>"


class Page(HTMLParser):
    """Tags with their attributes, and the text of every script by its id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self._script: str | None = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._script = str(dict(attrs).get("id", "code")) if tag == "script" else None

    def handle_endtag(self, tag):
        self._script = None

    def handle_data(self, data):
        if self._script is not None:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data


@pytest.fixture(scope="module")
def made(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")
    run_report(ReportConfig(runs=(tiny_run,), out=out, samples=2, failures=2, workers=0))
    return out


@pytest.fixture(scope="module")
def page(made: Path) -> str:
    return (made / "index.html").read_text(encoding="utf-8")


def copy_run(tiny_run: Path, to: Path, **changes) -> Path:
    shutil.copytree(tiny_run, to, ignore=shutil.ignore_patterns("state"))
    config = dataclasses.replace(load_config(tiny_run), **changes)
    (to / "config.yaml").write_text(yaml.safe_dump(config_to_dict(config)))
    return to


def test_nothing_is_loaded_from_elsewhere(page: str) -> None:
    for tag, attributes in Page(page).tags:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:", "#")), (tag, name, value)
    assert not re.search(r"https?://|//[a-z0-9-]+\.[a-z]", page.replace("http-equiv", ""))
    assert "url(" not in page
    assert "@import" not in page


def test_the_table_holds_the_numbers_of_metrics_json(made: Path, tiny_run: Path, page: str) -> None:
    report = json.loads((tiny_run / "metrics.json").read_text())
    rows = list(csv.DictReader(io.StringIO((made / "tables.csv").read_text())))
    assert len(rows) == 2 * len(report["maps"])
    for row in rows:
        kind = {"CAM": "cam", "F-CAM": "fcam", "centre Gaussian": "center"}[row["map"]]
        own = report["maps"][kind]
        if row["threshold chosen as"] == "best on val":
            own = own["transferred"]
            assert row["PxAP"] == ""
        else:
            assert float(row["PxAP"]) == own["pxap"]
        for iou in ("0.3", "0.5", "0.7"):
            assert float(row[f"box@{iou}"]) == own["max_box_acc"][iou]
        assert float(row["τ"]) == own["threshold"]["max_box_acc"]["0.5"]
        assert f"{own['max_box_acc_v2']:.1f}" in page
        assert row["box@0.5 sd"] == ""


def test_what_was_compared_is_said(page: str, tiny_run: Path) -> None:
    text = re.sub(r"<[^>]+>", " ", page)
    for words in ("test split", "best on test", "best on val", "Seeds: 0", "timm:test_resnet", "8 images"):
        assert words in text, words
    assert "the runs did not record their machine" in text or "Training took" in text


def test_bold_is_not_taken_for_best_nor_red_for_true(page: str) -> None:
    assert "in bold, whether they are the best or not" in page
    assert "without a true mask: all that was found" in page


def test_downloads_are_the_files(made: Path, page: str) -> None:
    links = {a["download"]: a["href"] for tag, a in Page(page).tags if tag == "a" and "download" in a}
    assert set(links) == {"tables.csv", "tables.md", "tables.tex", "images.csv", "report.json"}
    for name, link in links.items():
        assert base64.b64decode(str(link).partition("base64,")[2]) == (made / str(name)).read_bytes()


def test_curves_repeat_the_evaluation(tiny_run: Path) -> None:
    run = read_run(tiny_run, "test")
    model, dataset = open_run(run, "", "test")
    seen = survey(run, model, dataset, workers=0)
    for kind in ("cam", "fcam"):
        own, printed = seen.maps[kind], run.report["maps"][kind]
        for iou in (0.3, 0.5, 0.7):
            assert own.accuracy(seen.counted, iou).max() == pytest.approx(printed["max_box_acc"][f"{iou:g}"])
        precision, recall = own.precision_recall()
        area = -np.nansum(precision * np.diff(np.append(recall, 0))) / 100
        assert area == pytest.approx(printed["pxap"], abs=0.1)
        assert own.activations.sum() == len(dataset) * 64 * 64
        assert seen.iou(kind).max() <= 1
    worst = seen.worst(3)
    assert seen.iou("fcam")[worst[0]] == seen.iou("fcam").min()


def test_the_gallery_shows_small_copies_of_the_maps(page: str, tiny_run: Path) -> None:
    scripts = Page(page).scripts
    index = json.loads(scripts["gallery-index"])
    own = index["galleries"][0]
    pictures = json.loads(scripts["gallery-0-0"])
    assert own["kinds"] == ["cam", "fcam"]
    assert len(pictures) == len(own["ids"]) == 8
    run = read_run(tiny_run, "test")
    model, dataset = open_run(run, "", "test")
    kept: dict[int, np.ndarray] = {}
    survey(
        run,
        model,
        dataset,
        lambda b, m, places: kept.update(zip(places.tolist(), m["fcam"].numpy(), strict=True)),
        workers=0,
    )
    first = dataset.image_ids.index(own["ids"][0])
    photo, mask, _, fcam = (Image.open(io.BytesIO(base64.b64decode(text))) for text in pictures[0])
    assert photo.size == mask.size == fcam.size == (112, 112)
    small = Image.fromarray(kept[first]).resize((112, 112), Image.Resampling.BOX)
    assert np.abs(np.asarray(fcam.convert("L")) / 255 - np.asarray(small)).max() < 0.03
    overlap = np.frombuffer(base64.b64decode(own["overlap"]["fcam"]), np.uint8).reshape(8, index["steps"])
    assert overlap.max() <= EXACT


def test_where_nothing_can_be_written_is_said_before_the_work(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_text("mine")
    monkeypatch.setattr(command, "open_run", lambda *_: pytest.fail("worked in vain"))
    with pytest.raises(FcamError, match="taken"):
        run_report(ReportConfig(runs=(tiny_run,), out=tmp_path / "taken", workers=0))
    assert (tmp_path / "taken").read_text() == "mine"


def test_the_same_run_gives_the_same_page(tiny_run: Path, made: Path, tmp_path: Path) -> None:
    run_report(ReportConfig(runs=(tiny_run,), out=tmp_path, samples=2, failures=2, workers=0))
    for file in made.iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name


def test_names_of_users_are_escaped(tiny_run: Path, drawn_set: Path, tmp_path: Path) -> None:
    data = tmp_path / "data & <b>"
    shutil.copytree(drawn_set, data)
    classes = (data / "classes.txt").read_text().split("\n")
    (data / "classes.txt").write_text("\n".join([f"0 {HOSTILE}", *classes[1:]]))
    run = copy_run(tiny_run, tmp_path / os.fsdecode(b"<i>run\xff"), data=str(data))
    path = run_report(ReportConfig(runs=(run,), out=tmp_path / "out", samples=2, failures=2, workers=0))
    text = path.read_text(encoding="utf-8")
    assert "no curves and no gallery" not in text
    assert HOSTILE not in text
    assert "<b>" not in re.sub(r"<script[ >].*?</script>", "", text, flags=re.S)
    assert "<i>" not in text
    index = json.loads(Page(text).scripts["gallery-index"])
    assert HOSTILE in index["galleries"][0]["classes"]
    assert "data &amp; &lt;b&gt;" in text
    assert html.escape(HOSTILE) in text
    # A name that is not UTF-8 stands escaped, in the page and in the files beside it.
    assert r"&lt;i&gt;run\udcff" in text
    assert r"<i>run\udcff" in (tmp_path / "out" / "images.csv").read_text(encoding="utf-8")


def test_tables_of_any_format_escape_names(tiny_run: Path, tmp_path: Path) -> None:
    run = read_run(tiny_run, "test")
    table = localization(group([dataclasses.replace(run, data_set="a_b|<c>[d](e)&100%$")]), "test")
    assert "a_b|&lt;c&gt;[d](e)&amp;100%$" in as_html(table)
    assert r"a\_b\|&lt;c&gt;[d]\(e)&amp;100%$" in as_markdown([table])
    latex = as_latex([table])
    assert r"a\_b|\textless{}c\textgreater{}[d](e)\&100\%\$" in latex
    body = latex.split("\\midrule")[1]
    assert body.count(r" \\") == len(table.rows)
    assert as_csv(table).count("a_b|<c>[d](e)&100%$") == len(table.rows)


def test_missing_data_leaves_the_tables_and_says_so(tiny_run: Path, tmp_path: Path, capsys) -> None:
    run = copy_run(tiny_run, tmp_path / "run", data=str(tmp_path / "gone"))
    assert main(["report", str(run), "--out", str(tmp_path / "out"), "--workers", "0"]) == 0
    output = capsys.readouterr()
    assert str(tmp_path / "out" / "index.html") in output.out
    text = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "no curves and no gallery" in text
    assert "--data" in text
    assert 'id="gallery" hidden' in text
    assert "box@0.5" in text
    assert "gallery-index" not in Page(text).scripts
    assert "images.csv" not in text
    shutil.rmtree(run / "model")
    path = run_report(
        ReportConfig(runs=(run,), out=tmp_path / "out2", data=load_config(tiny_run).data, workers=0)
    )
    assert "no curves and no gallery" in path.read_text()


def test_no_gallery_reads_neither_model_nor_data(tiny_run: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("fcam.report.command.open_run", lambda *a: pytest.fail("the model was opened"))
    assert main(["report", str(tiny_run), "--out", str(tmp_path), "--no-gallery"]) == 0
    text = (tmp_path / "index.html").read_text()
    assert "Stage 2: decoder" in text  # the log needs no model


def test_a_run_of_own_code_is_looked_at_by_its_classifier(
    tiny_run: Path, drawn_set: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    code = """from torch import nn
def build():
    convolutions = [nn.Conv2d(a, b, 3, 2, 1) for a, b in ((3, 4), (4, 8), (8, 8))]
    return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
"""
    (tmp_path / "nets_of_users.py").write_text(code)
    run = copy_run(tiny_run, tmp_path / "run")
    shutil.rmtree(run / "model")
    model = attach("nets_of_users:build", image_size=64, classes=open_dataset(drawn_set, "test").classes)
    model.save_pretrained(run / "model")
    arguments = ["report", str(run), str(tiny_run), "--workers", "0", "--out"]
    assert main([*arguments, "without"]) == 0
    text = Path("without", "index.html").read_text()
    assert "on the command line --classifier module.path:factory" in text
    assert main([*arguments, "with", "--classifier", "nets_of_users:build"]) == 0
    text = Path("with", "index.html").read_text()
    assert "no curves and no gallery" not in text


def test_every_round_of_stage_2_has_its_curve(tiny_run: Path, tmp_path: Path) -> None:
    run = copy_run(tiny_run, tmp_path / "run")
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    decoder = [line for line in lines if line["stage"] == "decoder"]
    others = [line for line in lines if line["stage"] != "decoder"]
    lines = [*others, *(line | {"stage": "decoder-round1"} for line in decoder), *decoder]
    (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    path = run_report(ReportConfig(runs=(run,), out=tmp_path / "out", gallery=False, workers=0))
    text = path.read_text()
    assert 0 < text.index("Stage 2, round 1: decoder") < text.index("Stage 2: decoder")


def test_changed_data_is_not_passed_off_as_the_runs(tiny_run: Path, tmp_path: Path) -> None:
    run = copy_run(tiny_run, tmp_path / "run")
    report = json.loads((run / "metrics.json").read_text())
    (run / "metrics.json").write_text(json.dumps(report | {"images": 9}))
    path = run_report(ReportConfig(runs=(run,), out=tmp_path / "out", workers=0))
    assert "has 8 images on test but the numbers are of 9" in path.read_text()


@pytest.mark.parametrize("metric", ["max_box_acc", "pxap"])
def test_numbers_that_are_no_longer_those_of_the_table_are_noted(
    metric: str, tiny_run: Path, tmp_path: Path
) -> None:
    run = copy_run(tiny_run, tmp_path / "run")
    report = json.loads((run / "metrics.json").read_text())
    assert "computed anew" not in run_report(ReportConfig((run,), tmp_path / "same", workers=0)).read_text()
    row = report["maps"]["cam"]
    row[metric] = row[metric] + 2 if metric == "pxap" else row[metric] | {"0.5": row[metric]["0.5"] + 2}
    (run / "metrics.json").write_text(json.dumps(report))
    text = run_report(ReportConfig((run,), tmp_path / "other", workers=0)).read_text()
    title = "PxAP" if metric == "pxap" else "box@0.5"
    assert f"computed anew, {title} of cam is" in text


@pytest.mark.parametrize("black", [False, True])
def test_an_image_whose_truth_shows_no_object_is_no_failure(
    black: bool, tiny_run: Path, drawn_set: Path, tmp_path: Path
) -> None:
    data = tmp_path / "photos"
    split = open_dataset(drawn_set, "test", localization=True)
    for i, image in enumerate(split.image_ids):
        files = [(split.path(i), "test", ".png"), (split.split.masks[image][0].mask, "masks/test", ".png")]
        for source, part, suffix in files:
            to = data / part / split.classes[split.labels[i]] / f"{i}{suffix}"
            to.parent.mkdir(parents=True, exist_ok=True)
            Image.open(source).save(to)
    first = next((data / "masks").rglob("0.png"))
    Image.new("L", (64, 64)).save(first) if black else first.unlink()
    out = tmp_path / "out"
    page = run_report(ReportConfig((tiny_run,), out, data=str(data), failures=8, workers=0)).read_text()
    rows = list(csv.DictReader(io.StringIO((out / "images.csv").read_text())))
    of_none = {row["overlap"] for row in rows if Path(row["image"]).stem == "0"}
    assert {row["measure"] for row in rows} == {"mask"}
    assert of_none == {""}
    assert all(row["overlap"] for row in rows if Path(row["image"]).stem != "0")
    failures = page.partition('id="failures"')[2].partition("</section>")[0]
    assert failures.count("<figcaption>") == 7
    assert "no truth" not in failures
    index = json.loads(Page(page).scripts["gallery-index"])
    assert index["galleries"][0]["counted"].count(False) == 1


def test_classes_that_are_not_the_models_are_noted(tiny_run: Path, drawn_set: Path, tmp_path: Path) -> None:
    data = shutil.copytree(drawn_set, tmp_path / "renamed")
    (data / "classes.txt").write_text("0 ring\n1 circle\n")
    config = ReportConfig((tiny_run,), tmp_path / "out", data=str(data), workers=0)
    text = html.unescape(run_report(config).read_text())
    assert f"the classes of {data} have other names than the model's: 1 is" in text
    assert 'id="gallery" hidden' not in text
    for labels in data.rglob("class_labels.txt"):
        labels.write_text(labels.read_text().replace(",1\n", ",0\n"))
    (data / "classes.txt").write_text("0 ring\n")
    text = html.unescape(run_report(config).read_text())
    assert f"no curves and no gallery, since its model knows 2 classes and {data} has 1" in text


@pytest.mark.parametrize(
    ("split", "words"), [("test", "fcam evaluate"), ("val", "has no val split (found: test)")]
)
def test_a_split_without_numbers_is_explained(
    tiny_run: Path, drawn_set: Path, tmp_path: Path, split: str, words: str
) -> None:
    shutil.copytree(drawn_set / "metadata" / "test", tmp_path / "data" / "metadata" / "test")
    run = copy_run(tiny_run, tmp_path / "run", data=str(tmp_path / "data"))
    (run / "metrics.json").unlink()
    with pytest.raises(FcamError, match=re.escape(words)):
        read_run(run, split)


def test_a_run_without_numbers_is_left_out_by_name(tiny_run: Path, tmp_path: Path, capsys) -> None:
    unfinished = copy_run(tiny_run, tmp_path / "unfinished", seed=1)
    (unfinished / "metrics.json").unlink()
    assert main(["report", str(tiny_run), str(unfinished), "--out", str(tmp_path), "--no-gallery"]) == 0
    assert f"left out: {unfinished} holds no numbers" in " ".join(capsys.readouterr().err.split())
    page = (tmp_path / "index.html").read_text()
    assert f"left out: {unfinished} holds no numbers" in html.unescape(page)
    assert "Seeds: 0" in re.sub(r"<[^>]+>", " ", page)
    assert main(["report", str(unfinished), "--out", str(tmp_path / "none")]) == 2
    assert main(["report", str(tiny_run), str(tmp_path / "typo"), "--out", str(tmp_path / "none")]) == 2


def test_seeds_share_a_row_with_mean_and_deviation(tiny_run: Path, tmp_path: Path) -> None:
    folders = []
    for seed, value in ((0, 40.0), (1, 50.0), (2, 60.0)):
        folder = copy_run(tiny_run, tmp_path / "sweep" / "runs" / f"s{seed}", seed=seed)
        report = json.loads((folder / "metrics.json").read_text())
        report["maps"]["fcam"]["max_box_acc"]["0.5"] = value
        (folder / "metrics.json").write_text(json.dumps(report))
        folders.append(folder)
    copy_run(tiny_run, tmp_path / "sweep" / "runs" / "other", method="layercam")
    run_report(ReportConfig(runs=(tmp_path / "sweep",), out=tmp_path / "out", gallery=False))
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "tables.csv").read_text())))
    best = [r for r in rows if r["map"] == "F-CAM" and r["threshold chosen as"] == "best on test"]
    assert len(best) == 2
    own = next(r for r in best if "LayerCAM" not in r["runs"])
    assert (float(own["box@0.5"]), float(own["box@0.5 sd"])) == (50.0, 10.0)
    assert "50.0 ± 10.0" in (tmp_path / "out" / "tables.md").read_text()
    assert "$\\pm$ 10.0" in (tmp_path / "out" / "tables.tex").read_text()


def test_a_classifier_alone_is_no_seed_of_the_run_that_went_on(tiny_run: Path, tmp_path: Path) -> None:
    alone = copy_run(tiny_run, tmp_path / "alone", stages="classifier")
    report = json.loads((alone / "metrics.json").read_text())
    del report["maps"]["fcam"]
    (alone / "metrics.json").write_text(json.dumps(report))
    run_report(ReportConfig((alone,), tmp_path / "one", gallery=False))
    assert {row["map"] for row in csv.DictReader((tmp_path / "one" / "tables.csv").open())} == {
        "CAM",
        "centre Gaussian",
    }
    page = run_report(ReportConfig((alone, tiny_run), tmp_path / "two", gallery=False))
    assert "have the same settings and seed" not in page.read_text()
    rows = [row for row in csv.DictReader((tmp_path / "two" / "tables.csv").open()) if row["map"] != "CAM"]
    endings = [(row["runs"].split(" · ")[-1], row["map"]) for row in rows]
    assert set(endings) == {
        ("decoder none", "centre Gaussian"),
        ("decoder trained", "F-CAM"),
        ("decoder trained", "centre Gaussian"),
    }


def test_runs_of_one_name_are_told_apart(tiny_run: Path, tmp_path: Path, monkeypatch) -> None:
    runs = [copy_run(tiny_run, tmp_path / method / "s0", method=method) for method in ("gradcam", "layercam")]
    out = tmp_path / "out"
    run_report(ReportConfig((tiny_run, *runs), out, samples=0, failures=0, images=0, workers=0))
    names = {tiny_run.name, "gradcam/s0", "layercam/s0"}
    assert {row["run"] for row in csv.DictReader((out / "images.csv").open())} == names
    report = json.loads((out / "report.json").read_text())
    assert {run["run"] for own in report["groups"] for run in own["runs"]} == names
    assert "| gradcam/s0 | " in (out / "tables.md").read_text()
    monkeypatch.chdir(runs[0])
    assert read_runs([Path()], "test", [])[0].name == "s0"


def test_sets_of_one_name_are_not_seeds_of_each_other(tiny_run: Path, tmp_path: Path) -> None:
    runs = [copy_run(tiny_run, tmp_path / name) for name in ("a", "b")]
    for run, data in zip(runs, ("old/photos", "new/photos"), strict=True):
        config = dataclasses.replace(load_config(run), data=data)
        (run / "config.yaml").write_text(yaml.safe_dump(config_to_dict(config)))
    metrics = json.loads((runs[1] / "metrics.json").read_text())
    (runs[1] / "metrics.json").write_text(json.dumps(metrics | {"images": metrics["images"] + 1}))
    labels = [own.label for own in group(read_runs(runs, "test", []))]
    assert [label.split(" · ")[0] for label in labels] == ["old/photos", "new/photos"]


def test_a_copy_of_a_run_is_not_another_seed_unsaid(tiny_run: Path, tmp_path: Path) -> None:
    copy = copy_run(tiny_run, tmp_path / "copy")
    (sentence,) = repeated(group(read_runs([tiny_run, copy], "test", [])))
    assert f"{tiny_run.name} and copy have the same settings and seed 0" in sentence
    other = copy_run(tiny_run, tmp_path / "other", seed=1)
    assert repeated(group(read_runs([tiny_run, other], "test", []))) == []


def test_a_shared_classifier_took_its_time_once(tiny_run: Path, tmp_path: Path) -> None:
    spent = {"classifier": 0.0, "decoder": 0.0}
    for record in read_run(tiny_run, "test").records:
        spent[record["stage"]] += record["seconds"]
    names = ("a", "b")
    runs = [read_run(copy_run(tiny_run, tmp_path / n, classifier_from=str(tiny_run)), "test") for n in names]
    assert runs[0].seconds == pytest.approx(spent["classifier"] + spent["decoder"])
    assert training_seconds(runs) == pytest.approx(spent["classifier"] + 2 * spent["decoder"])


@pytest.fixture
def papers_run(tiny_run: Path):
    """The tiny run in the clothes of a run of the paper's grid."""
    from fcam.recipes import recipe

    def dress(backbone: str, method: str = "xgradcam", **changes):
        config = dataclasses.replace(recipe(f"cub-{backbone}-{method}"), data="CUB", **changes)
        return dataclasses.replace(read_run(tiny_run, "test"), config=config)

    return dress


def test_the_papers_number_stands_beside_ours(papers_run) -> None:
    groups = group([papers_run("resnet50")])
    table = localization(groups, "test")
    cells = {(row[1], row[2]): dict(zip(table.head, row, strict=True)) for row in table.rows}
    ours = cells["F-CAM", "best on test"]["box@0.5"]
    assert isinstance(ours, Number)
    assert ours.paper == paper_tables.MAIN["max_box_acc", "cub", "fcam"]["xgradcam"].resnet50
    assert cells["F-CAM", "best on test"]["box@0.3"].paper is None
    assert cells["F-CAM", "best on val"]["box@0.5"].paper is None
    center = cells["centre Gaussian", "best on test"]["V2"]
    assert center.paper == 59.7
    assert table.notes[center.note - 1] == paper_tables.CENTER_FOOTNOTE
    assert "paper 90.4" in as_html(table)
    assert "the τ shown is that of box@0.5" in table.caption


def test_other_settings_have_no_number_of_the_paper(papers_run) -> None:
    plain = papers_run("resnet50", "cam")
    loss, seeds = plain.config.loss, plain.config.seeds

    def number(**changes):
        own = dataclasses.replace(plain, config=dataclasses.replace(plain.config, **changes))
        return papers_number(group([own])[0], "fcam", "max_box_acc")

    assert number() == 90.3
    assert number(seeds=dataclasses.replace(seeds, n_minus=0.2)) == 90.3
    assert number(seeds=dataclasses.replace(seeds, erosion=1)) is None
    assert number(loss=dataclasses.replace(loss, crf=0.0)) == 83.2
    assert number(loss=dataclasses.replace(loss, crf=0.0, size=0.0)) == 82.2
    assert number(loss=dataclasses.replace(loss, crf=1.0)) is None


def test_contradicted_means_are_footnoted(papers_run) -> None:
    table = backbone_means(group([papers_run(b) for b in paper_tables.BACKBONES]))
    assert table is not None
    row = next(r for r in table.rows if r[2] == "F-CAM" and r[3] == "MaxBoxAcc@0.5")
    assert isinstance(row[4], Number)
    assert row[4].paper == 88.8
    assert "87.2" in table.notes[row[4].note - 1]
    assert backbone_means(group([papers_run("vgg16")])) is None


def test_mistakes_are_one_sentence(tiny_run: Path, tmp_path: Path) -> None:
    with pytest.raises(FcamError, match="fcam evaluate .* --split val"):
        run_report(ReportConfig(runs=(tiny_run,), out=tmp_path, split="val"))
    with pytest.raises(FcamError, match="not the folder of a run"):
        run_report(ReportConfig(runs=(tmp_path / "none",), out=tmp_path))
    with pytest.raises(FcamError, match="--images must be 0 or more, got -1"):
        run_report(ReportConfig(runs=(tiny_run,), out=tmp_path, images=-1))
    run = copy_run(tiny_run, tmp_path / "run")
    (run / "metrics.json").write_text("{")
    with pytest.raises(FcamError, match="damaged"):
        run_report(ReportConfig(runs=(run,), out=tmp_path))


@pytest.mark.parametrize(("measure", "share"), [("mask", 0.55), ("box", 0.55 * 0.6)])
def test_pictures_cut_masks_at_values_and_boxes_at_shares(
    tiny_run: Path, drawn_set: Path, monkeypatch: pytest.MonkeyPatch, measure: Measure, share: float
) -> None:
    """On a map that ends at 0.6, a threshold of 0.55 is that value for masks and 0.33 for boxes."""
    ramp = torch.linspace(0, 0.6, 64).expand(1, 64, 64)
    monkeypatch.setattr(gallery, "score_maps", lambda *_: ({"cam": ramp, "fcam": 0 * ramp}, None))
    masks = []
    monkeypatch.setattr(gallery.draw, "comparison", lambda photo, mask, *_: masks.append(mask) or photo)
    dataset = open_dataset(str(drawn_set), "test", transform=EvalTransform(64), localization=True)
    model, thresholds = FCAM.from_pretrained(tiny_run), {"cam": 0.55, "fcam": 0.55}
    gallery.sample_rows(model, dataset, [0], load_config(tiny_run), thresholds, measure)
    assert abs(masks[0].mean() - float((ramp > share).float().mean())) < 1.5 / 64
    assert not masks[1].any()


def test_the_demo_page_is_the_report(tiny_run: Path, drawn_set: Path, tmp_path: Path) -> None:
    run = copy_run(tiny_run, tmp_path / "demo")
    shutil.copytree(drawn_set, run / "data")
    report = json.loads((run / "metrics.json").read_text())
    path = demo._write_page(demo.DemoConfig(out=run, workers=0), load_config(run), report)
    assert path == run / "report" / "index.html"
    assert demo.LEAD in path.read_text(encoding="utf-8")
    assert Image.open(path.with_name("panel.png")).height > 400
    assert json.loads((run / "metrics.json").read_text()) == report


def test_five_thousand_images_stay_small(page: str) -> None:
    """What the page holds per image, for maps as noisy as those of a decoder that has hardly learned."""
    scripts = Page(page).scripts
    size = sum(len(text) for name, text in scripts.items() if name.startswith("gallery-"))
    assert 5000 * size / 8 < 60e6


def test_the_smallest_class_does_not_end_the_samples() -> None:
    class Labels:
        labels = (0, 0, 0, 1, 2, 2)

    assert spread(Labels(), 9) == [0, 3, 4, 1, 5, 2]  # type: ignore[arg-type]
    assert spread(Labels(), 4) == [0, 3, 4, 1]  # type: ignore[arg-type]
