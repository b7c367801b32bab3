"""Labels for segmentation: outlines and masks belong to their boxes, come from the written masks, or say why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest
from PIL import Image, ImageDraw

from fcam.boxes import from_map
from fcam.errors import FcamError
from fcam.labels import LabelFormat, LabelOptions, check_formats, export_labels
from fcam.model import FCAM
from fcam.predict.command import PredictConfig, run_predict
from fcam.predict.output import load_predictions
from planted import Planted
from polygons import filled

CLASSES = ["cat", "dog", "old owl"]
NAME = "ä/日本 (1)"


def drawing() -> np.ndarray:
    """Three components in 120 x 200: a disc at the border, a frame with two holes, two squares corner to corner."""
    mask = np.zeros((120, 200), np.uint8)
    cv2.circle(mask, (20, 110), 30, 255, -1)
    mask[5:65, 60:140] = 255
    mask[15:40, 70:90] = mask[20:60, 100:130] = 0
    mask[70:90, 150:170] = mask[90:110, 170:190] = 255
    return mask > 0


def write(out: Path, mask: np.ndarray, name: str = NAME, rule: Any = "all", **other: Any) -> dict[str, Any]:
    """Write a mask as `fcam predict` does and return the row."""
    path = out / "masks" / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(mask.astype(np.uint8) * 255).save(path)
    boxes = from_map(mask.astype(np.float32), 0.5, rule, "exact").numpy() + np.array([0, 0, 1, 1])
    row = {"file": f"{name}.jpg", "name": name, "width": mask.shape[1], "height": mask.shape[0]}
    row |= {"boxes": boxes.tolist(), "label": "dog", "class_idx": 1, "score": 0.9}
    return {**row, "files": {"masks": f"masks/{name}.png"}, **other}


def labels_in(out: Path) -> list[dict[str, Any]]:
    return json.loads((out / "coco.json").read_text(encoding="utf-8"))["annotations"]


def test_coco_polygons_belong_to_their_boxes(tmp_path: Path) -> None:
    mask = drawing()
    row = write(tmp_path, mask)
    export_labels([row], tmp_path, ["coco"], CLASSES)
    found = labels_in(tmp_path)
    assert len(found) == 3
    together = np.zeros_like(mask)
    for a, (x0, y0, x1, y1) in zip(found, row["boxes"], strict=True):
        (polygon,) = a["segmentation"]
        assert len(polygon) % 2 == 0
        assert len(polygon) >= 8
        assert a["bbox"] == [x0, y0, x1 - x0, y1 - y0]
        assert [min(polygon[::2]), min(polygon[1::2]), max(polygon[::2]), max(polygon[1::2])] == [
            x0,
            y0,
            x1,
            y1,
        ]
        pixels = filled(np.reshape(polygon, (-1, 2)), mask.shape)
        assert a["area"] == pixels.sum()
        assert not (together & pixels).any()
        together |= pixels
    np.testing.assert_array_equal(together, mask)
    assert [a["area"] for a in found] == sorted((a["area"] for a in found), reverse=True)


def test_largest_labels_one_component_of_the_mask(tmp_path: Path) -> None:
    row = write(tmp_path, drawing(), rule="largest")
    export_labels([row], tmp_path, ["coco", "yolo-seg", "voc-seg"], CLASSES)
    assert len(labels_in(tmp_path)) == 1
    assert len((tmp_path / f"labels/{NAME}.txt").read_text().splitlines()) == 1
    png = np.asarray(Image.open(tmp_path / f"SegmentationClass/{NAME}.png"))
    assert (png > 0).sum() == labels_in(tmp_path)[0]["area"] < drawing().sum()


def test_yolo_lines_are_class_and_outline_as_shares(tmp_path: Path) -> None:
    row = write(tmp_path, drawing())
    done: list[int] = []
    paths = export_labels([row], tmp_path, ["yolo-seg"], CLASSES, on_photo=done.append)["yolo-seg"]
    assert done == [1]
    assert paths == [tmp_path / f"labels/{NAME}.txt", tmp_path / "train.txt", tmp_path / "data.yaml"]
    together = np.zeros((120, 200), bool)
    for line in paths[0].read_text().splitlines():
        category, *numbers = line.split(" ")
        assert category == "1"
        points = np.array(numbers, float).reshape(-1, 2)
        assert points.min() >= 0
        assert points.max() <= 1
        together |= filled(points * [200, 120], (120, 200))
    np.testing.assert_array_equal(together, drawing())


def test_voc_masks_hold_class_numbers_and_their_colours(tmp_path: Path) -> None:
    owl = write(tmp_path, drawing(), "owl", label="old owl", class_idx=2)
    export_labels([write(tmp_path, drawing()), owl], tmp_path, ["voc-seg"], CLASSES)
    image = Image.open(tmp_path / f"SegmentationClass/{NAME}.png")
    assert image.mode == "P"
    np.testing.assert_array_equal(np.asarray(image), drawing() * 2)
    assert np.asarray(image.convert("RGB")).reshape(-1, 3).max(0).tolist() == [0, 128, 0]
    assert np.asarray(Image.open(tmp_path / "SegmentationClass/owl.png")).max() == 3
    assert (tmp_path / "labelmap.txt").read_text().splitlines() == [
        "background:0,0,0::",
        "cat:128,0,0::",
        "dog:0,128,0::",
        "old owl:128,128,0::",
    ]
    root = ElementTree.parse(tmp_path / f"Annotations/{NAME}.xml").getroot()
    assert root.findtext("segmented") == "1"
    assert len(root.findall("object")) == 3


def test_filters_leave_out_regions_of_every_format(tmp_path: Path) -> None:
    mask = np.zeros((50, 60), bool)
    mask[5:30, 5:30] = mask[40, 10:50] = True
    rows = [write(tmp_path, mask, "kept"), write(tmp_path, mask, "unsure", score=0.2)]
    options = LabelOptions(class_agnostic=True, min_score=0.5, min_size=10)
    export_labels(rows, tmp_path, ["coco", "yolo-seg", "voc-seg"], CLASSES, options)
    assert [(a["bbox"], a["area"], a["category_id"]) for a in labels_in(tmp_path)] == [
        ([5, 5, 25, 25], 625, 1)
    ]
    assert [p.name for p in (tmp_path / "labels").iterdir()] == ["kept.txt"]
    assert (tmp_path / "labels/kept.txt").read_text().count("\n") == 1
    png = np.asarray(Image.open(tmp_path / "SegmentationClass/kept.png"))
    np.testing.assert_array_equal(np.ptp(np.argwhere(png), axis=0), [24, 24])
    assert not (tmp_path / "SegmentationClass/unsure.png").exists()


def test_regions_of_one_pixel_and_of_the_whole_photo(tmp_path: Path) -> None:
    dot = np.zeros((4, 5), bool)
    dot[3, 4] = True
    rows = [write(tmp_path, dot, "dot"), write(tmp_path, np.ones((4, 5), bool), "all")]
    export_labels(rows, tmp_path, ["coco", "yolo-seg"], CLASSES)
    found = labels_in(tmp_path)
    assert [(a["bbox"], a["area"]) for a in found] == [([4, 3, 1, 1], 1), ([0, 0, 5, 4], 20)]
    assert filled(np.reshape(found[1]["segmentation"][0], (-1, 2)), (4, 5)).all()
    assert len((tmp_path / "labels/dot.txt").read_text().split()) == 9


def test_masks_may_lie_in_another_folder(tmp_path: Path) -> None:
    row = write(tmp_path / "run", drawing())
    export_labels([row], tmp_path / "labels", ["coco"], CLASSES, run=tmp_path / "run")
    assert all(a["segmentation"] for a in labels_in(tmp_path / "labels"))


def test_without_masks_there_are_boxes_or_a_sentence(tmp_path: Path) -> None:
    row = write(tmp_path, drawing(), files={})
    export_labels([row], tmp_path, ["coco", "yolo", "voc"], CLASSES)
    assert all(a["segmentation"] == [] for a in labels_in(tmp_path))
    assert labels_in(tmp_path)[0]["area"] == 60 * 80
    for name in ("yolo-seg", "voc-seg"):
        with pytest.raises(FcamError, match=r"日本 \(1\)\.jpg has no mask"):
            export_labels([row], tmp_path, [cast(LabelFormat, name)], CLASSES)


def damage(path: Path, how: str) -> None:
    if how == "missing":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(path.read_bytes()[:-30])
    elif how == "text":
        path.write_text("no picture")
    elif how == "smaller":
        Image.new("L", (20, 10)).save(path)
    elif how == "larger":
        Image.new("L", (2000, 1000)).save(path)
    else:
        Image.fromarray(np.roll(drawing(), 1, axis=1).astype(np.uint8) * 255).save(path)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("missing", "does not exist; repeat fcam predict with --resume"),
        ("truncated", "truncated|damaged"),
        ("text", "not an image"),
        ("smaller", "20x10.*200x120"),
        ("larger", "2000x1000"),
        ("shifted", "no region with the box"),
    ],
)
def test_a_mask_that_cannot_be_used_is_a_sentence(tmp_path: Path, how: str, words: str) -> None:
    row = write(tmp_path, drawing())
    damage(tmp_path / row["files"]["masks"], how)
    for name in ("coco", "yolo-seg", "voc-seg"):
        with pytest.raises(FcamError, match=rf"mask of ä/日本 \(1\)\.jpg.*({words})"):
            export_labels([row], tmp_path / "out", [cast(LabelFormat, name)], CLASSES, run=tmp_path)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["exported.json"]


def test_formats_that_cannot_be_written_are_sentences() -> None:
    for pair in (["yolo", "yolo-seg"], ["voc-seg", "voc"]):
        with pytest.raises(FcamError, match="same names"):
            check_formats(pair)
    with pytest.raises(FcamError, match=r"300 classes.*254"):
        check_formats(["voc-seg"], classes=300)
    check_formats(["coco", "yolo-seg", "voc-seg"], classes=254)


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three photos with two red squares each, and a model that finds red."""
    names = ["red", "green", "blue"]
    monkeypatch.setattr(FCAM, "from_pretrained", lambda source, classifier=None: Planted(classes=names))
    for name in ("ünï 日本", "b", "c"):
        image = Image.new("RGB", (160, 120), (60, 60, 60))
        ImageDraw.Draw(image).rectangle((0, 20, 60, 80), fill=(255, 20, 20))
        ImageDraw.Draw(image).rectangle((110, 60, 140, 119), fill=(255, 20, 20))
        (tmp_path / "in").mkdir(exist_ok=True)
        image.save(tmp_path / "in" / f"{name}.png")
    return tmp_path / "in"


