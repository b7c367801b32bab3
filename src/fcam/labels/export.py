"""Predicted boxes and masks as labels for a detection or segmentation project: COCO, YOLO, Pascal VOC.

The input is what `fcam predict` writes, `predictions.json` and `masks/`: labels are made at the end of a run
or long after it. Photos whose boxes were all filtered out are left out of every format: no label says
nothing, whereas an empty label file would teach a detector that there is nothing to see. What an earlier export wrote
into the same folder and this one does not write again is removed; what somebody else wrote there, or has corrected since,
is never written over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fcam.errors import FcamError, escaped
from fcam.labels.files import (
    OWN_FILES,
    SHARED_FILES,
    write_coco,
    write_voc,
    write_voc_seg,
    write_yolo,
    write_yolo_seg,
)
from fcam.labels.photos import LabelledPhoto
from fcam.labels.written import Written
from fcam.progress import say

LabelFormat = Literal["coco", "yolo", "yolo-seg", "voc", "voc-seg"]
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


def select(
    rows: Iterable[Mapping[str, Any]],
    classes: Sequence[str] | None,
    options: LabelOptions,
    run: Path = Path(),
) -> tuple[list[LabelledPhoto], list[str]]:
    """Apply the filters to rows of `predictions.json`; return the photos with labels and the class names.

    `classes` are the model's; when None, the labels that occur, sorted. `run` is the folder that the rows'
    files are in. Raises `FcamError` for options out of range.
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
        mask = row.get("files", {}).get("masks")
        photos.append(
            LabelledPhoto(
                row["file"],
                row["name"],
                *size,
                boxes,
                category,
                float(row["score"]),
                None if mask is None else run / mask,
            )
        )
    return photos, names


Writer = Callable[[Iterable[LabelledPhoto], Sequence[str], Path], list[Path]]
WRITERS: dict[str, Writer] = {
    "coco": write_coco,
    "yolo": write_yolo,
    "yolo-seg": write_yolo_seg,
    "voc": write_voc,
    "voc-seg": write_voc_seg,
}
FROM_MASKS = ("yolo-seg", "voc-seg")
"""Formats that cannot be made from boxes alone."""
VOC_CLASSES = 254
"""Classes that a palette of 256 colours has room for: 0 is background, 255 stands for "ignore"."""


def check_formats(formats: Collection[str], masks: bool = True, classes: int = 1) -> None:
    """Raise `FcamError` for formats that cannot be written.

    These are unknown formats, two that share files, those that need masks where there are no `masks`, and a
    palette for more `classes` than it holds.
    """
    for name in formats:
        if name not in WRITERS:
            raise FcamError(f"unknown label format {name!r}; take one of {', '.join(WRITERS)}")
    for name in FROM_MASKS:
        boxes = name.removesuffix("-seg")
        if name in formats and boxes in formats:
            raise FcamError(f"{boxes} and {name} have files of the same names; export one of them")
        if name in formats and not masks:
            raise FcamError(f"{name} is made from masks/, which --no-masks leaves out; leave --no-masks out")
    if "voc-seg" in formats and classes > VOC_CLASSES:
        raise FcamError(
            f"the model has {classes} classes, but a mask of voc-seg holds {VOC_CLASSES}; "
            "make the labels class-agnostic, or export coco or yolo-seg"
        )


