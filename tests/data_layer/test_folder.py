from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fcam.data import EvalTransform, classes, folder, open_dataset
from fcam.data.find import find_images
from fcam.data.folder import split_of
from fcam.errors import FcamError


def write_images(root: Path, *names: str, size: tuple[int, int] = (20, 10)) -> Path:
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (number, 0, 0)).save(root / name)
    return root


def test_split_folders(tmp_path: Path) -> None:
    write_images(
        tmp_path, "train/dog/2.png", "train/dog/1.PNG", "train/cat/deep/1.jpg", "valid/dog/9.png", "loose.png"
    )
    (tmp_path / "train" / "dog" / "notes.txt").touch()
    train = open_dataset(tmp_path, "train")
    assert train.classes == classes(tmp_path) == ["cat", "dog"]
    assert train.image_ids == ["train/cat/deep/1.jpg", "train/dog/1.PNG", "train/dog/2.png"]
    assert train.labels == [0, 1, 1]
    val = open_dataset(tmp_path, "val", localization=True)
    assert (val.labels, val.has_boxes, val.has_masks) == ([1], False, False)
    with pytest.raises(FcamError, match=r"no split 'test' with images .* found train, val"):
        open_dataset(tmp_path, "test")


def test_names_that_are_not_utf8_are_photos_too(tmp_path: Path) -> None:
    names = [os.fsdecode(b"c\xfe/x\xff%d.png" % number) for number in range(20)]
    write_images(tmp_path, *names)
    listed = [open_dataset(tmp_path, split).image_ids for split in ("train", "val", "test")]
    assert sorted(image_id for ids in listed for image_id in ids) == sorted(names)


def test_a_flat_folder_is_split_by_name(tmp_path: Path) -> None:
    names = [f"{c}/{i:03d}.png" for c in ("cat", "dog") for i in range(100)]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = {split: open_dataset(tmp_path, split).image_ids for split in ("train", "val", "test")}
    assert sorted(i for ids in found.values() for i in ids) == names
    assert 120 < len(found["train"]) < 160
    assert min(len(found["val"]), len(found["test"])) > 15
    for name in names[::2]:
        (tmp_path / name).unlink()
    assert open_dataset(tmp_path, "val").image_ids == [i for i in found["val"] if i not in names[::2]]
    assert [split_of(name) for name in ("cat/000.png", "dog/099.png", "cat/007.png")] == [
        next(s for s in found if name in found[s]) for name in ("cat/000.png", "dog/099.png", "cat/007.png")
    ]


def test_mirrored_masks(tmp_path: Path) -> None:
    write_images(tmp_path, "test/cat/a.jpg", "test/cat/b.jpg")
    folder = tmp_path / "masks" / "test" / "cat"
    folder.mkdir(parents=True)
    mask, ignore = np.zeros((2, 10, 20), dtype=np.uint8)
    mask[2:5, 3:9], ignore[0:4] = 255, 255
    Image.fromarray(mask).save(folder / "a.png")
    Image.fromarray(ignore).save(folder / "a_ignore.png")
    dataset = open_dataset(tmp_path, "test", localization=True)
    assert dataset.has_masks
    expected = np.where(mask > 0, 1, np.where(ignore > 0, 255, 0))
    assert (dataset[0]["mask"].numpy() == expected).all()
    assert (dataset[1]["mask"] == 255).all()
    assert open_dataset(tmp_path, "test").has_masks is False


def test_a_masks_folder_is_no_class(tmp_path: Path) -> None:
    write_images(tmp_path, *[f"cat/{i}.png" for i in range(30)], "masks/cat/0.png")
    assert classes(tmp_path) == ["cat"]


def coco(root: Path, name: str, images: list[tuple], annotations: list[dict]) -> None:
    entries = [dict(zip(("id", "file_name", "width", "height"), image, strict=False)) for image in images]
    (root / name).write_text(json.dumps({"images": entries, "annotations": annotations}))


def test_coco_boxes(tmp_path: Path) -> None:
    write_images(
        tmp_path, "val/cat/a.jpg", "val/cat/b.jpg", "val/dog/a.jpg", "val/dog/c.jpg", "train/cat/x.jpg"
    )
    coco(
        tmp_path,
        "boxes.json",
        [(1, "val/cat/a.jpg", 40, 20), (2, "dog/a.jpg"), (3, "/elsewhere/b.jpg"), (4, "x.jpg"), (5, "a.jpg")],
        [
            {"image_id": 1, "bbox": [10, 4, 20, 8]},
            {"image_id": 1, "bbox": [0, 0, 40, 20], "iscrowd": 1},
            {"image_id": 2, "bbox": [1, 2, 3, 4]},
            {"image_id": 2, "bbox": [5, 5, 5, 5]},
            {"image_id": 4, "bbox": [1, 1, 1, 1]},
            {"image_id": 5, "bbox": [9, 9, 1, 1]},
        ],
    )
    dataset = open_dataset(tmp_path, "val", EvalTransform(20), localization=True)
    boxes = {i: item["boxes"].tolist() for i, item in zip(dataset.image_ids, dataset, strict=True)}
    assert boxes == {
        "val/cat/a.jpg": [[5, 4, 15, 12]],
        "val/cat/b.jpg": [],
        "val/dog/a.jpg": [[1, 4, 4, 12], [5, 10, 10, 20]],
        "val/dog/c.jpg": [],
    }
    assert open_dataset(tmp_path, "val").has_boxes is False


