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
from fcam.labels.written import Written
from fcam.predict.command import PredictConfig, run_predict

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
    data = yaml.safe_load((tmp_path / "data.yaml").read_text())
    assert data == {"train": "train.txt", "val": "train.txt", "names": dict(enumerate(CLASSES))}
    assert (tmp_path / "train.txt").read_text() == "./images/a/x.jpg\n"


def test_yolo_lists_no_photo_that_would_be_read_with_other_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        row("x"),
        row("x_png", file="x.png"),
        row("unsure", score=0.1),
        row("images/a"),
        row("my images/b"),
    ]
    export_labels(rows, tmp_path, ["yolo"], CLASSES, LabelOptions(min_score=0.5))
    listed = (tmp_path / "train.txt").read_text().splitlines()
    assert listed == ["./images/x.jpg", "./images/my images/b.jpg"]
    for path in listed:  # as Ultralytics does
        assert Path("/labels/".join(str(tmp_path / path).rsplit("/images/", 1))).with_suffix(".txt").exists()
    said = " ".join(capsys.readouterr().err.split())
    assert "2 photos are left out of train.txt, such as x.png" in said
    assert "look for its labels in labels/x.txt, and they are in labels/x_png.txt" in said


def test_yolo_reads_no_labels_for_a_folder_called_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export_labels([row("a/images/x")], tmp_path, ["yolo"], CLASSES)
    assert (tmp_path / "train.txt").read_text() == ""
    said = " ".join(capsys.readouterr().err.split())
    assert "look for its labels in images/a/labels/x.txt, and they are in labels/a/images/x.txt" in said


def test_an_interrupted_export_knows_its_files_again(tmp_path: Path) -> None:
    rows = [row(name) for name in "abc"]

    def stop(done: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_labels(rows, tmp_path, ["voc"], CLASSES, on_photo=stop)
    assert sorted(path.name for path in (tmp_path / "Annotations").iterdir()) == ["a.xml", "b.xml"]
    export_labels(rows, tmp_path, ["voc"], CLASSES, LabelOptions(min_score=1.0))
    assert not list((tmp_path / "Annotations").iterdir())


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


@pytest.mark.parametrize(
    ("label", "label_format"), [("labels/{}.txt", "yolo"), ("Annotations/{}.xml", "voc")]
)
def test_labels_of_a_laxer_export_are_removed_and_those_of_others_stay(
    tmp_path: Path, label: str, label_format: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {
        name: tmp_path / label.format(name) for name in ("sure", "a/unsure", "corrected", "theirs", "past")
    }
    rows = [row("sure"), row("a/unsure", score=0.2), row("corrected", score=0.2)]
    export_labels([*rows, row("past", score=0.2)], tmp_path, [label_format], CLASSES)
    for name in ("corrected", "theirs"):
        paths[name].write_text("by hand")
    strict = LabelOptions(min_score=0.5)
    for _ in range(2):
        export_labels([*rows, row("theirs", score=0.2)], tmp_path, [label_format], CLASSES, strict)
        assert {name for name, path in paths.items() if path.exists()} == paths.keys() - {"a/unsure", "past"}
        said = " ".join(capsys.readouterr().err.split())
        assert "2 label files stay though their photos are left out now" in said
    (tmp_path / "exported.json").write_text("torn")
    for name in ("train.txt", "data.yaml"):
        (tmp_path / name).unlink(missing_ok=True)
    export_labels([row("sure", score=0.2)], tmp_path, [label_format], CLASSES, strict)
    assert paths["sure"].exists()


@pytest.mark.parametrize(
    ("label", "label_format"), [("labels/{}.txt", "yolo"), ("Annotations/{}.xml", "voc")]
)
def test_labels_made_or_corrected_by_hand_are_not_written_over(
    tmp_path: Path, label: str, label_format: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {name: tmp_path / label.format(name) for name in ("a/x", "b", "corrected", "theirs")}
    export_labels([row(), row("b"), row("corrected")], tmp_path, [label_format], CLASSES)
    for name in ("corrected", "theirs"):
        paths[name].write_text("by hand")
    before = paths["b"].read_text()
    for _ in range(2):
        made = export_labels(
            [row(name, label="cat", class_idx=0) for name in paths], tmp_path, [label_format], CLASSES
        )
        assert [path for path in made[label_format] if path in paths.values()] == [paths["a/x"], paths["b"]]
        assert {name for name, path in paths.items() if path.read_text() == "by hand"} == {
            "corrected",
            "theirs",
        }
        assert paths["b"].read_text() != before
        said = " ".join(capsys.readouterr().err.split())
        assert "2 label files stay as they are" in said
    if label_format == "yolo":
        assert "./images/corrected.jpg" in (tmp_path / "train.txt").read_text().splitlines()


@pytest.mark.parametrize(
    ("shared", "label_format"), [("coco.json", "coco"), ("data.yaml", "yolo"), ("train.txt", "yolo")]
)
def test_a_shared_file_of_somebody_else_ends_the_export_before_it_begins(
    tmp_path: Path, shared: str, label_format: Any
) -> None:
    (tmp_path / shared).write_text("mine")
    with pytest.raises(FcamError, match=rf"{shared} was not written by fcam.*move it away"):
        export_labels([row()], tmp_path, [label_format], CLASSES)
    config = PredictConfig(("photos",), "model", tmp_path, export=(label_format,))
    with pytest.raises(FcamError, match=rf"{shared} was not written by fcam"):
        run_predict(config)
    assert [path.name for path in tmp_path.iterdir()] == [shared]
    assert (tmp_path / shared).read_text() == "mine"


def test_a_killed_export_knows_its_files_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def kill(done: int) -> None:
        raise KeyboardInterrupt

    rows = [row(name) for name in "abc"]
    with monkeypatch.context() as patch:
        patch.setattr(Written, "finish", lambda self, names: None)  # nothing runs after a kill
        with pytest.raises(KeyboardInterrupt):
            export_labels(rows, tmp_path, ["yolo"], CLASSES, on_photo=kill)
    assert (tmp_path / "labels/a.txt").exists()
    export_labels(rows, tmp_path, ["yolo"], CLASSES, LabelOptions(class_agnostic=True))
    assert (tmp_path / "labels/a.txt").read_text().startswith("0 ")
    assert "stay" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a\udcff", "b\x01", "c\uffff/x"])
def test_names_that_are_no_text_are_escaped(tmp_path: Path, name: str) -> None:
    made = export_labels([row(name, label=name)], tmp_path, ["coco", "yolo", "voc"])
    shown = ascii(name)[1:-1]
    root = ElementTree.parse(made["voc"][0]).getroot()
    assert f"{root.findtext('folder')}/{root.findtext('filename')}".lstrip("/") == f"{shown}.jpg"
    assert root.findtext("object/name") == shown
    coco = json.loads(made["coco"][0].read_text(encoding="utf-8"))
    assert coco["images"][0]["file_name"] == f"{name}.jpg"
    assert yaml.safe_load(made["yolo"][-1].read_text(encoding="utf-8"))["names"] == {0: name}


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
