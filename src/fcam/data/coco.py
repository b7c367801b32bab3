"""Boxes of a plain folder from COCO json files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from fcam.data.split import OnProblem, Split, check_pixels, checked_box, checked_size
from fcam.errors import cut, shown

PATTERNS = ("boxes*.json", "annotations*.json", "_annotations*.json", "instances*.json")
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What values of the wrong kind, range or depth raise when they are taken for COCO's."""

_Row = tuple[str, list[float] | None, tuple[int, int] | None]
"""Image id, box or None for an image's own entry, and the size that its boxes refer to."""


def files_in(folders: Iterable[Path]) -> list[Path]:
    """List the files in `folders` that are taken for COCO's, by their names."""
    return [
        path
        for folder in dict.fromkeys(folders)
        for pattern in PATTERNS
        for path in sorted(folder.glob(pattern))
    ]


def add_boxes(split: Split, folders: list[Path], on_problem: OnProblem) -> None:
    """Read the boxes of `split`'s images from the COCO files in `folders`; crowd regions are left out.

    An annotation's `bbox` is x, y, width, height; `file_name` may be relative to the data set, the split or
    the class, or the bare name when only one image bears it. Files that name none of the images are passed
    over, and so are boxes of images that lie elsewhere in the data set, whatever their names have in common.
    """
    files = files_in(folders)
    if not files:
        return
    endings = _path_endings(split.image_ids)
    known = {ending: image_id for ending, image_id in endings.items() if image_id is not None}
    boxes: dict[str, list[list[float]]] = {}
    for path in files:
        for image_id, box, size in _rows(path, known, split.root, on_problem):
            rows = boxes.setdefault(image_id, [])
            if box is not None:
                rows.append(box)
            if size is not None and split.sizes.setdefault(image_id, size) != size:
                on_problem(
                    f"{path} gives {cut(image_id)} the size {'x'.join(map(str, size))}, another entry "
                    f"{'x'.join(map(str, split.sizes[image_id]))}, and boxes are scaled by it; keep one of the two"
                )
    if any(boxes.values()):
        split.boxes = {
            image_id: np.array(rows, dtype=np.float64).reshape(-1, 4) for image_id, rows in boxes.items()
        }
        check_pixels(" and ".join(map(str, files)), split.boxes, on_problem)


def _rows(path: Path, known: dict[str, str], root: Path, on_problem: OnProblem) -> list[_Row]:
    """Return a row of every entry about an image of the split."""
    if not path.is_file():  # a pipe would be waited for
        on_problem(f"{path} is not a regular file; move it away or put a COCO file there")
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
        images, rows, shared = _images(content["images"], known, root)
        annotations = content["annotations"]
        if not isinstance(annotations, list):
            raise TypeError("annotations must be a list")
    except (OSError, *_MALFORMED) as error:
        on_problem(
            f"{path} is not a COCO file with images and annotations ({type(error).__name__}: {cut(error)})"
        )
        return []
    for number, names in shared.items():
        on_problem(
            f"{path} gives the id {cut(number)} to {' and to '.join(map(shown, names))}, so that nobody can tell whose boxes "
            "are whose; give each image an id of its own"
        )
    for number, entry in enumerate(annotations):
        try:
            image_id = images.get(str(entry["image_id"]))
            if image_id is not None and not entry.get("iscrowd", 0):
                rows.append((image_id, _box(entry["bbox"]), None))
        except _MALFORMED:
            on_problem(
                f"{path}, annotation {number}: expected image_id and bbox [x, y, width, height], "
                f"got {shown(entry)}"
            )
    return rows


def _images(
    entries: Any, known: dict[str, str], root: Path
) -> tuple[dict[str, str], list[_Row], dict[str, tuple[str, str]]]:
    """Return the split's images by their number in the file, their own rows, and numbers that two images share."""
    images: dict[str, str] = {}
    rows: list[_Row] = []
    owners: dict[str, str] = {}
    shared: dict[str, tuple[str, str]] = {}
    for entry in entries:
        name = str(entry["file_name"])
        image_id = _match(name, known, root)
        number = str(entry["id"] if image_id is not None else entry.get("id"))
        owner = image_id or name
        if owners.setdefault(number, owner) != owner and (image_id is not None or number in images):
            shared[number] = owners[number], owner
        if image_id is not None:
            images[number] = image_id  # some writers number images and quote the numbers later
            size = (
                checked_size(int(entry["width"]), int(entry["height"]))
                if entry.get("width") and entry.get("height")
                else None
            )
            rows.append((image_id, None, size))
    return images, rows, shared


def _box(bbox: Any) -> list[float]:
    x, y, width, height = (float(number) for number in bbox)
    if not (width >= 0 and height >= 0):
        raise ValueError("a box has no negative side")
    return [*checked_box(x, y, x + width, y + height)]


def unmatched(path: Path, image_ids: Sequence[str], root: Path) -> tuple[list[str], list[str]]:
    """Return the names in a COCO file that are of no file below `root`, and those that several images' paths end in.

    Both are in the file's order; a file that cannot be read has none of either.
    """
    try:
        names = [str(entry["file_name"]) for entry in json.loads(path.read_text("utf-8-sig"))["images"]]
    except (OSError, *_MALFORMED):
        return [], []
    endings = _path_endings(image_ids)
    absent, shared = [], []
    for name in names:
        found = next(
            (ending for ending in _endings(name) if ending in endings or os.path.isfile(root / ending)), None
        )
        if found is None:
            absent.append(name)
        elif endings.get(found, found) is None:
            shared.append(name)
    return absent, shared


def _path_endings(image_ids: Sequence[str]) -> dict[str, str | None]:
    """Map every ending of an image's path to that image, or to None where several images have it."""
    endings: dict[str, str | None] = {}
    for image_id in image_ids:
        for ending in _endings(image_id):
            endings[ending] = None if ending in endings else image_id
    return endings | {image_id: image_id for image_id in image_ids}  # a whole path is nobody else's


def _endings(path: str) -> Iterator[str]:
    """The whole path, without its anchor, then what is left of it after each folder."""
    whole = PurePosixPath(path.replace("\\", "/"))
    parts = whole.relative_to(whole.anchor).parts
    return ("/".join(parts[start:]) for start in range(len(parts)))


def _match(file_name: str, known: dict[str, str], root: Path) -> str | None:
    """Return the image that the longest ending of `file_name` names; an absolute path of another machine
    matches too. None where that ending is an image below `root` that is not known: one of another split.
    """
    for ending in _endings(file_name):
        if known.get(ending) != ending and os.path.isfile(root / ending):
            return None
        if ending in known:
            return known[ending]
    return None