def test_coco_with_a_byte_order_mark_and_in_shares(tmp_path: Path) -> None:
    write_images(tmp_path, "val/cat/a.jpg")
    coco(tmp_path, "boxes.json", [(1, "a.jpg")], [{"image_id": 1, "bbox": [1, 2, 3, 4]}])
    file = tmp_path / "boxes.json"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())  # as Windows writes UTF-8
    assert open_dataset(tmp_path, "val", localization=True)[0]["boxes"].tolist() == [[1, 2, 4, 6]]
    coco(tmp_path, "boxes.json", [(1, "a.jpg")], [{"image_id": 1, "bbox": [0.125, 0.25, 0.5, 0.5]}])
    with pytest.raises(FcamError, match="boxes.json gives boxes as shares.*0.125, 0.25, 0.625, 0.75"):
        open_dataset(tmp_path, "val", localization=True)


def test_boxes_of_another_splits_image_of_the_same_name_are_not_taken(tmp_path: Path) -> None:
    names = [f"{split}/{c}/1.jpg" for split in ("train", "val", "test") for c in ("cat", "dog")]
    write_images(tmp_path, *names)
    boxed = [
        (1, "test/cat/1.jpg"),
        (2, str(tmp_path / "test" / "dog" / "1.jpg")),
        (3, "/old/place/val/dog/1.jpg"),
    ]
    coco(tmp_path, "boxes.json", boxed, [{"image_id": i, "bbox": [i, i, 5, 5]} for i in (1, 2, 3)])
    found = {}
    for split in ("train", "val", "test"):
        dataset = open_dataset(tmp_path, split, localization=True)
        found |= {i: rows[0, 0] for i, rows in (dataset.split.boxes or {}).items() if len(rows)}
    assert found == {"test/cat/1.jpg": 1, "test/dog/1.jpg": 2, "val/dog/1.jpg": 3}


def test_a_split_whose_images_have_no_boxes_has_none(tmp_path: Path) -> None:
    write_images(tmp_path, "val/cat/1.jpg", "val/dog/2.jpg")
    coco(tmp_path, "boxes.json", [(1, "1.jpg"), (2, "2.jpg")], [])
    assert open_dataset(tmp_path, "val", localization=True).has_boxes is False
    coco(tmp_path, "boxes.json", [(1, "1.jpg"), (2, "2.jpg")], [{"image_id": "2", "bbox": [1, 1, 5, 5]}])
    assert open_dataset(tmp_path, "val", localization=True).has_boxes is True


@pytest.mark.parametrize("second", ["val/cat/b.jpg", "elsewhere/z.jpg"])
def test_images_of_a_coco_file_that_share_an_id_are_refused(tmp_path: Path, second: str) -> None:
    write_images(tmp_path, "val/cat/a.jpg", "val/cat/b.jpg")
    box = {"image_id": 1, "bbox": [1, 1, 5, 5]}
    coco(tmp_path, "boxes.json", [(1, "val/cat/a.jpg"), (1, second)], [box])
    with pytest.raises(FcamError, match=rf"gives the id 1 to 'val/cat/a.jpg' and to '{second}'"):
        open_dataset(tmp_path, "val", localization=True)
    coco(
        tmp_path, "boxes.json", [(1, "val/cat/a.jpg"), (1, "a.jpg"), (2, "no/1.jpg"), (2, "no/2.jpg")], [box]
    )
    assert open_dataset(tmp_path, "val", localization=True)[0]["boxes"].tolist() == [[1, 1, 6, 6]]


def test_two_sizes_of_an_image_in_coco_files_are_refused(tmp_path: Path) -> None:
    write_images(tmp_path, "val/cat/a.jpg")
    box = {"image_id": 1, "bbox": [2, 2, 4, 4]}
    coco(tmp_path, "boxes1.json", [(1, "a.jpg", 40, 20)], [box])
    coco(tmp_path, "boxes2.json", [(1, "a.jpg", 20, 10)], [box])
    words = r"boxes2.json gives val/cat/a.jpg the size 20x10, another entry 40x20"
    with pytest.raises(FcamError, match=words):
        open_dataset(tmp_path, "val", localization=True)
    coco(tmp_path, "boxes2.json", [(1, "a.jpg", 40, 20)], [box])
    assert open_dataset(tmp_path, "val", localization=True).split.with_boxes() == ["val/cat/a.jpg"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not a COCO file"),
        ("[]", "not a COCO file"),
        (
            '{"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [{"image_id": 1, "bbox": [1, 2]}]}',
            "annotation 0",
        ),
    ],
)
def test_malformed_coco(tmp_path: Path, text: str, words: str) -> None:
    write_images(tmp_path, "val/cat/a.jpg")
    (tmp_path / "val" / "_annotations.coco.json").write_text(text)
    with pytest.raises(FcamError, match=words):
        open_dataset(tmp_path, "val", localization=True)


