"""Ways to a better map: the product with the class's CAM, and what an evaluation says of all of them."""

from __future__ import annotations

import copy
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fcam
from fcam import cams
from fcam.cli import main
from fcam.data import open_dataset
from fcam.data.transforms import EvalTransform
from fcam.errors import FcamError
from fcam.evaluate import evaluate
from fcam.metrics import MaxBoxAcc
from fcam.model import FCAM
from fcam.predict.localizer import Localizer
from fcam.predict.prediction import cut, to_size
from fcam.predict.ways import Ways, filled, product, undecided
from fcam.refine import refine
from fcam.split_maps import MapOptions


@pytest.fixture(scope="module")
def model() -> FCAM:
    torch.manual_seed(0)
    return fcam.create_model("timm:test_resnet", 3, pretrained=False, output_stride=16).eval()


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((64, 64))


def expected(model: FCAM, photo: Image.Image, class_idx: int, way: str) -> np.ndarray:
    """√(S · C) or S^(1 - 0.8 C) from the public parts, (64, 64)."""
    images = torch.from_numpy(np.array(photo)).permute(2, 0, 1)[None].float() / 255
    with torch.inference_mode():
        out = model(images)
        own = cams.interpolated(model.classifier, images, out.features[-1], torch.tensor([class_idx]))
        map = out.maps.softmax(1)[:, 1]
        return (map * own).sqrt()[0].numpy() if way == "product" else (map ** (1 - 0.8 * own))[0].numpy()


@pytest.mark.parametrize("way", ["product", "fill"])
def test_the_map_is_one_of_a_class(model: FCAM, photo: Image.Image, way: str) -> None:
    localizer = Localizer(model, size=64, product=way == "product", fill=way == "fill")
    maps = {index: localizer(photo, class_idx=index) for index in range(3)}
    for index, found in maps.items():
        assert found.class_idx == index
        np.testing.assert_allclose(found.cam, expected(model, photo, index, way), atol=1e-5)
    assert np.abs(maps[0].cam - maps[1].cam).max() > 0.05
    assert sum(found.score for found in maps.values()) == pytest.approx(1, abs=1e-5)
    best = max(maps, key=lambda index: maps[index].score)
    np.testing.assert_array_equal(localizer(photo).cam, maps[best].cam)
    assert localizer(photo).class_idx == best


def test_without_product_the_class_changes_the_cam_alone(model: FCAM, photo: Image.Image) -> None:
    localizer = Localizer(model, size=64, with_cam=True)
    first, second = localizer([photo], class_idx=0) + localizer([photo], class_idx=1)
    np.testing.assert_array_equal(first.cam, second.cam)
    assert first.baseline is not None
    assert second.baseline is not None
    assert np.abs(first.baseline - second.baseline).max() > 0.05


@pytest.mark.parametrize("class_idx", [np.int64(1), np.array(1), torch.tensor(1), torch.tensor([1])])
def test_a_class_may_be_any_kind_of_integer(model: FCAM, photo: Image.Image, class_idx: Any) -> None:
    found = Localizer(model, size=64)(photo, class_idx=class_idx)
    assert type(found.class_idx) is int
    assert found.class_idx == 1


@pytest.mark.parametrize("class_idx", [-1, 3, 1.5, True, "cat", torch.tensor([0, 1]), np.array([0, 1])])
def test_a_class_that_there_is_not(model: FCAM, photo: Image.Image, class_idx: Any) -> None:
    with pytest.raises(FcamError, match="this model's classes are 0 to 2"):
        Localizer(model, size=64)(photo, class_idx=class_idx)


def test_a_mirrored_photo_has_the_mirrored_product(model: FCAM, photo: Image.Image) -> None:
    both = Localizer(model, size=64, product=True, flip=True)
    mirrored = photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    seen = both(photo, class_idx=1).cam
    np.testing.assert_allclose(both(mirrored, class_idx=1).cam[:, ::-1], seen, atol=1e-5)
    assert np.abs(seen - Localizer(model, size=64, product=True)(photo, class_idx=1).cam).max() > 1e-3


def test_filling_raises_what_the_cam_covers_and_nothing_else() -> None:
    maps, own = torch.rand(2, 5, 5), torch.rand(2, 5, 5)
    maps[0, 0], own[:, 1] = 0, 0
    found = filled(maps, own)
    assert ((found >= maps) & (found <= 1)).all()
    assert (found[0, 0] == 0).all(), "what is surely background stays so"
    torch.testing.assert_close(found[:, 1], maps[:, 1])
    torch.testing.assert_close(filled(torch.full((1, 1, 1), 0.5), torch.ones(1, 1, 1)).item(), 0.5**0.2)


