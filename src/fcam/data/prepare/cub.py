"""Caltech-UCSD Birds 200-2011: train and test of the benchmark are the official split, in the order of the image numbers."""

from __future__ import annotations

from pathlib import Path

from fcam.data.images import image_size
from fcam.data.prepare.lists import Lists, find_prefix
from fcam.errors import FcamError

FOLDERS = ("", "images/", "CUB_200_2011/images/", "CUB/", "CUBV2/", "CUBV2/images/")
"""Where images may lie below the root."""
ANNOTATIONS = ("", "CUB_200_2011")
COUNTS = {"train": 5994, "val": 1000, "test": 5794}


def build(root: Path, problems: list[str]) -> tuple[dict[str, Lists], list[str]]:
    """Lists of train and test, and class names, from the five text files of CUB_200_2011.

    Boxes are x, y, x + width, y + height of the official annotation. Raises `FcamError` when a file is missing or
    malformed; images that are missing or cannot be read go to `problems`.
    """
    source = _source(root)
    if source is None:
        return {}, []
    names = _table(source / "images.txt")
    labels, parts = _table(source / "image_class_labels.txt"), _table(source / "train_test_split.txt")
    boxes = _table(source / "bounding_boxes.txt")
    numbers = sorted(names, key=int)
    prefix = find_prefix(root, [names[n] for n in numbers], FOLDERS)
    if prefix is None:
        raise FcamError(f"{source} has the lists of CUB, but no images; unpack all of CUB_200_2011.tgz")
    lists = {"train": Lists(), "test": Lists()}
    missing = []
    for number in numbers:
        image = prefix + names[number]
        try:
            size = image_size(root / image)
            own = lists[{"1": "train", "0": "test"}[parts[number]]]
            label, box = _label(labels[number]), _box(boxes[number])
        except FcamError:
            missing.append(image)
            continue
        except (KeyError, ValueError, OverflowError) as error:
            raise FcamError(
                f"{source} has no usable row for image {number} ({error}); unpack it again"
            ) from error
        own.ids.append(image)
        own.labels.append(label)
        own.sizes.append(size)
        own.localization.append(",".join([image, *map(str, box)]))
    if missing:
        problems.append(f"{len(missing)} images are missing or cannot be read, first {missing[0]}")
    return lists, class_names(root)


def _source(root: Path) -> Path | None:
    """The folder of the text files."""
    return next((root / name for name in ANNOTATIONS if (root / name / "images.txt").is_file()), None)


def class_names(root: Path) -> list[str]:
    """`1 001.Black_footed_Albatross` as "Black footed Albatross", in label order; empty where they are not there."""
    source = _source(root)
    if source is None or not (path := source / "classes.txt").is_file():
        return []
    table = _table(path)
    return [table[n].partition(".")[2].replace("_", " ") or table[n] for n in sorted(table, key=int)]


def _table(path: Path) -> dict[str, str]:
    """Rows `<number> <value>`, each number once."""
    try:
        rows = [
            line.split(maxsplit=1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()
        ]
        table = {number: value.strip() for number, value in rows}
        if len(table) < len(rows) or not all(map(str.isdecimal, table)):
            raise ValueError("a number is given twice, or is none")
        return table
    except (OSError, ValueError) as error:
        raise FcamError(
            f"cannot read {path} as rows of number and value ({error}); unpack it again"
        ) from error


def _label(text: str) -> int:
    """Label from 0 of a class number from 1."""
    if int(text) < 1:
        raise ValueError(f"class {text}")
    return int(text) - 1


def _box(text: str) -> tuple[int, int, int, int]:
    x, y, width, height = (float(word) for word in text.split())
    return int(x), int(y), int(x + width), int(y + height)
