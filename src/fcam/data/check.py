"""Verifying a data set before a night is spent on training with it."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np

from fcam.data import folder, wsol
from fcam.data.check_report import Report, SplitSummary
from fcam.data.check_truth import check_truth
from fcam.data.find import files_below, unread_below
from fcam.data.ids import leads_out
from fcam.data.images import ImageError, open_image, open_mask
from fcam.data.split import Split
from fcam.errors import FcamError
from fcam.progress import epoch_bar


@dataclass
class _Seen:
    """First image seen with each content: file bytes and decoded pixels, as split and id."""

    files: dict[bytes, tuple[str, str]] = field(default_factory=dict)
    pixels: dict[bytes, tuple[str, str]] = field(default_factory=dict)


@dataclass
class _Contents:
    """What all object masks of a split show together."""

    masks: int = 0
    first: Path | None = None
    object: bool = False
    ground: bool = False


def check(root: str | os.PathLike[str], *, metadata: str | os.PathLike[str] | None = None) -> Report:
    """Read every list, image and mask of the data set below `root` and report what is wrong.

    Looks for files that are missing or cannot be read, sizes that disagree with the list, boxes that are
    inverted, empty or outside the image, masks of another shape, labels out of range, classes without
    training images, ids in one list but not in another, and images that occur twice (same id, same bytes or
    same pixels). Raises `FcamError` only when `root` is no data set at all.
    """
    root = Path(root)
    if not root.is_dir():
        raise FcamError(f"there is no data set at {root}: it is not a folder; check the path")
    lists = wsol.metadata_folder(root, metadata)
    report = Report(root, "plain folder" if lists is None else "wsolevaluation metadata")
    splits = _read_splits(root, lists, metadata is not None, report)
    seen = _Seen()
    with epoch_bar("data check", sum(len(split.image_ids) for split in splits)) as bar:
        for split in splits:
            sizes, contents = {}, _Contents()
            for image_id in split.image_ids:
                size = _check_image(split, image_id, seen, report)
                if size is not None:
                    sizes[image_id] = size
                    _check_localization(split, image_id, size, contents, report)
                bar.advance(1)
            _check_contents(split, contents, report)
            report.rows.append(_summary(split, sizes.values()))
    _check_classes(splits, report)
    _check_same_ids(splits, report)
    return report


def _read_splits(root: Path, lists: Path | None, own_lists: bool, report: Report) -> list[Split]:
    found = []
    names = folder.images_by_split(root) if lists is None else wsol.splits_in(lists)
    if not names:
        folder.read(root, "train", localization=False)  # raises: this is no data set
    for name in names:
        try:
            if lists is None:
                split = folder.read(root, name, True, report.problems.append)
                shared = folder.same_stem(split.image_ids) if split.masks else []
                report.problems += [
                    f"{image_id} shares its mask file with another image" for image_id in shared
                ]
            else:
                split = wsol.read(root, name, lists, True, own_lists, report.problems.append)
                _check_lists(lists / name, split, report)
            found.append(split)
        except FcamError as error:
            report.problems.append(str(error))
    if lists is None:
        report.problems += [
            f"{path.relative_to(root)} holds no image, so it is no class; add its images or remove the folder"
            for path in folder.empty_classes(root)
        ]
        _check_passed_over(root, report)
        check_truth(root, found, report)
    if "train" not in names:
        report.notes.append("there is no train split: the set can be evaluated on but not trained on")
    if any(len(split.classes) == 1 for split in found):
        report.notes.append("there is one class: a decoder can be trained on it, but no classifier")
    return found


def _check_passed_over(root: Path, report: Report) -> None:
    """Images that belong to a split by their folder's name are missing from it; others may lie there on purpose."""
    if unread := unread_below(root, files_below(root)):
        report.problems.append(
            f"passed over {len(unread)} that cannot be read, such as {unread[0].relative_to(root)}; convert to JPEG or PNG"
        )
    for place, images in folder.passed_over(root).items():
        count = f"{len(images)} image{'s' if len(images) > 1 else ''}"
        such = images[0].relative_to(root)
        split = folder.split_named(place.name) if place != root else None
        own = folder.split_folder(root, split) if split else None
        if own is None:
            where = "right in the data set's folder" if place == root else f"in {place.name}"
            report.notes.append(
                f"passed over {count} {where}, such as {such}: neither in train, val or test nor in a class"
            )
        elif own == place:
            report.problems.append(
                f"{split}: passed over {count} right in {own.name}, such as {such}; move them into {own.name}/<class>/"
            )
        else:
            report.problems.append(
                f"{split}: passed over {count} in {place.name}, since {own.name} is there too; put them together"
            )