def test_filled_then_multiplied(model: FCAM, photo: Image.Image) -> None:
    raised = expected(model, photo, 1, "fill")
    squared = expected(model, photo, 1, "product") ** 2 / Localizer(model, size=64)(photo).cam
    both = Localizer(model, size=64, product=True, fill=True)(photo, class_idx=1).cam
    np.testing.assert_allclose(both, np.sqrt(raised * squared), atol=1e-4)


def test_an_empty_cam_leaves_the_map_as_it_is() -> None:
    maps = torch.rand(2, 5, 5)
    own = torch.stack([torch.zeros(5, 5), torch.rand(5, 5)])
    found = product(maps, own)
    torch.testing.assert_close(found[0], maps[0])
    torch.testing.assert_close(found[1], (maps[1] * own[1]).sqrt())


def test_every_way_has_its_name_and_its_threshold(model: FCAM) -> None:
    assert Ways().kind == "fcam"
    assert Ways(zoom=True, product=True, flip=True).kind == "product+flip+zoom"
    assert Ways(zoom=True, fill=True).kind == "fcam+fill+zoom"
    boxes = {"fcam": 0.6, "product": 0.2, "product+zoom": 0.3}
    known = FCAM(
        model.classifier, model.decoder, metadata={"thresholds": {k: _boxes(t) for k, t in boxes.items()}}
    )
    assert Localizer(known).threshold == 0.6
    assert Localizer(known, refine=True).threshold == 0.6, "no word of its own: that of one look"
    assert Localizer(known, product=True, refine=True).threshold == 0.2
    closer = Localizer(known, product=True, zoom=True)
    assert (closer.first_cut, closer.threshold) == (0.2, 0.3)
    assert closer.using(boxes="all", ways=Ways()).threshold == 0.6
    asked = Localizer(known, 0.4, product=True, zoom=True)
    assert (asked.first_cut, asked.threshold) == (0.4, 0.4)
    assert asked.using(boxes="all", ways=Ways()).threshold == 0.4
    known.metadata = {"threshold": 0.7}
    assert Localizer(known).threshold == 0.7
    assert Localizer(known, product=True).threshold == 0.5, "a named threshold is F-CAM's"


def _boxes(threshold: float) -> dict[str, Any]:
    return {"max_box_acc": {"0.5": threshold}}


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_run, tmp_path / "run"))


@pytest.mark.parametrize(
    "on", [("product",), ("fill",), ("flip", "refine"), ("grabcut",), ("product", "refine", "zoom")]
)
def test_an_evaluation_scores_what_predict_shows(
    run: Path, drawn_set: Path, on: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in (run / "metrics.json", run / "model" / "model.safetensors")}
    assert main(["evaluate", str(run), "--workers", "0", *(f"--{way}" for way in on)]) == 0
    assert all(path.read_bytes() == old for path, old in before.items())
    report = json.loads((run / "-".join(["metrics-test", *on])).with_suffix(".json").read_text())
    own = json.loads((run / "metrics.json").read_text())["maps"]
    options: dict[str, Any] = dict.fromkeys(on, True)
    kind = Ways(**options).kind
    assert report["maps"]["fcam"] == own["fcam"]
    assert ("product" in report["maps"]) == ("product" in on)
    row = report["maps"][kind]

    localizer = Localizer(run, **options)
    assert localizer.threshold == row["transferred"]["threshold"]["max_box_acc"]["0.5"]
    said = " ".join(capsys.readouterr().err.split())
    assert f"cuts the maps of this run at {localizer.threshold:.2f}" in said
    accuracy = MaxBoxAcc(iou=(0.5,))
    dataset = open_dataset(str(drawn_set), "test", transform=EvalTransform(64), localization=True)
    for place in range(len(dataset)):
        item = dataset[place]
        seen = localizer(dataset.path(place), class_idx=item["label"])
        small = to_size(torch.from_numpy(seen.cam), (64, 64))
        accuracy.update(torch.from_numpy(small)[None], [item["boxes"]])
    assert accuracy.compute().item() == pytest.approx(row["max_box_acc"]["0.5"], abs=1e-4)


