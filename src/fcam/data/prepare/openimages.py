"""OpenImages30k, the benchmark's own subset: its folders and file names say everything."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fcam.data.prepare.lists import Lists

FOLDERS = ("", "OpenImages/")
SPLITS = ("train", "val", "test")
COUNTS = {"train": 29_819, "val": 2_500, "test": 5_000}
MASK = re.compile(r"(?P<image>[0-9a-f]+)_m(?P<mid>.+)_[0-9a-f]{8}\.png")


def build(root: Path, problems: list[str]) -> tuple[dict[str, Lists], list[str]]:
    """Lists of all splits from `<split>/<class>/<image>.jpg` with `<image>_m<class>_<hash>.png` and `<image>_ignore.png`.

    Labels are places in the sorted class ids. As in the benchmark, only the first mask of an image carries the ignore
    file, and sizes are left out. Images are listed in the order of their names, the benchmark's own order being arbitrary.
    """
    prefix = next(
        (f for f in FOLDERS if (root / f / "train").is_dir() and (root / f / "test").is_dir()), None
    )
    if prefix is None:
        return {}, []
    splits = [split for split in SPLITS if (root / prefix / split).is_dir()]
    mids = sorted(
        {entry.name for split in splits for entry in os.scandir(root / prefix / split) if entry.is_dir()}
    )
    lists = {split: Lists() for split in splits}
    for split in splits:
        bare: list[str] = []
        for label, mid in enumerate(mids):
            folder = root / prefix / split / mid
            if folder.is_dir():
                start = f"{prefix}{split}/{mid}/"
                bare += _add(lists[split], start, sorted(os.listdir(folder)), label, mid, problems)
        if bare and split != "train":  # which has no masks in the benchmark either
            problems.append(
                f"{len(bare)} of {len(lists[split].ids)} images of {split} have no mask, first {bare[0]}; "
                "unpack OpenImages_annotations.zip too"
            )
    return lists, mids


def _add(lists: Lists, start: str, names: list[str], label: int, mid: str, problems: list[str]) -> list[str]:
    """Add one class of one split; returns its images without a mask."""
    masks: dict[str, list[str]] = {}
    ignored = {name.removesuffix("_ignore.png") for name in names if name.endswith("_ignore.png")}
    for name in names:
        found = MASK.fullmatch(name)
        if found and found["mid"] == mid:
            masks.setdefault(found["image"], []).append(name)
        elif found:
            problems.append(f"{start}{name} is a mask of another class")
    images = [name.removesuffix(".jpg") for name in names if name.endswith(".jpg")]
    for image in images:
        lists.ids.append(f"{start}{image}.jpg")
        lists.labels.append(label)
        for number, mask in enumerate(masks.get(image, [])):
            ignore = f"{start}{image}_ignore.png" if number == 0 and image in ignored else ""
            lists.localization.append(f"{start}{image}.jpg,{start}{mask},{ignore}")
    unknown = (masks.keys() | ignored) - set(images)
    problems += [f"{start}{image}.jpg is missing, but has masks" for image in sorted(unknown)]
    return [f"{start}{image}.jpg" for image in images if image not in masks]