def test_photos_in_folders_are_turned_upright(tmp_path: Path) -> None:
    write_images(tmp_path, "train/cat/a.jpg")
    exif = Image.Exif()
    exif[0x0112] = 8
    Image.new("RGB", (20, 10)).save(tmp_path / "train" / "cat" / "a.jpg", exif=exif)
    assert open_dataset(tmp_path, "train")[0]["image"].shape == (3, 20, 10)


def test_images_without_class_folder(tmp_path: Path) -> None:
    write_images(tmp_path, "train/a.jpg", "b.jpg")
    with pytest.raises(FcamError, match="images lie right in it"):
        open_dataset(tmp_path, "train")
    with pytest.raises(FcamError, match="no class folders"):
        classes(tmp_path)


@pytest.mark.parametrize(
    "names", [("Train", "Val", "Test"), ("TRAIN", "Validation", "TEST"), ("training", "valid", "Testing")]
)
def test_split_folders_in_any_case_are_no_classes(tmp_path: Path, names: tuple[str, str, str]) -> None:
    write_images(
        tmp_path, *(f"{name}/{c}/{i}.png" for name in names for c in ("cat", "dog") for i in range(2))
    )
    mask = tmp_path / "masks" / names[2] / "cat" / "0.png"
    mask.parent.mkdir(parents=True)
    Image.new("L", (20, 10), 255).save(mask)
    for split, name in zip(("train", "val", "test"), names, strict=True):
        found = open_dataset(tmp_path, split, localization=True)
        assert (found.classes, found.labels) == (["cat", "dog"], [0, 0, 1, 1])
        assert found.image_ids[0] == f"{name}/cat/0.png"
        assert found.has_masks == (split == "test")


def test_one_level_too_high_is_refused(tmp_path: Path) -> None:
    write_images(tmp_path, "images/train/cat/0.png", "images/train/dog/0.png", "images/test/cat/1.png")
    with pytest.raises(FcamError, match=r"no folder named train, but .*images has; give that folder"):
        open_dataset(tmp_path, "train")
    assert open_dataset(tmp_path / "images", "train").classes == ["cat", "dog"]


def test_links_to_folders_are_followed_and_loops_are_not(tmp_path: Path) -> None:
    store = write_images(tmp_path / "store", "pool/cats/0.png", "pool/dogs/0.png", "pool/dogs/1.png")
    train = tmp_path / "set" / "train"
    train.mkdir(parents=True)
    (train / "cat").symlink_to(store / "pool" / "cats")
    (train / "dog").symlink_to(store / "pool" / "dogs", target_is_directory=True)
    (store / "pool" / "dogs" / "again").symlink_to(train)
    (store / "pool" / "cats" / "up").symlink_to(store / "pool" / "cats")
    found = open_dataset(tmp_path / "set", "train")
    assert found.image_ids == ["train/cat/0.png", "train/dog/0.png", "train/dog/1.png"]
    assert found.classes == ["cat", "dog"]


def test_a_class_may_be_called_masks_in_a_split(tmp_path: Path) -> None:
    write_images(tmp_path, "train/masks/a.png", "train/none/b.png", "masks/train/none/b.png")
    found = open_dataset(tmp_path, "train", localization=True)
    assert found.classes == ["masks", "none"]
    assert found.image_ids == ["train/masks/a.png", "train/none/b.png"]
    assert list(found.split.masks or {}) == ["train/none/b.png"]
    assert not folder.empty_classes(tmp_path)
    assert not folder.passed_over(tmp_path)


@pytest.mark.parametrize("left", ["predictions.json", "predictions.jsonl"])
def test_pictures_of_an_earlier_prediction_are_not_photos(tmp_path: Path, left: str) -> None:
    write_images(tmp_path, "a.jpg", "out/overlays/a.jpg", "out/masks/a.png", "out/own/c.jpg", "masks/b.jpg")
    (tmp_path / "out" / left).write_text("{}")
    found, problems = find_images(tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in found] == [
        "a.jpg",
        "masks/b.jpg",
        "out/own/c.jpg",
    ]
    assert not problems
    named, _ = find_images([tmp_path / "out" / "overlays", tmp_path / "out" / "masks" / "a.png"])
    assert [path.name for path in named] == ["a.jpg", "a.png"]
