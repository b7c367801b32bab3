"""The layout of a plain folder: `train/<class>/*`, or `<class>/*` alone, with masks or boxes if any."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from fcam.data import coco
from fcam.data.find import files_below
from fcam.data.split import SPLITS, MaskFiles, OnProblem, Split, refuse
from fcam.errors import FcamError

_ALIASES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
_SHARES = (("train", 0.70), ("val", 0.85), ("test", 1.00))


def read(root: Path, split: str, localization: bool, on_problem: OnProblem = refuse) -> Split:
    """List one split of a plain folder, and with `localization` its masks or boxes.

    Classes are the names of the folders below the split, sorted. Masks mirror the images below `masks/`;
    boxes stand in a COCO json. Raises `FcamError`, or calls `on_problem`, when there are no images or a json
    is malformed.
    """
    found = images_by_split(root)
    if not found.get(split):
        raise FcamError(_why_none(root, split, found))
    names = class_names(root)
    image_ids = found[split]
    number, level = {name: label for label, name in enumerate(names)}, _class_level(root)
    labels = [number[PurePosixPath(image_id).parts[level]] for image_id in image_ids]
    listed = Split(root, split, "folder", names, image_ids, labels, exif=True)
    if localization:
        listed.masks = _masks(root, image_ids)
        coco.add_boxes(listed, [root, split_folder(root, split) or root], on_problem)
    return listed


def _why_none(root: Path, split: str, found: Collection[str]) -> str:
    """Say why a split has no images, where `found` are the splits that have some."""
    for name in (split,) if found else SPLITS:
        folder = split_folder(root, name)
        if folder is not None and any(path.parent == folder for path in files_below(folder)):
            return (
                f"{folder} is read as the {name} split, but its images lie right in it; move them into "
                f"{folder.name}/<class>/, or rename the folder if {folder.name} is a class"
            )
    if found:
        return f"there is no split {split!r} with images in {root}: found {', '.join(found)}"
    return (
        f"{root} is no data set: expected metadata/<split>/image_ids.txt, "
        "train/<class>/<image> or <class>/<image>"
    )


def class_names(root: Path) -> list[str]:
    """Return the sorted names of the class folders of all splits; raises `FcamError` when there are none."""
    level = _class_level(root)
    names = {
        PurePosixPath(image_id).parts[level] for ids in images_by_split(root).values() for image_id in ids
    }
    if not names:
        raise FcamError(
            f"{root} holds no class folders with images; expected train/<class>/<image> or <class>/<image>"
        )
    return sorted(names)


def empty_classes(root: Path) -> list[Path]:
    """Return the folders that stand where classes stand and hold no image, so that reading leaves them out.

    Beside classes that stand in no split other things may lie, too: there a folder counts only when nothing is in it.
    """
    splits = [folder for split in SPLITS if (folder := split_folder(root, split))]
    names = {*class_names(root), "masks"}
    return [
        path
        for top in splits or [root]
        for path in sorted(top.iterdir())
        if path.is_dir() and path.name not in names and not path.name.startswith(".")
        if splits or not any(path.iterdir())
    ]


def passed_over(root: Path) -> dict[Path, list[Path]]:
    """Return the images that no split lists and that are no masks, by the split's or other folder that holds them.

    Images right in `root` are under `root`; those that a split reaches by a link are listed.
    """
    read = {os.path.realpath(root / image_id) for ids in images_by_split(root).values() for image_id in ids}
    found: dict[Path, list[Path]] = {}
    for path in files_below(root):
        top, *below = path.relative_to(root).parts
        if top != "masks" and os.path.realpath(path) not in read:
            found.setdefault(root / top if below else root, []).append(path)
    return found


def split_named(name: str) -> str | None:
    """Return the split that a folder of this name holds, in any case, or None."""
    return next((split for split, aliases in _ALIASES.items() if name.lower() in aliases), None)


def images_by_split(root: Path) -> dict[str, list[str]]:
    """Return the image ids of every split that has images, as sorted paths relative to `root`."""
    folders = {split: folder for split in SPLITS if (folder := split_folder(root, split))}
    if folders:
        listed = {split: _images(root, folder) for split, folder in folders.items()}
    else:
        listed = {split: [] for split in SPLITS}
        found = _images(root, root)
        _check_level(root, found)
        for image_id in found:
            listed[split_of(image_id)].append(image_id)
    return {split: ids for split, ids in listed.items() if ids}


def split_folder(root: Path, split: str) -> Path | None:
    """Return the folder of a split, under any of its usual names in any case, or None."""
    aliases = _ALIASES.get(split, ())
    exact = next((root / name for name in aliases if (root / name).is_dir()), None)
    if exact is not None or not root.is_dir():
        return exact
    named = {path.name.lower(): path for path in sorted(root.iterdir(), reverse=True)}
    return next((named[name] for name in aliases if name in named and named[name].is_dir()), None)


def split_of(image_id: str) -> str:
    """Return the split of an image in a folder without splits: 70 / 15 / 15 % by the SHA-256 of
    `<class>/<name>`.

    Adding or removing other images never moves an image to another split.
    """
    share = int.from_bytes(hashlib.sha256(os.fsencode(image_id)).digest()[:8], "big") / 2**64
    return next(split for split, end in _SHARES if share < end)


def _images(root: Path, folder: Path) -> list[str]:
    """List images that lie in a class folder below `folder`; masks and loose files are none."""
    ids, problems = [], []
    found = files_below(folder, problems)
    if problems:  # training on what is left would be training on another set
        raise FcamError(f"cannot read {problems[0].path}: {problems[0].reason}; check its permissions")
    for path in found:
        parts = path.relative_to(folder).parts
        if len(parts) > 1 and (folder != root or parts[0] != "masks"):  # in a split it is a class
            ids.append(path.relative_to(root).as_posix())
    return ids


def _class_level(root: Path) -> int:
    """Which folder of an image id names the class: the first, or the second where splits come before it."""
    return 1 if any(split_folder(root, split) for split in SPLITS) else 0


def _check_level(root: Path, image_ids: list[str]) -> None:
    """Raise `FcamError` where the only class would be a folder that holds the splits: one level too high."""
    tops = {PurePosixPath(image_id).parts[0] for image_id in image_ids}
    if len(tops) == 1 and split_folder(inside := root / tops.pop(), "train"):
        raise FcamError(f"{root} has no folder named train, but {inside} has; give that folder")


def _masks(root: Path, image_ids: list[str]) -> dict[str, list[MaskFiles]] | None:
    if not (root / "masks").is_dir():
        return None
    masks = {}
    for image_id in image_ids:
        mask = mask_of(root, image_id)
        if mask.is_file():
            ignore = mask.with_name(f"{mask.stem}_ignore.png")
            masks[image_id] = [MaskFiles(mask, ignore if ignore.is_file() else None)]
    return masks or None


def mask_of(root: Path, image_id: str) -> Path:
    """Return where the mask of an image would lie."""
    return (root / "masks" / image_id).with_suffix(".png")


def same_stem(image_ids: list[str]) -> list[str]:
    """Return images that would share one mask file because only their suffixes differ."""
    stems = Counter(PurePosixPath(image_id).with_suffix("") for image_id in image_ids)
    return [image_id for image_id in image_ids if stems[PurePosixPath(image_id).with_suffix("")] > 1]
