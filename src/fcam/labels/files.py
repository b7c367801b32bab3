"""The formats of labels: COCO json, YOLO txt, Pascal VOC xml and png.

Every writer takes the photos one by one, writes no label files of those that are `kept`, and returns the paths it wrote;
it raises `FcamError` for a folder that cannot be written to and, where it needs one, for a mask that cannot be used. Names
that are not valid UTF-8 stand escaped in the files, as they do in `predictions.json`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import yaml
from PIL import Image

from fcam.errors import escaped
from fcam.files import write_bytes, write_image, write_text
from fcam.labels.photos import Box, LabelledPhoto
from fcam.progress import say

YOLO, ANNOTATION, CLASS_MASK = "labels/{}.txt", "Annotations/{}.xml", "SegmentationClass/{}.png"
OWN_FILES = {
    "yolo": (YOLO,),
    "yolo-seg": (YOLO,),
    "voc": (ANNOTATION,),
    "voc-seg": (CLASS_MASK, ANNOTATION),
}
"""Paths of the files that each photo has of its own, with the photo's name in the braces; coco has none."""
SHARED_FILES = {
    "coco": ("coco.json",),
    "yolo": ("train.txt", "data.yaml"),
    "yolo-seg": ("train.txt", "data.yaml"),
    "voc-seg": ("labelmap.txt",),
}
"""Paths of the files that all photos share."""


def write_coco(photos: Iterable[LabelledPhoto], classes: Sequence[str], out: Path) -> list[Path]:
    """Write `coco.json` (COCO: x, y, width, height and polygons in pixels, ids from 1), an entry a line.

    Where the photo has no mask, `segmentation` is empty and `area` is that of the box.
    """
    images, annotations = [], []
    for number, photo in enumerate(photos, 1):
        image = {"id": number, "file_name": photo.file, "width": photo.width, "height": photo.height}
        images.append(json.dumps(image))
        for box, area, polygon in _outlined(photo):
            annotation = {
                "id": len(annotations) + 1,
                "image_id": number,
                "category_id": photo.category + 1,
                "bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]],
                "area": area,
                "iscrowd": 0,
                "segmentation": [polygon] if polygon else [],
                "score": photo.score,
            }
            # As text at once: a number in a list takes ten times as much memory.
            annotations.append(json.dumps(annotation, allow_nan=False))
    categories = [
        json.dumps({"id": i, "name": name, "supercategory": ""}) for i, name in enumerate(classes, 1)
    ]
    lists = {"images": images, "annotations": annotations, "categories": categories}
    path = out / "coco.json"
    parts = [f'"{key}": [\n' + ",\n".join(entries) + "\n]" for key, entries in lists.items()]
    write_text(path, "{" + ",\n".join(parts) + "}\n")
    return [path]


def _outlined(photo: LabelledPhoto) -> Iterable[tuple[Box, int, list[float]]]:
    """Yield box, area in pixels, and the polygon x, y, x, y, ...; empty where there is no mask."""
    if photo.mask is None:
        yield from ((box, (box[2] - box[0]) * (box[3] - box[1]), []) for box in photo.boxes)
        return
    for region in photo.regions():
        yield region.box, int(region.pixels.sum()), region.polygon().ravel().tolist()


