"""Putting lists together: from the archives' own annotation, or from the benchmark's metadata as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fcam import files
from fcam.data.prepare import cub, ilsvrc, openimages
from fcam.data.prepare.lists import Lists, find_prefix, prefixed, read_lists, write_lists
from fcam.data.split import SPLITS
from fcam.data.wsol import LISTS, splits_in
from fcam.errors import FcamError

Build = Callable[[Path, list[str]], tuple[dict[str, Lists], list[str]]]


class Kind(NamedTuple):
    """What is particular to one data set."""

    title: str
    """Name of its folder in wsolevaluation's metadata."""
    build: Build
    folders: tuple[str, ...]
    """Where images may lie below the root."""
    counts: dict[str, int]
    """Images of each split in the benchmark."""
    masks: bool


KINDS: dict[str, Kind] = {
    "cub": Kind("CUB", cub.build, cub.FOLDERS, cub.COUNTS, False),
    "openimages": Kind("OpenImages", openimages.build, openimages.FOLDERS, openimages.COUNTS, True),
    "ilsvrc": Kind("ILSVRC", ilsvrc.build, ilsvrc.FOLDERS, ilsvrc.COUNTS, False),
}


@dataclass
class Prepared:
    """What was written, and what is not as the benchmark has it."""

    folder: Path
    images: dict[str, int] = field(default_factory=dict)
    """Images by split."""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def prepare(kind: str, root: Path, metadata: Path | None = None) -> Prepared:
    """Write `root/metadata/<split>/*.txt` for CUB, OpenImages or ILSVRC.

    Args:
        kind: a key of `KINDS`.
        root: folder of the unpacked archives.
        metadata: wsolevaluation's lists, which are taken as they are wherever they have a split; where images lie in a
            subfolder of `root`, its name is put before theirs.

    Raises:
        FcamError: nothing to build from, damaged annotation, or lists that are there already and differ.
    """
    own = KINDS[kind]
    if not root.is_dir():
        raise FcamError(
            f"there is no folder {root}; `fcam data prepare {kind} --where` says where the archives are"
        )
    result = Prepared(root / "metadata")
    given = _given(own, root, metadata, result) if metadata is not None else {}
    built: dict[str, Lists] = {}
    classes: list[str] = []
    if not set(own.counts) <= set(given) or kind == "ilsvrc":
        try:
            built, classes = own.build(root, result.problems)
        except FcamError as error:
            if not given:
                raise
            result.problems.append(str(error))  # what is given stands without it
    elif kind == "cub":
        classes = cub.class_names(root)
    lists = {split: given.get(split) or built.get(split) for split in SPLITS}
    found = {split: one for split, one in lists.items() if one is not None and one.ids}
    if not found:
        raise FcamError(
            f"{root} holds nothing of {own.title} that lists could be built from; unpack its archives there "
            f"(`fcam data prepare {kind} --where`), or name wsolevaluation's lists with --metadata"
        )
    for split, one in found.items():
        texts = one.texts()
        write_lists(result.folder / split, {name: texts[name] for name in LISTS})
        result.images[split] = len(one.ids)
    if classes and not (result.folder / "classes.txt").exists():
        files.write_text(result.folder / "classes.txt", "".join(f"{name}\n" for name in classes))
    _compare(own, kind, result)
    return result


def _given(own: Kind, root: Path, metadata: Path, result: Prepared) -> dict[str, Lists]:
    """The benchmark's lists, with images where they lie."""
    folder = next((f for f in (metadata, metadata / own.title) if splits_in(f)), None)
    if folder is None:
        raise FcamError(f"{metadata} holds no lists: expected <split>/image_ids.txt in it or in {own.title}/")
    found = {}
    for split in splits_in(folder):
        lists = read_lists(folder / split)
        if not lists.ids:
            continue
        prefix = find_prefix(root, lists.ids, own.folders)
        if prefix is None:
            result.problems.append(f"no image of {split} is there, for instance {lists.ids[0]}")
            continue
        lists = prefixed(lists, prefix, own.masks)
        absent = [i for i in lists.ids if not (root / i).is_file()]
        if absent:
            result.problems.append(
                f"{len(absent)} of {len(lists.ids)} images of {split} are missing, first {absent[0]}"
            )
        if prefix:
            result.notes.append(
                f"{split}: images lie in {prefix}, which their names in the lists now begin with"
            )
        found[split] = lists
    return found


def _compare(own: Kind, kind: str, result: Prepared) -> None:
    """Say where a split is not as large as the benchmark's, and what to do without val."""
    for split, count in own.counts.items():
        have = result.images.get(split, 0)
        if split == "val" and not have:
            result.notes.append(
                "val is left out, and with it the choice of epoch and settings; its lists come from wsolevaluation "
                f"(--metadata), its images are listed by `fcam data prepare {kind} --where`"
            )
        elif have != count:
            result.problems.append(f"{split} has {have:,} images, the benchmark {count:,}")