def test_without_opencv_an_evaluation_ends_before_it_looks(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    monkeypatch.setattr("fcam.evaluate.evaluate_split", None)  # nobody gets there
    assert main(["evaluate", str(run), "--workers", "0", "--refine", "--grabcut"]) == 2
    assert 'pip install "fcam[grabcut]"' in capsys.readouterr().err


def test_training_leaves_the_products_threshold(tiny_run: Path) -> None:
    thresholds = json.loads((tiny_run / "model" / "config.json").read_text())["metadata"]["thresholds"]
    assert Localizer(tiny_run, product=True).threshold == thresholds["product"]["max_box_acc"]["0.5"]
    assert "product" not in json.loads((tiny_run / "metrics.json").read_text())["maps"]


def test_other_data_leave_the_models_card_alone(run: Path, drawn_set: Path, tmp_path: Path) -> None:
    elsewhere = shutil.copytree(drawn_set, tmp_path / "other")
    card = (run / "model" / "config.json").read_bytes()
    arguments = ["--data", str(elsewhere), "--refine", "--workers", "0"]
    assert main(["evaluate", str(run), *arguments]) == 0
    assert (run / "metrics-test-other-refine.json").is_file()
    assert (run / "model" / "config.json").read_bytes() == card


def test_ways_need_a_trained_decoder_and_a_model(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "--maps", str(tmp_path), "--zoom"]) == 2
    assert "--zoom is for models" in capsys.readouterr().err
    config = json.loads((run / "model" / "config.json").read_text())
    config["metadata"]["decoder_trained"] = False
    (run / "model" / "config.json").write_text(json.dumps(config))
    assert main(["evaluate", str(run), "--product"]) == 2
    assert "was never trained" in capsys.readouterr().err


def test_maps_are_saved_of_the_kinds_that_are_shown(run: Path, tmp_path: Path) -> None:
    arguments = ["evaluate", str(run), "--split", "val", "--workers", "0", "--save-maps"]
    assert main([*arguments, str(tmp_path / "plain")]) == 0
    assert {path.name for path in (tmp_path / "plain").iterdir()} == {"cam", "fcam", "center"}
    assert main([*arguments, str(tmp_path / "product"), "--product"]) == 0
    assert {path.name for path in (tmp_path / "product").iterdir()} == {"cam", "fcam", "product", "center"}


def test_a_card_that_was_edited_can_be_evaluated(run: Path) -> None:
    config = json.loads((run / "model" / "config.json").read_text())
    config["metadata"] |= {"training": [1], "thresholds": 0.5}
    (run / "model" / "config.json").write_text(json.dumps(config))
    assert main(["evaluate", str(run), "--flip", "--size", "64", "--workers", "0"]) == 0
    assert "fcam+flip" in json.loads((run / "metrics-test-64-flip.json").read_text())["maps"]


@pytest.mark.parametrize("truth", ["no val", "val without boxes and masks"])
def test_thresholds_stay_where_val_measures_none(
    run: Path, drawn_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], truth: str
) -> None:
    data = Path(shutil.copytree(drawn_set, tmp_path / drawn_set.name))
    for place in ("metadata", "metadata_masks"):
        if truth == "no val":
            shutil.rmtree(data / place / "val")
        else:
            (data / place / "val" / "localization.txt").unlink()
    if truth == "no val":
        shutil.rmtree(data / "images" / "val")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace(str(drawn_set), str(data)))
    card = (run / "model" / "config.json").read_bytes()
    assert main(["evaluate", str(run), "--zoom", "--workers", "0"]) == 0
    assert (run / "metrics-test-zoom.json").is_file()
    assert "best on val" not in capsys.readouterr().err
    assert (run / "model" / "config.json").read_bytes() == card


def test_a_pass_that_measures_no_threshold_leaves_the_models_own(
    tiny_run: Path, drawn_set: Path, tmp_path: Path
) -> None:
    data = Path(shutil.copytree(drawn_set, tmp_path / "set"))
    for place in ("metadata", "metadata_masks"):
        (data / place / "val" / "localization.txt").unlink()
    model = FCAM.from_pretrained(tiny_run)
    before = Localizer(model).threshold
    assert before != 0.5
    evaluate(model, str(data), size=64, options=MapOptions(workers=0))
    assert Localizer(model).threshold == before


