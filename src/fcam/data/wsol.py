"""The layout of the WSOL benchmark: `metadata/<split>/{image_ids,class_labels,image_sizes,localization}.txt`.

Choe et al., Evaluating Weakly Supervised Object Localization Methods Right, CVPR 2020 (CUB, ILSVRC,
OpenImages).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np

from fcam.data.split import (
    SPLITS,
    MaskFiles,
    OnProblem,
    Split,
    check_pixels,
    checked_box,
    checked_size,
    refuse,
)
from fcam.errors import FcamError, cut, shown

LISTS = ("image_ids", "class_labels", "image_sizes", "localization")

MAX_DIGITS = 6
"""A label or class number with more digits is a slip; without names, a list of so many classes would be made."""

Value = TypeVar("Value")


def metadata_folder(root: Path, metadata: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the folder that holds the splits' lists, or None when `root` is not in this layout.

    `metadata` names it; otherwise `root/metadata`, `root/metadata_masks` and `root` are looked at. Raises
    `FcamError` when `metadata` holds no lists.
    """
    candidates = [root / "metadata", root / "metadata_masks", root] if metadata is None else [Path(metadata)]
    for folder in candidates:
        if splits_in(folder):
            return folder
    if metadata is not None:
        raise FcamError(
            f"{metadata} holds no lists: expected {metadata}/<split>/image_ids.txt "
            "for at least one of train, val, test"
        )
    return None


def splits_in(lists: Path) -> list[str]:
    """Return the splits for which the folder of lists has an `image_ids.txt`."""
    return [split for split in SPLITS if (lists / split / "image_ids.txt").is_file()]


def read(
    root: Path,
    split: str,
    lists: Path,
    localization: bool,
    own_lists: bool = False,
    on_problem: OnProblem = refuse,
) -> Split:
    """Read the lists of one split; images and masks are named relative to `root`.

    `localization` also reads sizes, boxes and masks: of `lists`, and of `root/metadata_masks` unless the
    lists were named by the user (`own_lists`). Raises `FcamError`, or calls `on_problem`, with file, line
    number and line.
    """
    if split not in splits_in(lists):
        raise FcamError(
            f"there is no split {split!r} in {lists}: found {', '.join(splits_in(lists)) or 'none'}; "
            f"a split is a folder with image_ids.txt"
        )
    folder = lists / split
    image_ids = read_ids(folder, on_problem)
    labels = _labels(folder, image_ids, on_problem)
    found = Split(
        root,
        split,
        "wsol",
        class_names(root, lists),
        image_ids,
        [labels.get(i, -1) for i in image_ids],
        exif=False,
    )
    for image_id, label in zip(image_ids, found.labels, strict=True):
        if label >= len(found.classes):
            on_problem(
                f"{folder / 'class_labels.txt'}: label {shown(label)} of {cut(image_id)} is beyond "
                f"the {len(found.classes)} classes"
            )
    if localization:
        found.sizes = read_sizes(folder, on_problem)
        for source in dict.fromkeys([lists] if own_lists else [lists, root / "metadata_masks"]):
            _add_localization(found, source / split / "localization.txt", on_problem)
    return found


def read_ids(folder: Path, on_problem: OnProblem = refuse) -> list[str]:
    """Return the image ids of a split in list order, each once."""
    lines: dict[str, int] = {}
    for number, line in _lines(folder / "image_ids.txt"):
        image_id = _path(line)
        if image_id in lines:
            on_problem(
                f"{folder / 'image_ids.txt'}, line {number}: {shown(line)} is listed again "
                f"(first on line {lines[image_id]})"
            )
        lines.setdefault(image_id, number)
    if not lines:
        on_problem(f"{folder / 'image_ids.txt'} lists no image")
    return list(lines)


def read_labels(folder: Path, on_problem: OnProblem = refuse) -> dict[str, int]:
    """Return the label, counted from 0, of every image listed in `class_labels.txt`."""

    def label(text: str) -> int:
        if not text.isdecimal() or len(text) > MAX_DIGITS:
            raise ValueError
        return int(text)

    return _one_each(folder / "class_labels.txt", "<image>,<label from 0>", label, on_problem)


def read_sizes(folder: Path, on_problem: OnProblem = refuse) -> dict[str, tuple[int, int]]:
    """Return (width, height) of every image listed in `image_sizes.txt`; the file may be empty or missing."""

    def size(width: str, height: str) -> tuple[int, int]:
        return checked_size(int(width), int(height))

    path = folder / "image_sizes.txt"
    return _one_each(path, "<image>,<width>,<height>", size, on_problem) if path.is_file() else {}