def _check_lists(lists: Path, split: Split, report: Report) -> None:
    """Compare the ids of a split's lists; missing labels are reported where the labels are read."""
    listed = set(split.image_ids)
    for name, ids in (("class_labels", wsol.read_labels(lists, _ignore)), ("image_sizes", split.sizes)):
        for image_id in [i for i in ids if i not in listed]:
            report.problems.append(
                f"{lists / name}.txt has a row for {image_id}, which image_ids.txt does not list"
            )
    if split.sizes:
        for image_id in [i for i in split.image_ids if i not in split.sizes]:
            report.problems.append(
                f"{lists / 'image_sizes.txt'} has no row for {image_id}, which image_ids.txt lists"
            )
    for kind, found in (("boxes", split.boxes), ("mask", split.masks)):
        for image_id in [i for i in split.image_ids if found is not None and i not in found]:
            report.problems.append(
                f"{split.name}: {image_id} has no {kind}, though other images of the split do"
            )
    if outside := [image_id for image_id in split.image_ids if leads_out(image_id)]:
        report.notes.append(
            f"{split.name}: {len(outside)} of {len(listed)} ids lead out of the data set's folder, such as {outside[0]}; "
            "heat maps of these cannot be saved or scored"
        )


def _ignore(sentence: str) -> None:
    """Pass over faults that another reading of the same list reports."""


def _check_image(split: Split, image_id: str, seen: _Seen, report: Report) -> tuple[int, int] | None:
    """Read one image; returns its (width, height), or None when it cannot be read."""
    path = split.root / image_id
    try:
        image = open_image(path, exif=split.exif)
        content = path.read_bytes()
    except (ImageError, OSError) as error:
        report.problems.append(f"{split.name}: {error}")
        return None
    pixels = hashlib.sha256(repr(image.size).encode() + image.tobytes()).digest()
    here = (split.name, image_id)
    same_file = seen.files.setdefault(hashlib.sha256(content).digest(), here)
    same_pixels = seen.pixels.setdefault(pixels, here)
    _check_duplicate(split, image_id, same_file, "file", report)
    if same_file == here:
        _check_duplicate(split, image_id, same_pixels, "picture", report)
    listed = split.sizes.get(image_id)
    if listed is not None and listed != image.size:
        turned = split.exif and listed == image.size[::-1]
        upright = " to the size of the photo turned upright by EXIF" if turned else ""
        report.problems.append(
            f"{split.name}: {image_id} is {image.width}x{image.height}, its list says {listed[0]}x{listed[1]}; correct "
            f"the list{upright}, since boxes are scaled by it"
        )
    return image.size


def _check_duplicate(split: Split, image_id: str, first: tuple[str, str], what: str, report: Report) -> None:
    """A copy in another split leaks what is tested into training, one in another class teaches both; others are only odd."""
    where, other = first
    if image_id == other:
        return
    sentence = f"{split.name}: {image_id} is the same {what} as {other}"
    if where != split.name:
        report.problems.append(f"{sentence} of {where}")
        return
    # A missing label is -1, and one may be beyond the classes; both are reported where labels are read.
    place, names = split.image_ids.index, dict(enumerate(split.classes))
    own, its = (names.get(split.labels[place(one)]) for one in (image_id, other))
    if own == its or own is None or its is None:
        report.notes.append(sentence)
    else:
        report.problems.append(
            f"{sentence}, but the one is {own} and the other {its}; keep that which is right"
        )


