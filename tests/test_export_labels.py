"""Label files: coordinates of every format, filters, classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from fcam.errors import FcamError
from fcam.labels.export import LabelOptions, export_labels, select

CLASSES = ["cat", "dog", "old owl"]


def row(name: str = "a/x", boxes: Any = ((10, 20, 110, 70),), **other: Any) -> dict[str, Any]:
    base = {
        "file": f"{name}.jpg",
        "name": name,
        "width": 200,
        "height": 100,
        "boxes": [list(b) for b in boxes],
    }
    return {**base, "label": "dog", "class_idx": 1, "score": 0.9, **other}


def test_coco(tmp_path: Path) -> None:
    rows = [row(), row("b", [(0, 0, 200, 100), (5, 5, 6, 6)], label="old owl", class_idx=2)]
    assert export_labels(rows, tmp_path, ["coco"], CLASSES) == {"coco": [tmp_path / "coco.json"]}
    coco = json.loads((tmp_path / "coco.json").read_text())
    assert coco["images"] == [
        {"id": 1, "file_name": "a/x.jpg", "width": 200, "height": 100},
        {"id": 2, "file_name": "b.jpg", "width": 200, "height": 100},
    ]
    assert [
        (a["id"], a["image_id"], a["category_id"], a["bbox"], a["area"]) for a in coco["annotations"]
    ] == [
        (1, 1, 2, [10, 20, 100, 50], 5000),
        (2, 2, 3, [0, 0, 200, 100], 20000),
        (3, 2, 3, [5, 5, 1, 1], 1),
    ]
    assert [c["name"] for c in coco["categories"]] == CLASSES


def test_yolo(tmp_path: Path) -> None:
    export_labels([row()], tmp_path, ["yolo"], CLASSES)
    assert (tmp_path / "labels/a/x.txt").read_text() == "1 0.300000 0.450000 0.500000 0.500000\n"
    assert yaml.safe_load((tmp_path / "data.yaml").read_text())["names"] == dict(enumerate(CLASSES))


def test_voc_counts_pixels_from_one(tmp_path: Path) -> None:
    export_labels([row(file="a/x & y <1>.jpg")], tmp_path, ["voc"], CLASSES)
    root = ElementTree.parse(tmp_path / "Annotations/a/x.xml").getroot()
    assert root.findtext("filename") == "x & y <1>.jpg"
    assert root.findtext("folder") == "a"
    assert root.findtext("size/width") == "200"
    assert root.findtext("object/name") == "dog"
    corners = [root.findtext(f"object/bndbox/{key}") for key in ("xmin", "ymin", "xmax", "ymax")]
    assert corners == ["11", "21", "110", "70"]


def test_filters_drop_boxes_and_photos_without_any() -> None:
    rows = [row("kept", [(0, 0, 50, 20), (0, 0, 90, 9)]), row("unsure", score=0.2), row("none", [])]
    photos, _ = select(rows, CLASSES, LabelOptions(min_score=0.5, min_size=10))
    assert [(p.name, p.boxes) for p in photos] == [("kept", ((0, 0, 50, 20),))]


def test_class_agnostic(tmp_path: Path) -> None:
    options = LabelOptions(class_agnostic=True)
    export_labels([row(), row("b", class_idx=2)], tmp_path, ["yolo", "coco", "voc"], CLASSES, options)
    assert (tmp_path / "labels/b.txt").read_text().startswith("0 ")
    coco = json.loads((tmp_path / "coco.json").read_text())
    assert [c["name"] for c in coco["categories"]] == ["object"]
    assert ElementTree.parse(tmp_path / "Annotations/b.xml").findtext("object/name") == "object"


def test_without_class_names_the_labels_that_occur_are_the_classes() -> None:
    rows = [row(label="7", class_idx=7), row("b", label="3", class_idx=3)]
    photos, names = select(rows, None, LabelOptions())
    assert names == ["3", "7"]
    assert [names[p.category] for p in photos] == ["7", "3"]


def test_no_rows_give_valid_empty_files(tmp_path: Path) -> None:
    export_labels([], tmp_path, ["coco", "yolo", "voc"], CLASSES)
    assert json.loads((tmp_path / "coco.json").read_text())["images"] == []


def test_mistakes_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(FcamError, match=r"'kitti'.*coco"):
        export_labels([], tmp_path, ["kitti"])  # type: ignore[list-item]
    with pytest.raises(FcamError, match="min_score is 7"):
        export_labels([], tmp_path, ["coco"], options=LabelOptions(min_score=7))