def predict(photos: Path, **options: Any) -> Path:
    out = photos.parent / "out"
    assert run_predict(PredictConfig((str(photos),), "model", out, size=64, boxes="all", **options)) == 0
    return out


def test_predict_and_resume_write_the_same_labels(photos: Path) -> None:
    out = predict(photos, export=("coco", "yolo-seg", "voc-seg"))
    first = (out / "coco.json").read_bytes()
    found = labels_in(out)
    assert len(found) == 6
    rows = load_predictions(out)["predictions"]
    for row, (a, b) in zip(rows, zip(found[::2], found[1::2], strict=True), strict=True):
        mask = np.asarray(Image.open(out / row["files"]["masks"])) > 0
        assert a["area"] + b["area"] == mask.sum()
        np.testing.assert_array_equal(
            np.asarray(Image.open(out / f"SegmentationClass/{row['name']}.png")) > 0, mask
        )
    (out / "coco.json").unlink()
    (out / rows[0]["files"]["masks"]).unlink()
    predict(photos, export=("coco", "yolo-seg", "voc-seg"), resume=True)
    assert (out / "coco.json").read_bytes() == first


def test_a_stricter_resume_removes_the_labels_before(photos: Path) -> None:
    out = predict(photos, export=("yolo-seg", "voc-seg"))
    folders = ("labels", "SegmentationClass", "Annotations")
    assert [len(list((out / name).iterdir())) for name in folders] == [3, 3, 3]
    predict(photos, export=("yolo-seg", "voc-seg"), resume=True, min_size=1000)
    assert [len(list((out / name).iterdir())) for name in folders] == [0, 0, 0]
    assert len(list((out / "masks").iterdir())) == 3


def test_formats_are_refused_before_anything_is_predicted(photos: Path) -> None:
    with pytest.raises(FcamError, match="yolo-seg is made from masks/, which --no-masks leaves out"):
        predict(photos, export=("coco", "yolo-seg"), masks=False)
    with pytest.raises(FcamError, match="yolo and yolo-seg"):
        predict(photos, export=("yolo", "yolo-seg"))
    assert not (photos.parent / "out").exists()


def test_a_run_without_masks_labels_boxes(photos: Path) -> None:
    out = predict(photos, export=("coco", "yolo", "voc"), masks=False)
    assert [a["segmentation"] for a in labels_in(out)] == [[]] * 6


def test_label_masks_of_a_run_before_are_not_taken_for_photos(photos: Path) -> None:
    for _ in range(2):
        out = photos / "out"
        config = PredictConfig((str(photos),), "model", out, size=64, export=("voc-seg",))
        assert run_predict(config) == 0
        assert len(load_predictions(out)["predictions"]) == 3
