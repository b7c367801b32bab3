from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from fcam.cli import main
from fcam.data.check import check
from fcam.data.check_report import print_report
from fcam.errors import FcamError


def edit(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    path.write_text("".join(line + "\n" for line in change(path.read_text().splitlines())))


def first_as(new: str) -> Callable[[list[str]], list[str]]:
    return lambda lines: [new, *lines[1:]]


def faults(root: Path) -> dict[str, Callable[[], object]]:
    """Ways to break a copy of the drawn set, by the words the problem must contain."""
    image = root / "images"
    lists = root / "metadata"
    name = "images/val/00/0000.jpg"
    return {
        "train/00/0001.jpg: it does not exist": lambda: (image / "train/00/0001.jpg").unlink(),
        "val/01/0000.jpg: the file is empty": lambda: (image / "val/01/0000.jpg").write_bytes(b""),
        "masks/val/02/0001.png: it is not an image": lambda: (root / "masks/val/02/0001.png").write_text("x"),
        "is 72x72, its list says 72x71": lambda: edit(
            lists / "val/image_sizes.txt", first_as(f"{name},72,71")
        ),
        "is inverted": lambda: edit(lists / "val/localization.txt", first_as(f"{name},40,10,20,30")),
        "leaves the image of 72x72": lambda: edit(
            lists / "val/localization.txt", first_as(f"{name},4,10,20,73")
        ),
        "36x72, its image images/val/00/0000.jpg 72x72: not the same shape": lambda: Image.new(
            "L", (36, 72)
        ).save(root / "masks/val/00/0000.png"),
        "label 3 of images/val/00/0000.jpg is beyond the 3 classes": lambda: edit(
            lists / "val/class_labels.txt", first_as(f"{name},3")
        ),
        "no label for images/val/00/0000.jpg": lambda: edit(
            lists / "val/class_labels.txt", lambda lines: lines[1:]
        ),
        "image_sizes.txt has no row for images/val/00/0000.jpg": lambda: edit(
            lists / "val/image_sizes.txt", lambda lines: lines[1:]
        ),
        "class_labels.txt has a row for extra.jpg": lambda: edit(
            lists / "val/class_labels.txt", lambda lines: [*lines, "extra.jpg,0"]
        ),
        "has a row for extra.jpg, which": lambda: edit(
            lists / "val/localization.txt", lambda lines: [*lines, "extra.jpg,1,1,2,2"]
        ),
        "has no boxes, though": lambda: edit(lists / "val/localization.txt", lambda lines: lines[1:]),
        "localization.txt, line 1: expected": lambda: edit(
            lists / "test/localization.txt", lambda lines: ["x,1,2,3", *lines]
        ),
        "test: images/test/00/0000.jpg is the same file as images/train/00/0002.jpg of train": lambda: (
            shutil.copy(image / "train/00/0002.jpg", image / "test/00/0000.jpg")
        ),
        "test: images/test/00/0000.jpg is the same picture as images/train/00/0002.jpg of train": lambda: (
            Image.open(image / "train/00/0002.jpg").save(image / "test/00/0000.jpg", "PNG")
        ),
        "is the same file as images/train/00/0000.jpg, but the one is stripe and the other ring": lambda: (
            shutil.copy(image / "train/00/0000.jpg", image / "train/01/0000.jpg")
        ),
        "images/train/00/0000.jpg is listed in train too": lambda: [
            edit(lists / "val" / f"{part}.txt", first_as(row))
            for part, row in (
                ("image_ids", "images/train/00/0000.jpg"),
                ("class_labels", "images/train/00/0000.jpg,0"),
                ("image_sizes", "images/train/00/0000.jpg,72,72"),
                ("localization", "images/train/00/0000.jpg,1,1,5,5"),
            )
        ],
        "class checker has no image": lambda: [
            edit(
                lists / "train" / f"{part}.txt", lambda lines: [line for line in lines if "/02/" not in line]
            )
            for part in ("image_ids", "class_labels", "image_sizes")
        ],
        "line 13: 'images/train/00/0000.jpg' is listed again": lambda: edit(
            lists / "train/image_ids.txt", lambda lines: [*lines, lines[0]]
        ),
    }


@pytest.mark.parametrize("words", list(faults(Path())))
def test_every_fault_is_found(wsol_set: Path, words: str) -> None:
    faults(wsol_set)[words]()
    problems = check(wsol_set).problems
    assert any(words in problem for problem in problems), problems


def test_faults_are_gathered_not_raised(wsol_set: Path) -> None:
    (wsol_set / "metadata" / "test" / "class_labels.txt").unlink()
    (wsol_set / "images" / "train" / "00" / "0001.jpg").unlink()
    report = check(wsol_set)
    assert len(report.problems) == 2
    assert [row.split for row in report.rows] == ["train", "val"]


@pytest.mark.parametrize("row", ["{},3", None])
def test_copies_of_which_one_has_no_class_are_only_noted(wsol_set: Path, row: str | None) -> None:
    first, last = "images/train/00/0000.jpg", "images/train/02/0003.jpg"
    shutil.copy(wsol_set / first, wsol_set / last)
    rows = [row.format(last)] if row else []
    edit(wsol_set / "metadata/train/class_labels.txt", lambda lines: [*lines[:-1], *rows])
    report = check(wsol_set)
    assert report.notes == [f"train: {last} is the same file as {first}"]
    (problem,) = report.problems
    assert "is beyond the 3 classes" in problem if row else "has no label for" in problem


def test_ids_that_lead_out_of_the_data_set_are_noted(wsol_set: Path) -> None:
    shutil.rmtree(wsol_set / "metadata_masks")
    for path in (wsol_set / "metadata" / "val").iterdir():
        edit(path, lambda lines: [f"{wsol_set}/{line}" for line in lines])
    report = check(wsol_set)
    assert report.problems == []
    assert report.notes == [
        f"val: 6 of 6 ids lead out of the data set's folder, such as {wsol_set}/images/val/00/0000.jpg; heat maps of these "
        "cannot be saved or scored"
    ]


def test_masks_of_another_size_but_the_same_shape_are_only_noted(wsol_set: Path) -> None:
    Image.new("L", (101, 101), 255).save(wsol_set / "masks" / "val" / "00" / "0000.png")
    report = check(wsol_set)
    assert report.problems == []
    assert "101x101" in report.notes[0]


def test_folder_sets(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("train/cat/a.jpg", "train/cat/a.png", "train/dog/b.png", "val/cow/c.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (8, 9, 3), dtype=np.uint8)).save(tmp_path / name)
    report = check(tmp_path)
    assert report.layout == "plain folder"
    assert report.problems == ["train: class cow has no image"]
    (tmp_path / "masks" / "train" / "cat").mkdir(parents=True)
    Image.new("L", (9, 8)).save(tmp_path / "masks" / "train" / "cat" / "a.png")
    (tmp_path / "annotations.json").write_text("{}")
    problems = check(tmp_path).problems
    assert sum("shares its mask file" in problem for problem in problems) == 2
    assert any("not a COCO file" in problem for problem in problems)


@pytest.mark.parametrize("top", ["train", "."])
def test_class_folders_without_images_are_found(tmp_path: Path, top: str) -> None:
    for name in ("cat", "dog", "owl"):
        (tmp_path / top / name).mkdir(parents=True)
        for i in range(0 if name == "owl" else 3):
            noise = np.random.default_rng([len(name), ord(name[0]), i]).integers(0, 255, (20, 24, 3))
            Image.fromarray(noise.astype(np.uint8)).save(tmp_path / top / name / f"{i}.png")
    (tmp_path / top / "masks").mkdir()
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels/boxes.txt").write_text("")
    problems = [text for text in check(tmp_path).problems if "no class" in text]
    assert problems == [
        f"{Path(top) / 'owl'} holds no image, so it is no class; add its images or remove the folder"
    ]


def put(root: Path, *names: str, size: tuple[int, int] = (20, 24)) -> None:
    """Draw noise, another one under every name."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(list(name.encode())).integers(0, 255, (*size, 3))
        Image.fromarray(noise.astype(np.uint8)).save(root / name)


BESIDE = ("train/cat/a.png", "train/dog/b.png", "val/cat/c.png", "val/dog/d.png")


@pytest.mark.parametrize(
    ("names", "problems", "notes"),
    [
        (
            ("training/cat/x.png",),
            ["train: passed over 1 image in training, since train is there too; put them together"],
            [],
        ),
        (
            ("val/x.png", "val/y.png"),
            ["val: passed over 2 images right in val, such as val/x.png; move them into val/<class>/"],
            [],
        ),
        (("dev/cat/x.png", "dev/x.png"), [], ["passed over 2 images in dev, such as dev/cat/x.png"]),
        (("x.png",), [], ["passed over 1 image right in the data set's folder, such as x.png"]),
        (("masks/train/cat/a.png", "train/masks/x.png", "docs/.x.png"), [], []),
    ],
)
def test_images_that_are_passed_over_are_named(
    tmp_path: Path, names: tuple[str, ...], problems: list[str], notes: list[str]
) -> None:
    put(tmp_path, *BESIDE, *names)
    report = check(tmp_path)
    assert report.problems == problems
    assert len(report.notes) == len(notes)
    assert all(note.startswith(start) for note, start in zip(report.notes, notes, strict=True))


def test_images_that_a_split_reaches_by_a_link_are_not_passed_over(tmp_path: Path) -> None:
    put(tmp_path, *BESIDE, "all/owl/x.png")
    (tmp_path / "train" / "owl").symlink_to(tmp_path / "all" / "owl", target_is_directory=True)
    assert check(tmp_path).notes == []


def test_photos_of_kinds_that_are_not_read_are_named(tmp_path: Path) -> None:
    put(tmp_path, *BESIDE)
    (tmp_path / ".cache").mkdir()
    for name in (
        "train/cat/a.NEF",
        "train/cat/x.HEIC",
        ".cache/y.HEIC",
    ):  # the first of which is there as PNG too
        (tmp_path / name).touch()
    assert check(tmp_path).problems == [
        "passed over 1 that cannot be read, such as train/cat/x.HEIC; convert to JPEG or PNG"
    ]


@pytest.mark.parametrize("name", ["train", "Test"])
def test_a_class_named_as_a_split_is_explained(tmp_path: Path, name: str) -> None:
    put(tmp_path, f"{name}/a.png", "car/b.png")
    words = (
        f"{name} is read as the {name.lower()} split, but its images lie right in it; .* if {name} is a class"
    )
    with pytest.raises(FcamError, match=words):
        check(tmp_path)


def test_a_size_listed_before_the_photo_was_turned_is_explained(tmp_path: Path) -> None:
    put(tmp_path, *BESIDE)
    entry = {"id": 1, "file_name": "val/cat/c.png", "width": 20, "height": 24}
    (tmp_path / "boxes.json").write_text(json.dumps({"images": [entry], "annotations": []}))
    assert check(tmp_path).problems == [
        "val: val/cat/c.png is 24x20, its list says 20x24; correct the list to the size of the photo turned upright by EXIF, "
        "since boxes are scaled by it"
    ]


def test_boxes_of_images_that_are_not_there_are_noted(tmp_path: Path) -> None:
    for split, color in (("train", 10), ("val", 20)):
        (tmp_path / split / "cat").mkdir(parents=True)
        Image.new("RGB", (20, 20), (color, 0, 0)).save(tmp_path / split / "cat" / f"{split}.png")
    entry = {"id": 1, "file_name": "val/cat/val.jpg"}
    content = {"images": [entry], "annotations": [{"image_id": 1, "bbox": [1, 1, 5, 5]}]}
    (tmp_path / "boxes.json").write_text(json.dumps(content))
    assert any("no box of boxes.json is of an image that is there" in note for note in check(tmp_path).notes)
    entry["file_name"] = "val/cat/val.png"
    (tmp_path / "boxes.json").write_text(json.dumps(content))
    assert not any("no box of" in note for note in check(tmp_path).notes)


def photos(root: Path, *image_ids: str) -> None:
    for number, image_id in enumerate(image_ids):
        (root / image_id).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20), (10 * number, 0, 0)).save(root / image_id)


def coco_file(path: Path, *names: str, boxes: int = 1) -> None:
    images = [{"id": number, "file_name": name} for number, name in enumerate(names)]
    annotations = [{"image_id": n, "bbox": [1, 1, 5, 5]} for n in range(len(names)) for _ in range(boxes)]
    path.write_text(json.dumps({"images": images, "annotations": annotations}))


def test_images_without_a_box_or_a_mask_are_counted_where_others_have_one(tmp_path: Path) -> None:
    photos(tmp_path, "train/cat/a.png", "val/cat/b.png", "val/cat/c.png", "val/dog/d.png")
    assert not check(tmp_path).notes
    coco_file(tmp_path / "boxes.json", "val/cat/b.png")
    (tmp_path / "masks/val/cat").mkdir(parents=True)
    for name in ("b", "c"):
        Image.new("L", (20, 20), 255 * (name == "b")).save(tmp_path / f"masks/val/cat/{name}.png")
    assert check(tmp_path).notes == [
        "val: 2 of 3 images have no box, such as val/cat/c.png; box metrics leave them out",
        "val: 1 of 3 images have no mask, such as val/dog/d.png; pixel metrics leave them out",
    ]


def test_masks_that_belong_to_no_image_are_noted_with_the_place_of_one(tmp_path: Path) -> None:
    photos(tmp_path, "val/cat/b.png", "masks/cat/b.png", "masks/val/cat/b.jpg")
    notes = [note for note in check(tmp_path).notes if "masks" in note]
    assert notes == [
        "masks holds 2 files of no image, such as masks/cat/b.png; the mask of val/cat/b.png is masks/val/cat/b.png"
    ]
    photos(tmp_path, "masks/val/cat/b.png", "masks/val/cat/b_ignore.png")
    (tmp_path / "masks/cat/b.png").unlink()
    (tmp_path / "masks/val/cat/b.jpg").unlink()
    assert not [note for note in check(tmp_path).notes if "masks holds" in note]


def test_names_in_a_coco_file_that_reach_no_image_or_several(tmp_path: Path) -> None:
    photos(tmp_path, "train/dog/0.png", "train/cat/a.png", "val/cat/a.png", "val/cat/b.png")
    photos(tmp_path, "val/dog/b.png", "val/dog/c.png")
    coco_file(tmp_path / "boxes.json", "c.png", "gone.png", "a.png", "b.png", "cat/b.png", "val/dog/b.png")
    report = check(tmp_path)
    assert "boxes.json lists 1 image that is not there, such as gone.png" in " ".join(report.notes)
    assert [problem for problem in report.problems if "boxes.json" in problem] == [
        "boxes.json lists 2 images by a name that several have, such as a.png; write their paths from "
        f"{tmp_path.name} as file_name"
    ]
    (tmp_path / "boxes.json").rename(tmp_path / "val/boxes.json")  # there a.png is that of val
    assert "val/boxes.json lists 1 image by" in " ".join(check(tmp_path).problems)


def test_a_path_is_that_image_even_where_it_ends_another(tmp_path: Path) -> None:
    photos(tmp_path, "a/x.png", "z/a/x.png")
    coco_file(tmp_path / "boxes.json", "a/x.png")
    report = check(tmp_path)
    assert not [problem for problem in report.problems if "boxes.json" in problem]
    assert sum(row.boxes for row in report.rows) == 1


def test_boxes_that_stand_twice_are_noted(tmp_path: Path) -> None:
    photos(tmp_path, "val/cat/a.png", "val/cat/b.png")
    coco_file(tmp_path / "boxes.json", "a.png", "b.png")
    assert not [note for note in check(tmp_path).notes if "twice" in note]
    coco_file(tmp_path / "annotations.json", "b.png")
    assert "val: 1 image with the same box twice, such as val/cat/b.png" in " ".join(check(tmp_path).notes)


def test_progress_and_printing(wsol_set: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (wsol_set / "images" / "train" / "00" / "0001.jpg").unlink()
    terminal = io.StringIO()
    monkeypatch.setattr("fcam.progress.console", Console(file=terminal, force_terminal=True, width=100))
    report = check(wsol_set)
    assert "data check" in terminal.getvalue()
    assert "24/24" in terminal.getvalue()
    stream = io.StringIO()
    print_report(report, Console(file=stream, width=200))
    text = stream.getvalue()
    assert "wsolevaluation metadata" in text
    assert "72x72" in text
    assert "1 problem\n" in text
    assert "0001.jpg: it does not exist" in text


def test_names_that_are_not_utf8_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    root = Path(os.fsdecode(b"s\xe9t"))
    for name in (b"a.jpg", b"caf\xe9.jpg", b"caf\n[b].jpg"):
        path = root / "train" / "cat" / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20)).save(path) if name != b"a.jpg" else path.touch()
    stream = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(stream, "utf-8", "strict", write_through=True))
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["data", "check", str(root)]) == 1
    text = stream.getvalue().decode()
    assert r"s\udce9t (plain folder)" in text
    assert r"train: train/cat/caf\udce9.jpg is the same file as train/cat/caf [b].jpg" in text
    assert r"s\udce9t/train/cat/a.jpg: the file is empty" in text


def test_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(FcamError, match="not a folder"):
        check(tmp_path / "gone")
    with pytest.raises(FcamError, match="is no data set"):
        check(tmp_path)


def test_photographs_are_in_order(shared: Path) -> None:
    report = check(shared / "data" / "pets3")
    assert report.problems == []
    assert [row.masks for row in report.rows] == [0, 88, 206]


@pytest.mark.parametrize(
    ("grey", "words"), [(1, "val: every mask is object all over"), (0, "val: no mask shows an object")]
)
def test_masks_that_say_the_same_everywhere_are_found(wsol_set: Path, grey: int, words: str) -> None:
    masks = sorted((wsol_set / "masks" / "val").rglob("*.png"))
    for path in masks[1:]:
        Image.new("L", (72, 72), grey).save(path)
    assert check(wsol_set).problems == []  # one picture may be full, or empty
    Image.new("L", (72, 72), grey).save(masks[0])
    (problem,) = check(wsol_set).problems
    assert problem.startswith(words)
    assert "0000.png" in problem
