"""The layout of a plain folder: `train/<class>/*`, or `<class>/*` alone, with masks or boxes if any."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path, PurePosixPath

from fcam.data import coco
from fcam.data.images import files_below
from fcam.data.split import SPLITS, MaskFiles, OnProblem, Split, refuse
from fcam.errors import FcamError

_ALIASES = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}
_SHARES = (("train", 0.70), ("val", 0.85), ("test", 1.00))


def read(root: Path, split: str, localization: bool, on_problem: OnProblem = refuse) -> Split:
    """List one split of a plain folder, and with `localization` its masks or boxes.

    Classes are the names of the folders below the split, sorted. Masks mirror the images below `masks/`;
    boxes stand in a COCO json. Raises `FcamError`, or calls `on_problem`, when there are no images or a json
    is malformed.
    """
    found = images_by_split(root)
    if not found:
        raise FcamError(
            f"{root} is no data set: expected metadata/<split>/image_ids.txt, "
            "train/<class>/<image> or <class>/<image>"
        )
    if not found.get(split):
        raise FcamError(f"there is no split {split!r} with images in {root}: found {', '.join(found)}")
    names = class_names(root)
    image_ids = found[split]
    labels = [names.index(_class_of(root, image_id)) for image_id in image_ids]
    listed = Split(root, split, "folder", names, image_ids, labels, exif=True)
    if localization:
        listed.masks = _masks(root, image_ids)
        coco.add_boxes(listed, [root, split_folder(root, split) or root], on_problem)
    return listed


def class_names(root: Path) -> list[str]:
    """Return the sorted names of the class folders of all splits; raises `FcamError` when there are none."""
    names = {_class_of(root, image_id) for ids in images_by_split(root).values() for image_id in ids}
    if not names:
        raise FcamError(
            f"{root} holds no class folders with images; expected train/<class>/<image> or <class>/<image>"
        )
    return sorted(names)


def images_by_split(root: Path) -> dict[str, list[str]]:
    """Return the image ids of every split that has images, as sorted paths relative to `root`."""
    folders = {split: folder for split in SPLITS if (folder := split_folder(root, split))}
    if folders:
        listed = {split: _images(root, folder) for split, folder in folders.items()}
    else:
        listed = {split: [] for split in SPLITS}
        for image_id in _images(root, root):
            listed[split_of(image_id)].append(image_id)
    return {split: ids for split, ids in listed.items() if ids}


def split_folder(root: Path, split: str) -> Path | None:
    """Return the folder of a split, under any of its usual names, or None."""
    return next((root / name for name in _ALIASES.get(split, ()) if (root / name).is_dir()), None)


def split_of(image_id: str) -> str:
    """Return the split of an image in a folder without splits: 70 / 15 / 15 % by the SHA-256 of
    `<class>/<name>`.

    Adding or removing other images never moves an image to another split.
    """
    share = int.from_bytes(hashlib.sha256(image_id.encode()).digest()[:8], "big") / 2**64
    return next(split for split, end in _SHARES if share < end)


def _images(root: Path, folder: Path) -> list[str]:
    """List images that lie in a class folder below `folder`; masks and loose files are none."""
    ids, problems = [], []
    found = files_below(folder, problems)
    if problems:  # training on what is left would be training on another set
        raise FcamError(f"cannot read {problems[0].path}: {problems[0].reason}; check its permissions")
    for path in found:
        parts = path.relative_to(folder).parts
        if len(parts) > 1 and parts[0] != "masks":
            ids.append(path.relative_to(root).as_posix())
    return ids


def _class_of(root: Path, image_id: str) -> str:
    first, second = PurePosixPath(image_id).parts[:2]
    has_splits = any(split_folder(root, split) for split in SPLITS)
    return second if has_splits else first


def _masks(root: Path, image_ids: list[str]) -> dict[str, list[MaskFiles]] | None:
    if not (root / "masks").is_dir():
        return None
    masks = {}
    for image_id in image_ids:
        mask = (root / "masks" / image_id).with_suffix(".png")
        if mask.is_file():
            ignore = mask.with_name(f"{mask.stem}_ignore.png")
            masks[image_id] = [MaskFiles(mask, ignore if ignore.is_file() else None)]
    return masks or None


def same_stem(image_ids: list[str]) -> list[str]:
    """Return images that would share one mask file because only their suffixes differ."""
    stems = Counter(PurePosixPath(image_id).with_suffix("") for image_id in image_ids)
    return [image_id for image_id in image_ids if stems[PurePosixPath(image_id).with_suffix("")] > 1]
