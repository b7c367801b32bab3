"""Whether the boxes and masks of a plain folder reach the images that they were drawn for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fcam.data import coco, folder
from fcam.data.check_report import Report
from fcam.data.find import files_below
from fcam.data.split import Split


def check_truth(root: Path, splits: Sequence[Split], report: Report) -> None:
    """Report boxes and masks that no image of the folder takes up, and images that have none though others do.

    A name in a COCO file that several images bear is a problem, since its boxes are lost; all else may be meant.
    """
    _check_boxes(root, splits, report)
    _check_masks(root, splits, report)
    for split in splits:
        for kind, having in (("box", split.with_boxes()), ("mask", split.with_masks())):
            without = sorted(set(split.image_ids) - set(having))
            if having and without and split.name != "train":  # whose truth nothing reads
                metrics = "box" if kind == "box" else "pixel"
                report.notes.append(
                    f"{split.name}: {len(without)} of {len(split.image_ids)} images have no {kind}, such as {without[0]}; "
                    f"{metrics} metrics leave them out"
                )
        _check_twice(split, report)


def _check_boxes(root: Path, splits: Sequence[Split], report: Report) -> None:
    by_place = {folder.split_folder(root, split.name) or root: split.image_ids for split in splits}
    by_place[root] = [image_id for split in splits for image_id in split.image_ids]
    files = [(path, ids) for place, ids in by_place.items() for path in coco.files_in([place])]
    if files and not any(split.boxes for split in splits):
        report.notes.append(
            f"no box of {', '.join(path.name for path, _ in files)} is of an image that is there; compare file_name in it "
            "with the images' paths"
        )
        return
    for path, image_ids in files:
        name = path.relative_to(root)
        absent, shared = coco.unmatched(path, image_ids, root)
        if absent:
            report.notes.append(
                f"{name} lists {_images(absent)} that {'are' if len(absent) > 1 else 'is'} not there, such as {absent[0]}; "
                "compare file_name with the images' paths if it should be"
            )
        if shared:
            report.problems.append(
                f"{name} lists {_images(shared)} by a name that several have, such as {shared[0]}; write their paths from "
                f"{root.name or root} as file_name"
            )


def _images(names: Sequence[str]) -> str:
    return f"{len(names)} image{'s' if len(names) > 1 else ''}"


def _check_masks(root: Path, splits: Sequence[Split], report: Report) -> None:
    if not (root / "masks").is_dir():
        return
    taken = {
        os.fspath(path)
        for split in splits
        for pairs in (split.masks or {}).values()
        for pair in pairs
        for path in pair
        if path is not None
    }
    left = [path for path in files_below(root / "masks") if os.fspath(path) not in taken]
    if left:
        example = next((split.image_ids[0] for split in splits), "train/daisy/1.jpg")
        report.notes.append(
            f"masks holds {len(left)} file{'s' if len(left) > 1 else ''} of no image, such as {left[0].relative_to(root)}; the "
            f"mask of {example} is {folder.mask_of(root, example).relative_to(root)}"
        )


def _check_twice(split: Split, report: Report) -> None:
    twice = [
        image_id for image_id, rows in (split.boxes or {}).items() if len(np.unique(rows, axis=0)) < len(rows)
    ]
    if twice:
        report.notes.append(
            f"{split.name}: {_images(twice)} with the same box twice, such as {twice[0]}; see whether two COCO files hold it"
        )