def export_labels(
    rows: Iterable[Mapping[str, Any]],
    out: str | Path,
    formats: Iterable[LabelFormat],
    classes: Sequence[str] | None = None,
    options: LabelOptions | None = None,
    run: str | Path | None = None,
    on_photo: Callable[[int], None] | None = None,
) -> dict[str, list[Path]]:
    """Write labels for the rows of `predictions.json` below `out`; return the files written, by format.

    Files of each photo that an earlier call wrote there and this one does not, because the photo gets no label now or is not
    among the rows, are removed (`exported.json` lists what is ours). Files of a photo that anybody else wrote, or has changed
    since, stay and are named.

    Args:
        rows: `load_predictions(run)["predictions"]`.
        out: folder for the labels.
        formats: "coco", "yolo" or "yolo-seg", "voc" or "voc-seg".
        classes: `load_predictions(run)["classes"]`; when None, the labels that occur, sorted.
        options: which boxes become labels, and of which class.
        run: folder that `fcam predict` wrote the masks into; when None, `out`.
        on_photo: called with the number of photos that are done, from 1 in every format.

    Raises:
        FcamError: an unknown format, or two that share files; an option out of range; a mask that is missing,
            damaged or of another run; a folder that cannot be written to, or where somebody else's file has the name of one
            that all photos share.
    """
    formats, rows, out = list(formats), list(rows), Path(out)
    check_formats(formats)
    photos, names = select(rows, classes, options or LabelOptions(), out if run is None else Path(run))
    check_formats(formats, classes=len(names))
    check_folder(out, formats)
    written = Written(out)
    _remove_labels(written, [row["name"] for row in rows], {photo.name for photo in photos}, formats)
    labelled = {name: _without_theirs(written, photos, OWN_FILES.get(name, ())) for name in formats}
    _say_kept(written, labelled)
    begun = {file for name, those in labelled.items() for file in _files(those, name)}
    made: dict[str, list[Path]] = {}
    written.begin(begun)
    try:
        for name, those in labelled.items():
            made[name] = WRITERS[name](_counted(those, on_photo), names, out)
    finally:  # an interrupted export, too, leaves files that are ours
        written.finish(begun)
    return made


def check_folder(out: str | Path, formats: Iterable[str]) -> None:
    """Raise `FcamError` where a file that all photos of these formats share would be written over somebody else's."""
    written = Written(Path(out))
    for name in (name for label_format in formats for name in SHARED_FILES.get(label_format, ())):
        if not written.is_ours(name):
            raise FcamError(
                f"{Path(out) / name} was not written by fcam, or was changed since; move it away, or write the labels to "
                "another folder"
            )


def _without_theirs(
    written: Written, photos: Iterable[LabelledPhoto], places: Iterable[str]
) -> list[LabelledPhoto]:
    """Mark the photos with a file of their own, at one of `places`, that is somebody else's."""
    places = tuple(places)
    return [
        replace(photo, kept=not all(written.is_ours(place.format(photo.name)) for place in places))
        for photo in photos
    ]


def _files(photos: Iterable[LabelledPhoto], label_format: str) -> Iterator[str]:
    """Paths of all files that are to be written for photos in a format."""
    yield from SHARED_FILES.get(label_format, ())
    for photo in photos:
        if not photo.kept:
            yield from (place.format(photo.name) for place in OWN_FILES.get(label_format, ()))


def _remove_labels(
    written: Written, names: Iterable[str], labelled: Collection[str], formats: Iterable[str]
) -> None:
    """Remove what an earlier export wrote for photos that get no label now; say where something stays."""
    places = sorted({place for name in formats for place in OWN_FILES.get(name, ())})
    current = {place.format(name) for name in labelled for place in places}
    stale = {place.format(name) for name in names for place in places}
    stale |= {file for file in written.files for place in places if _is_at(file, place)}
    kept = written.remove(sorted(stale - current))
    if kept:
        say(
            f"{len(kept)} label files stay though their photos are left out now: fcam did not write them, or they "
            f"were changed since; delete them unless you want them: {_first(kept)}"
        )


def _say_kept(written: Written, labelled: Mapping[str, Iterable[LabelledPhoto]]) -> None:
    kept = [
        written.out / place.format(photo.name)
        for label_format, photos in labelled.items()
        for photo in photos
        for place in OWN_FILES.get(label_format, ())
        if photo.kept
    ]
    if kept:
        say(
            f"{len(kept)} label files stay as they are: fcam did not write them, or they were changed since; delete them, "
            f"and export again, to have them written anew: {_first(kept)}"
        )


def _first(paths: Sequence[Path]) -> str:
    return f"{escaped(str(paths[0]))}{', ...' if len(paths) > 1 else ''}"


def _is_at(file: str, place: str) -> bool:
    """Whether a file's path has the form of `place`, which has braces for the photo's name."""
    start, _, end = place.partition("{}")
    return file.startswith(start) and file.endswith(end)


def _counted(
    photos: Iterable[LabelledPhoto], on_photo: Callable[[int], None] | None
) -> Iterator[LabelledPhoto]:
    """Hand out the photos one by one; each one's files are written when the next is asked for."""
    for done, photo in enumerate(photos, 1):
        yield photo
        if on_photo is not None:
            on_photo(done)