def _check_localization(
    split: Split, image_id: str, size: tuple[int, int], contents: _Contents, report: Report
) -> None:
    width, height = split.sizes.get(image_id, size)
    for x0, y0, x1, y1 in (split.boxes or {}).get(image_id, np.zeros((0, 4))).tolist():
        box = f"{split.name}: {image_id} has a box {x0:g},{y0:g},{x1:g},{y1:g} that"
        if x1 < x0 or y1 < y0:
            report.problems.append(f"{box} is inverted; expected x0 <= x1 and y0 <= y1")
        elif min(x0, y0) < 0 or x1 > width or y1 > height:
            report.problems.append(f"{box} leaves the image of {width}x{height}")
        elif x1 == x0 or y1 == y0:
            report.notes.append(f"{box} has no area")
    for files in (split.masks or {}).get(image_id, []):
        if (mask := _check_mask(split, image_id, files.mask, size, report)) is not None:
            contents.masks += 1
            contents.first = contents.first or files.mask
            contents.object |= bool(mask.any())
            contents.ground |= not mask.all()
        if files.ignore is not None:
            _check_mask(split, image_id, files.ignore, size, report)


def _check_contents(split: Split, contents: _Contents, report: Report) -> None:
    """Masks of other values than 0 and more read without complaint, and then no metric means anything."""
    if contents.masks < 2:  # one alone may well be full
        return
    such = f"such as {contents.first}"
    if not contents.ground:
        report.problems.append(
            f"{split.name}: every mask is object all over, {such}; make the background 0, since all above is object"
        )
    elif not contents.object:
        report.problems.append(
            f"{split.name}: no mask shows an object, {such}; give objects a grey value above 0, best 255"
        )


def _check_mask(
    split: Split, image_id: str, path: Path, size: tuple[int, int], report: Report
) -> np.ndarray | None:
    """Read one mask; returns it, or None when it cannot be read."""
    try:
        mask = open_mask(path)
    except ImageError as error:
        report.problems.append(f"{split.name}: {error}")
        return None
    height, width = mask.shape
    if (width, height) == size:
        return mask
    sentence = f"{split.name}: mask {path} is {width}x{height}, its image {image_id} {size[0]}x{size[1]}"
    # Rounding to whole pixels moves each side by half a pixel at most.
    if abs(width * size[1] - height * size[0]) <= 0.5 * (width + height + sum(size)):
        report.notes.append(f"{sentence}: same shape, resized when read")
    else:
        report.problems.append(f"{sentence}: not the same shape; make it one of the image")
    return mask


def _check_classes(splits: list[Split], report: Report) -> None:
    for split in splits:
        if split.name == "train":
            report.problems += [
                f"train: class {name} has no image" for name in split.classes_without_images()
            ]


def _check_same_ids(splits: list[Split], report: Report) -> None:
    first: dict[str, str] = {}
    for split in splits:
        for image_id in split.image_ids:
            key = PurePosixPath(image_id).as_posix()
            if first.setdefault(key, split.name) != split.name:
                report.problems.append(f"{split.name}: {image_id} is listed in {first[key]} too")


def _summary(split: Split, sizes: Iterable[tuple[int, int]]) -> SplitSummary:
    counts = Counter(split.labels)
    per_class = [counts[label] for label in range(len(split.classes))] or [0]
    widths_heights = np.array(list(sizes) or [(0, 0)])
    low, high = widths_heights.min(0), widths_heights.max(0)
    return SplitSummary(
        split=split.name,
        images=len(split.image_ids),
        classes=sum(count > 0 for count in per_class),
        images_per_class=(min(per_class), max(per_class)),
        boxes=sum(map(len, (split.boxes or {}).values())),
        masks=sum(map(len, (split.masks or {}).values())),
        sizes=(int(low[0]), int(low[1]), int(high[0]), int(high[1])),
    )