def test_a_run_that_cannot_be_written_keeps_no_threshold_and_loses_no_number(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise FcamError("cannot write model/config.json: Read-only file system")

    monkeypatch.setattr("fcam.checkpoint.write_json", refuse)
    out = tmp_path / "numbers.json"
    assert main(["evaluate", str(run), "--flip", "--workers", "0", "--out", str(out)]) == 0
    assert "fcam+flip" in json.loads(out.read_text())["maps"]
    said = " ".join(capsys.readouterr().err.split())
    assert "cuts the maps of this run where it did before: cannot write" in said


def test_a_coarse_look_raises_a_map_up_to_the_cut_and_no_further() -> None:
    maps, coarse = torch.rand(3, 6, 6), torch.rand(3, 6, 6)
    coarse[:, 0], coarse[:, 1], maps[2] = 0, 1, 0
    found = undecided(maps, coarse, 0.7)
    assert torch.equal(found[:, 0], maps[:, 0])
    cuts = (0.7 * (255 * maps.amax((1, 2))).floor()).floor() / 255
    assert (found[:, 1] >= cuts[:, None] - 1e-6).all()
    assert (found >= maps).all()
    assert (found[2] == 0).all(), "where there is nothing, there is nothing to complete"


@pytest.mark.parametrize("peak", [0.95, 0.99, 0.998, 0.999, 0.9995, 1.0])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.698, 0.7, 0.9])
def test_a_coarse_look_alone_makes_no_object(peak: float, threshold: float) -> None:
    maps, coarse = torch.zeros(1, 8, 8), torch.ones(1, 8, 8)
    maps[:, :4] = peak
    found = undecided(maps, coarse, threshold)[0].numpy()
    np.testing.assert_array_equal(cut(found, threshold, "all")[0], cut(maps[0].numpy(), threshold, "all")[0])


def test_what_only_the_coarse_look_finds_is_decided_by_the_others(model: FCAM, photo: Image.Image) -> None:
    model = copy.deepcopy(model)
    last = model.decoder.segmentation_head[0]
    with torch.no_grad():
        last.weight.mul_(20)  # maps of an untrained decoder are flat
        last.bias.sub_(last.bias)
    images = torch.from_numpy(np.array(photo)).permute(2, 0, 1)[None].float() / 255
    with torch.inference_mode():
        first = model(images).maps.softmax(1)[:, 1]
        small = torch.nn.functional.interpolate(images, size=(32, 32), mode="bilinear", antialias=True)
        second = model(small).maps.softmax(1)[:, 1:]
        second = torch.nn.functional.interpolate(second, size=(64, 64), mode="bilinear")[:, 0]
        expected = refine(images, undecided(first, second, 0.6), 0.6)
    found = Localizer(model, 0.6, size=64, coarse=True, refine=True)(photo)
    np.testing.assert_allclose(found.cam, expected[0], atol=1e-3)
    assert np.abs(found.cam - Localizer(model, 0.6, size=64, refine=True)(photo).cam).max() > 0.01
    both = Localizer(model, 0.6, size=64, coarse=True, refine=True, flip=True)
    mirrored = both(photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT)).cam[:, ::-1]
    np.testing.assert_allclose(both(photo).cam, mirrored, atol=1e-3)


def test_a_coarse_look_needs_somebody_who_decides(model: FCAM, photo: Image.Image) -> None:
    with pytest.raises(FcamError, match="coarse leaves what it finds to product, fill, refine or grabcut"):
        Localizer(model, size=64, coarse=True, zoom=True)
    Localizer(model, size=32, coarse=True, fill=True)(photo)  # half of which no network takes


def test_an_evaluation_says_so_before_it_looks_at_anything(model: FCAM, drawn_set: Path) -> None:
    with pytest.raises(FcamError, match="coarse leaves what it finds"):
        evaluate(model, str(drawn_set / "nowhere"), "test", 64, ways=Ways(coarse=True))


def test_a_network_for_one_size_is_told_to_leave_the_coarse_look_out(photo: Image.Image) -> None:
    layers = [
        torch.nn.Conv2d(3, 8, 3, 2, 1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3, 2, 1),
        torch.nn.ReLU(),
    ]
    fixed = fcam.attach(
        torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(2048, 3)), image_size=64
    )
    fixed.metadata["decoder_trained"] = True  # as far as this test cares
    Localizer(fixed, size=64)(photo)
    with pytest.raises(FcamError, match="1 images of 32x32 .*; leave coarse out"):
        Localizer(fixed, size=64, coarse=True, refine=True)(photo)
