"""Predicted boxes as labels for a detection project: COCO json, YOLO txt, Pascal VOC xml.

The input is what `fcam predict` writes to `predictions.json`: labels are made at the end of a run or long
after it. Photos whose boxes were all filtered out are left out of every format: no label says nothing,
whereas an empty label file would teach a detector that there is nothing to see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import yaml

from fcam.errors import FcamError
from fcam.files import write_bytes, write_json, write_text

LabelFormat = Literal["coco", "yolo", "voc"]
OBJECT = "object"
"""Name of the only class when labels are class-agnostic."""


@dataclass(frozen=True)
class LabelOptions:
    """What becomes a label."""

    class_agnostic: bool = False
    """One class named `object` instead of the predicted class."""
    min_score: float = 0.0
    """Photos whose predicted class is less probable than this, 0 to 1, get no label."""
    min_size: int = 1
    """Boxes whose shorter side has fewer pixels than this are dropped."""


@dataclass(frozen=True)
class LabelledPhoto:
    """One photo with the boxes that passed the filters."""

    file: str
    """Path of the photo below the photos' common folder, with forward slashes."""
    name: str
    """The same without suffix, made unique: the name of a label file."""
    width: int
    height: int
    boxes: tuple[tuple[int, int, int, int], ...]
    """x0, y0, x1, y1 in pixels of the upright photo, x1 and y1 one past the last pixel."""
    category: int
    """Index into the list of class names."""
    score: float


def select(
    rows: Iterable[Mapping[str, Any]], classes: Sequence[str] | None, options: LabelOptions
) -> tuple[list[LabelledPhoto], list[str]]:
    """Apply the filters to rows of `predictions.json`; return the photos with labels and the class names.

    `classes` are the model's; when None, the labels that occur, sorted. Raises `FcamError` for options out of
    range.
    """
    if not 0 <= options.min_score <= 1:
        raise FcamError(f"min_score is {options.min_score}, but a score lies between 0 and 1")
    rows = list(rows)
    occurring = sorted({str(row["label"]) for row in rows})
    names = [OBJECT] if options.class_agnostic else list(classes or occurring)
    photos = []
    for row in rows:
        boxes = tuple(
            (x0, y0, x1, y1)
            for x0, y0, x1, y1 in row["boxes"]
            if min(x1 - x0, y1 - y0) >= max(options.min_size, 1)
        )
        if not boxes or row["score"] < options.min_score:
            continue
        category = int(row["class_idx"]) if classes else occurring.index(str(row["label"]))
        category = 0 if options.class_agnostic else category
        size = (row["width"], row["height"])
        photos.append(LabelledPhoto(row["file"], row["name"], *size, boxes, category, float(row["score"])))
    return photos, names


def write_coco(photos: Sequence[LabelledPhoto], classes: Sequence[str], out: Path) -> list[Path]:
    """Write `coco.json` (COCO detection: bbox x, y, width, height in pixels, ids from 1); return its path."""
    images, annotations = [], []
    for number, photo in enumerate(photos, 1):
        images.append({"id": number, "file_name": photo.file, "width": photo.width, "height": photo.height})
        for x0, y0, x1, y1 in photo.boxes:
            width, height = x1 - x0, y1 - y0
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": photo.category + 1,
                    "bbox": [x0, y0, width, height],
                    "area": width * height,
                    "iscrowd": 0,
                    "segmentation": [],
                    "score": photo.score,
                }
            )
    categories = [{"id": i, "name": name, "supercategory": ""} for i, name in enumerate(classes, 1)]
    path = out / "coco.json"
    write_json(path, {"images": images, "annotations": annotations, "categories": categories})
    return [path]


def write_yolo(photos: Sequence[LabelledPhoto], classes: Sequence[str], out: Path) -> list[Path]:
    """Write `labels/NAME.txt` (per box: class, centre x, y, width, height as shares) and `data.yaml`."""
    paths = []
    for photo in photos:
        lines = []
        for x0, y0, x1, y1 in photo.boxes:
            shares = (
                (x0 + x1) / 2 / photo.width,
                (y0 + y1) / 2 / photo.height,
                (x1 - x0) / photo.width,
                (y1 - y0) / photo.height,
            )
            lines.append(f"{photo.category} " + " ".join(f"{share:.6f}" for share in shares) + "\n")
        paths.append(out / "labels" / f"{photo.name}.txt")
        write_text(paths[-1], "".join(lines))
    head = {"path": ".", "train": "images", "val": "images", "names": dict(enumerate(classes))}
    paths.append(out / "data.yaml")
    write_text(paths[-1], yaml.safe_dump(head, sort_keys=False, allow_unicode=True))
    return paths


def write_voc(photos: Sequence[LabelledPhoto], classes: Sequence[str], out: Path) -> list[Path]:
    """Write `Annotations/NAME.xml` (Pascal VOC: pixels counted from 1, both corners inside the box)."""
    paths = []
    for photo in photos:
        root = ElementTree.Element("annotation")
        folder, _, file = photo.file.rpartition("/")
        for key, text in (("folder", folder), ("filename", file)):
            ElementTree.SubElement(root, key).text = text
        size = ElementTree.SubElement(root, "size")
        for key, number in (("width", photo.width), ("height", photo.height), ("depth", 3)):
            ElementTree.SubElement(size, key).text = str(number)
        ElementTree.SubElement(root, "segmented").text = "0"
        for box in photo.boxes:
            root.append(_voc_object(classes[photo.category], box))
        ElementTree.indent(root)
        paths.append(out / "Annotations" / f"{photo.name}.xml")
        write_bytes(paths[-1], ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n")
    return paths


def _voc_object(name: str, box: tuple[int, int, int, int]) -> ElementTree.Element:
    element = ElementTree.Element("object")
    for key, text in (("name", name), ("pose", "Unspecified"), ("truncated", "0"), ("difficult", "0")):
        ElementTree.SubElement(element, key).text = text
    corners = ElementTree.SubElement(element, "bndbox")
    x0, y0, x1, y1 = box
    for key, number in (("xmin", x0 + 1), ("ymin", y0 + 1), ("xmax", x1), ("ymax", y1)):
        ElementTree.SubElement(corners, key).text = str(number)
    return element


Writer = Callable[[Sequence[LabelledPhoto], Sequence[str], Path], list[Path]]
WRITERS: dict[str, Writer] = {"coco": write_coco, "yolo": write_yolo, "voc": write_voc}


def export_labels(
    rows: Iterable[Mapping[str, Any]],
    out: str | Path,
    formats: Iterable[LabelFormat],
    classes: Sequence[str] | None = None,
    options: LabelOptions | None = None,
) -> dict[str, list[Path]]:
    """Write labels for the rows of `predictions.json` below `out`; return the files written, by format.

    Raises `FcamError` for an unknown format, an option out of range, or a folder that cannot be written to.
    """
    formats = list(formats)
    for name in formats:
        if name not in WRITERS:
            raise FcamError(f"unknown label format {name!r}; take one of {', '.join(WRITERS)}")
    photos, names = select(rows, classes, options or LabelOptions())
    return {name: WRITERS[name](photos, names, Path(out)) for name in formats}
