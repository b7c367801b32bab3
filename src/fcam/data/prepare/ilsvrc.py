"""ILSVRC 2012: train by its folders, test from the XML files of the validation images; val is ImageNetV2, by metadata only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from fcam.data.prepare.lists import Lists
from fcam.errors import FcamError

FOLDERS = ("", "ILSVRC/", "ILSVRC/Data/CLS-LOC/", "Data/CLS-LOC/")
XML_FOLDERS = (
    "bbox_val", "bbox_val/val", "ILSVRC2012_bbox_val_v3", "ILSVRC2012_bbox_val_v3/val",
    "ILSVRC/Annotations/CLS-LOC/val", "Annotations/CLS-LOC/val", "Annotation/val", "val",
)  # fmt: skip
NAMES = ("LOC_synset_mapping.txt", "ILSVRC/LOC_synset_mapping.txt", "synset_words.txt")
CLASSES = 1000
COUNTS = {"val": 10_000, "test": 50_000}


class Annotation(NamedTuple):
    """One XML file."""

    name: str
    wnid: str
    size: tuple[int, int]
    boxes: list[tuple[int, int, int, int]]


def build(root: Path, problems: list[str]) -> tuple[dict[str, Lists], list[str]]:
    """Lists of train and test, and class names; what the root does not hold is left out.

    Labels are places in the sorted WordNet ids, as everywhere. Boxes and sizes are those of the XML files, which are the
    frame that the boxes refer to.
    """
    train = next((root / f"{f}train" for f in FOLDERS if (root / f"{f}train").is_dir()), None)
    annotations = _annotations(root, problems)
    names = _names(root)
    wnids = sorted(names) or _folders(train) or sorted({a.wnid for a in annotations})
    if not annotations and train is None:
        return {}, []
    if len(wnids) < CLASSES and not names:
        raise FcamError(
            f"{root} shows {len(wnids)} of {CLASSES} classes, so that labels cannot be told; "
            "unpack all of train, or put LOC_synset_mapping.txt there"
        )
    labels = {wnid: label for label, wnid in enumerate(wnids)}
    unknown = sorted({*_folders(train), *(a.wnid for a in annotations)} - labels.keys())
    if unknown:
        problems.append(
            f"{len(unknown)} classes are not among the {len(labels)} that are named, first {unknown[0]}, and are left out; "
            f"fetch {NAMES[0]} again"
        )
    lists: dict[str, Lists] = {}
    if train is not None:
        lists["train"] = _train(root, train, labels)
    if annotations:
        lists["test"] = _test(root, [a for a in annotations if a.wnid in labels], labels, problems)
    return lists, [names.get(wnid, wnid) for wnid in wnids]


def read_annotation(path: Path) -> Annotation:
    """One XML file of `ILSVRC2012_bbox_val_v3.tgz`; raises `FcamError` when it is malformed or names two classes."""
    try:
        tree = ElementTree.parse(path).getroot()
        size = int(tree.findtext("size/width", "")), int(tree.findtext("size/height", ""))
        found = tree.findall("object")
        wnids = {each.findtext("name", "") for each in found}
        boxes = [_box(each) for each in found]
        (wnid,) = wnids
    except (ElementTree.ParseError, ValueError, OSError) as error:
        raise FcamError(
            f"{path} is no annotation of one class with boxes ({error}); unpack it again"
        ) from error
    return Annotation(path.stem, wnid, size, boxes)


def _box(element: ElementTree.Element) -> tuple[int, int, int, int]:
    x0, y0, x1, y1 = (int(element.findtext(f"bndbox/{k}", "")) for k in ("xmin", "ymin", "xmax", "ymax"))
    return x0, y0, x1, y1


def _annotations(root: Path, problems: list[str]) -> list[Annotation]:
    paths = next(filter(None, (sorted((root / f).glob("ILSVRC2012_val_*.xml")) for f in XML_FOLDERS)), [])
    found = []
    for path in paths:
        try:
            found.append(read_annotation(path))
        except FcamError as error:
            problems.append(str(error))
    return found


def _names(root: Path) -> dict[str, str]:
    """Class names by WordNet id, from rows `n01440764 tench, Tinca tinca`."""
    path = next((root / name for name in NAMES if (root / name).is_file()), None)
    if path is None:
        return {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FcamError(f"cannot read {path} as class names ({error}); fetch it again") from error
    rows = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return {row[0]: row[-1].split(",")[0].strip() for row in rows}


def _folders(train: Path | None) -> list[str]:
    return sorted(path.name for path in train.iterdir() if path.is_dir()) if train else []


def _train(root: Path, train: Path, labels: dict[str, int]) -> Lists:
    lists = Lists()
    for wnid in _folders(train):
        if wnid in labels:
            start = (train / wnid).relative_to(root).as_posix()
            names = sorted(entry.name for entry in os.scandir(train / wnid) if entry.name.endswith(".JPEG"))
            lists.ids += [f"{start}/{name}" for name in names]
            lists.labels += [labels[wnid]] * len(names)
    return lists


def _test(root: Path, annotations: list[Annotation], labels: dict[str, int], problems: list[str]) -> Lists:
    lists, missing = Lists(), []
    places = [f"{folder}val/" for folder in FOLDERS]
    for each in annotations:
        options = [
            p + inner for p in places for inner in (f"{each.name}.JPEG", f"{each.wnid}/{each.name}.JPEG")
        ]
        image = next((option for option in options if (root / option).is_file()), None)
        if image is None:
            missing.append(each.name)
            continue
        lists.ids.append(image)
        lists.labels.append(labels[each.wnid])
        lists.sizes.append(each.size)
        lists.localization += [",".join([image, *map(str, box)]) for box in each.boxes]
    if missing:
        problems.append(f"{len(missing)} annotated images are missing, first val/{missing[0]}.JPEG")
    return lists