def class_names(root: Path, lists: Path) -> list[str]:
    """Return the names of `classes.txt`, beside the lists or in `root`, or else the labels 0..K-1 as text."""
    for path in (lists / "classes.txt", root / "classes.txt"):
        if path.is_file():
            return read_class_names(path)
    highest = -1
    for split in splits_in(lists):
        if (lists / split / "class_labels.txt").is_file():
            highest = max(highest, *read_labels(lists / split, on_problem=lambda sentence: None).values(), -1)
    return [str(label) for label in range(highest + 1)]


def read_class_names(path: Path) -> list[str]:
    """Return the class names of a file with one name a line, or one number (from 0 or 1, in any order) and
    name.
    """
    lines = [line for _, line in _lines(path)]
    pairs = [line.split(maxsplit=1) for line in lines]
    if pairs and all(len(p) == 2 and p[0].isdecimal() and len(p[0]) <= MAX_DIGITS for p in pairs):
        names = {int(number): name for number, name in pairs}
        first = min(names)
        if first in (0, 1) and sorted(names) == list(range(first, first + len(pairs))):
            return [names[number] for number in sorted(names)]
    return lines


def _labels(folder: Path, image_ids: list[str], on_problem: OnProblem) -> dict[str, int]:
    labels = read_labels(folder, on_problem)
    for image_id in image_ids:
        if image_id not in labels:
            on_problem(
                f"{folder / 'class_labels.txt'} has no label for {cut(image_id)}, which image_ids.txt lists"
            )
    return labels


def _add_localization(found: Split, path: Path, on_problem: OnProblem) -> None:
    """Read boxes or masks, told apart by the first line, into `found`."""
    first = next(iter(_lines(path)), None) if path.is_file() else None
    if first is None:
        return
    known = set(found.image_ids)
    if _is_box_row(first[1]):
        boxes: dict[str, list[tuple[float, ...]]] = {}
        for image_id, box in _parsed(path, "<image>,<x0>,<y0>,<x1>,<y1>", _box, on_problem):
            boxes.setdefault(image_id, []).append(box)
        found.boxes = {image_id: np.array(rows, dtype=np.float64) for image_id, rows in boxes.items()}
        check_pixels(str(path), found.boxes, on_problem)
        annotated = found.boxes.keys()
    else:
        masks: dict[str, list[MaskFiles]] = {}

        def files_of(mask: str, ignore: str) -> MaskFiles:
            if not mask:
                raise ValueError
            return MaskFiles(found.root / _path(mask), found.root / _path(ignore) if ignore else None)

        for image_id, files in _parsed(
            path, "<image>,<mask file>,<ignore file or nothing>", files_of, on_problem
        ):
            masks.setdefault(image_id, []).append(files)
        found.masks = masks
        annotated = masks.keys()
    for image_id in annotated - known:
        on_problem(f"{path} has a row for {cut(image_id)}, which image_ids.txt does not list")


def _is_box_row(line: str) -> bool:
    """In a box's row, however malformed, the last but one field is a number; in a mask's row a file name."""
    try:
        float(line.rsplit(",", 2)[-2])
    except (ValueError, IndexError):
        return False
    return True


def _box(x0: str, y0: str, x1: str, y1: str) -> tuple[float, ...]:
    return checked_box(float(x0), float(y0), float(x1), float(y1))


def _one_each(path: Path, row: str, parse: Callable[..., Value], on_problem: OnProblem) -> dict[str, Value]:
    """Return the value of each image, of which it may have but one; otherwise as `_parsed`."""
    found: dict[str, Value] = {}
    for image_id, value in _parsed(path, row, parse, on_problem):
        if found.setdefault(image_id, value) != value:
            on_problem(
                f"{path} has both {shown(found[image_id])} and {shown(value)} for {cut(image_id)}; keep one row an image"
            )
    return found


def _parsed(
    path: Path, row: str, parse: Callable[..., Value], on_problem: OnProblem
) -> Iterator[tuple[str, Value]]:
    """Yield (image id, parsed value) of each line like `row`; commas before the last fields belong to the
    image id.
    """
    fields = row.count(",")
    for number, line in _lines(path):
        image_id, *texts = line.rsplit(",", fields)
        try:
            yield _path(image_id.rstrip()), parse(*(text.strip() for text in texts))
        except (ValueError, TypeError):
            on_problem(f"{path}, line {number}: expected {row}, got {shown(line)}")


def _path(text: str) -> str:
    """A path as a list has it, with the slashes of every system: lists that were written on Windows have others."""
    return text.replace("\\", "/")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, line) without surrounding space; blank lines are passed over."""
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe would be waited for
        raise FcamError(f"cannot read {path}: it is not a regular file; check the data set's lists")
    try:
        with open(path, encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line.strip()
    except OSError as error:
        raise FcamError(
            f"cannot read {path}: {(error.strerror or str(error)).lower()}; check the data set's lists"
        ) from error
    except UnicodeDecodeError as error:
        raise FcamError(f"cannot read {path}: it is not UTF-8 text ({error.reason})") from error