def write_yolo(photos: Iterable[LabelledPhoto], classes: Sequence[str], out: Path) -> list[Path]:
    """Write `labels/NAME.txt` (per box: class, centre x, y, width, height as shares), `train.txt` and `data.yaml`."""

    def shares(photo: LabelledPhoto) -> Iterable[Any]:
        for x0, y0, x1, y1 in photo.boxes:
            box = np.array([(x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0])
            yield box / (photo.width, photo.height, photo.width, photo.height)

    return _write_yolo(photos, classes, out, shares)


def write_yolo_seg(photos: Iterable[LabelledPhoto], classes: Sequence[str], out: Path) -> list[Path]:
    """Write `labels/NAME.txt` (per box: class and the outline's x, y, ... as shares), `train.txt` and `data.yaml`."""

    def shares(photo: LabelledPhoto) -> Iterable[Any]:
        return ((region.polygon() / (photo.width, photo.height)).ravel() for region in photo.regions())

    return _write_yolo(photos, classes, out, shares)


def _write_yolo(
    photos: Iterable[LabelledPhoto],
    classes: Sequence[str],
    out: Path,
    shares: Callable[[LabelledPhoto], Iterable[Any]],
) -> list[Path]:
    paths, listed, unread = [], [], []
    for photo in photos:
        own, sought = YOLO.format(photo.name), _sought(photo.file)
        (listed if own == sought else unread).append((photo.file, sought, own))
        if photo.kept:
            continue
        lines = [f"{photo.category} " + " ".join(f"{s:.6f}" for s in line) + "\n" for line in shares(photo)]
        paths.append(out / YOLO.format(photo.name))
        write_text(paths[-1], "".join(lines))
    if unread:
        file, sought, own = map(escaped, unread[0])
        say(
            f"{len(unread)} photos are left out of train.txt, such as {file}: YOLO would look for its labels in {sought}, and "
            f"they are in {own}; rename photos that share a name and folders called images, and predict into a new folder"
        )
    # A list, not the folder: there, a photo without labels counts as one that shows nothing.
    paths += [out / "train.txt", out / "data.yaml"]
    write_text(paths[-2], "".join(f"./images/{escaped(file)}\n" for file, *_ in listed))
    head = {"train": "train.txt", "val": "train.txt", "names": dict(enumerate(classes))}
    write_text(paths[-1], yaml.safe_dump(head, sort_keys=False, allow_unicode=True))
    return paths


def _sought(file: str) -> str:
    """Return where Ultralytics looks for the labels of `images/FILE`: the last folder called images becomes labels.

    So x.jpg and x.png have one file of labels, and those of a folder images below images/ are sought inside the latter.
    """
    above, _, below = f"/images/{file}".rpartition("/images/")
    return f"{above}/labels/{os.path.splitext(below)[0]}.txt".removeprefix("/")


def write_voc(photos: Iterable[LabelledPhoto], classes: Sequence[str], out: Path) -> list[Path]:
    """Write `Annotations/NAME.xml` (Pascal VOC: pixels counted from 1, both corners inside the box)."""
    return [_write_annotation(photo, classes, out, segmented=False) for photo in photos if not photo.kept]


def _write_annotation(photo: LabelledPhoto, classes: Sequence[str], out: Path, segmented: bool) -> Path:
    root = ElementTree.Element("annotation")
    folder, _, file = photo.file.rpartition("/")
    for key, text in (("folder", folder), ("filename", file)):
        ElementTree.SubElement(root, key).text = escaped(text)
    size = ElementTree.SubElement(root, "size")
    for key, number in (("width", photo.width), ("height", photo.height), ("depth", 3)):
        ElementTree.SubElement(size, key).text = str(number)
    ElementTree.SubElement(root, "segmented").text = str(int(segmented))
    for box in photo.boxes:
        root.append(_voc_object(classes[photo.category], box))
    ElementTree.indent(root)
    path = out / ANNOTATION.format(photo.name)
    write_bytes(path, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n")
    return path


def _voc_object(name: str, box: Box) -> ElementTree.Element:
    element = ElementTree.Element("object")
    for key, text in (("name", name), ("pose", "Unspecified"), ("truncated", "0"), ("difficult", "0")):
        ElementTree.SubElement(element, key).text = escaped(text)
    corners = ElementTree.SubElement(element, "bndbox")
    x0, y0, x1, y1 = box
    for key, number in (("xmin", x0 + 1), ("ymin", y0 + 1), ("xmax", x1), ("ymax", y1)):
        ElementTree.SubElement(corners, key).text = str(number)
    return element


def write_voc_seg(photos: Iterable[LabelledPhoto], classes: Sequence[str], out: Path) -> list[Path]:
    """Write `SegmentationClass/NAME.png` (0 background, class index + 1), `labelmap.txt` and the boxes' xml."""
    colors = _voc_colors()
    paths = []
    for photo in photos:
        if photo.kept:
            continue
        mask = np.zeros((photo.height, photo.width), np.uint8)
        for (x0, y0, x1, y1), pixels in photo.regions():
            mask[y0:y1, x0:x1][pixels] = photo.category + 1
        image = Image.fromarray(mask)
        image.putpalette(colors.tobytes())
        paths.append(out / CLASS_MASK.format(photo.name))
        write_image(paths[-1], image)
        paths.append(_write_annotation(photo, classes, out, segmented=True))
    lines = [
        f"{escaped(name)}:{r},{g},{b}::\n"
        for name, (r, g, b) in zip(["background", *classes], colors, strict=False)
    ]
    paths.append(out / "labelmap.txt")
    write_text(paths[-1], "".join(lines))
    return paths


def _voc_colors() -> np.ndarray:
    """Return Pascal VOC's palette (256, 3): bits 0, 3, 6 of the index are red's from the highest on, and so on."""
    index = np.arange(256)
    colors = np.zeros((256, 3), np.uint8)
    for channel in range(3):
        for bit in range(8):
            if 3 * bit + channel < 8:
                colors[:, channel] |= ((index >> (3 * bit + channel) & 1) << (7 - bit)).astype(np.uint8)
    return colors
