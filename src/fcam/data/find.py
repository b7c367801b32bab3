"""Finding photographs: which files, folders and glob patterns stand for images, and what could not be followed."""

from __future__ import annotations

import glob
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from fcam.data.images import absence

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".avif", ".jp2"}
    | {".ppm", ".pgm", ".pbm", ".pnm"}
)
"""Suffixes, in lower case, by which a file found in a folder counts as an image."""

RESULTS = "predictions.json"
RUNNING = "predictions.jsonl"
"""What `fcam predict` leaves in its folder, and while it runs or after it was killed, beside ..."""
RESULT_FOLDERS = ("overlays", "masks", "heatmaps", "maps", "panels", "SegmentationClass")
"""... folders of files that look like photos or masks of somebody else's; the last is made by --export."""

_UNREAD = {".heic", ".heif", ".jxl", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf"}
"""What cameras and phones write and Pillow does not read, or not without more packages."""


class Problem(NamedTuple):
    """A path that was asked for and cannot be used, and why."""

    path: str
    reason: str


def find_images(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> tuple[list[Path], list[Problem]]:
    """List the image files that files, folders and glob patterns stand for, and what could not be followed.

    A named file is taken whatever its suffix, and so are the files a pattern with a suffix finds (`*.dat`).
    Folders are searched recursively for `SUFFIXES` in any case; hidden files and the pictures that a prediction
    left there (`RESULT_FOLDERS` beside a `RESULTS`) are passed over, and photos in a camera's format that cannot be
    read are a problem each, unless one that can lies beside them under the same name. Order is that
    of the arguments, sorted by path within each; a file is listed once, by the path that named it first.
    """
    found: dict[str, Path] = {}
    problems: list[Problem] = []
    for item in [paths] if isinstance(paths, str | os.PathLike) else paths:
        path = Path(item)
        if os.path.isdir(path):
            files = _search(path, problems)
        elif os.path.lexists(path):
            files = [path]
        elif glob.has_magic(str(path)):
            files = _matches(path, problems)
        else:
            files = []
            problems.append(Problem(str(item), absence(path)))
        for file in files:
            found.setdefault(os.path.abspath(file), file)
    return list(found.values()), problems


def files_below(
    folder: Path, problems: list[Problem] | None = None, suffixes: Collection[str] = SUFFIXES
) -> list[Path]:
    """List the files of these suffixes below `folder`, sorted by path; folders that cannot be read go to `problems`.

    Links to folders are followed, each target once, and none that leads back to a folder above it.
    """

    def refused(error: OSError) -> None:
        if problems is not None:
            problems.append(Problem(str(error.filename), (error.strerror or str(error)).lower()))

    found: list[Path] = []
    linked: set[str] = set()

    def entered(parent: str, name: str) -> bool:
        path = os.path.join(parent, name)
        if not os.path.islink(path):
            return True
        target = os.path.realpath(path)
        above = f"{os.path.realpath(parent)}{os.sep}".startswith(f"{target.rstrip(os.sep)}{os.sep}")
        new = not above and target not in linked
        linked.add(target)
        return new

    for parent, folders, names in os.walk(folder, onerror=refused, followlinks=True):
        drawn = RESULT_FOLDERS if RESULTS in names or RUNNING in names else ()
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and name not in drawn and entered(parent, name)
        )
        found += [
            Path(parent, name)
            for name in names
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in suffixes
        ]
    return sorted(found, key=lambda path: path.as_posix())


def unread_below(folder: Path, read: Iterable[Path]) -> list[Path]:
    """Return the photos below a folder, sorted by path, that no library here opens, such as HEIC and raw files.

    A raw file beside its JPEG is the same photo: those named like one of the images `read` are not listed.
    """
    stems = {path.with_suffix("") for path in read}
    return [path for path in files_below(folder, suffixes=_UNREAD) if path.with_suffix("") not in stems]


def _matches(pattern: Path, problems: list[Problem]) -> list[Path]:
    # A folder may be called what would be a pattern, "[2024] coast".
    there = next((above for above in pattern.parents if os.path.isdir(above)), Path())
    place = os.path.join(glob.escape(str(there)), pattern.relative_to(there))
    matches = [Path(match) for match in sorted(glob.glob(place, recursive=True))]
    found = []
    for match in matches:
        if not match.is_dir():
            if pattern.suffix or match.suffix.lower() in SUFFIXES:
                found.append(match)
        elif "**" not in pattern.parts:
            found += files_below(match, problems)
    if not found:
        problems.append(Problem(str(pattern), "no image file matches this pattern"))
    return found


def _search(folder: Path, problems: list[Problem]) -> list[Path]:
    before = len(problems)
    found = files_below(folder, problems)
    unread = unread_below(folder, found)
    if found:
        problems += [
            Problem(str(path), f"{path.suffix[1:].upper()} files cannot be read; convert it to JPEG or PNG")
            for path in unread
        ]
    elif len(problems) == before:
        such = (
            f" that can be read, only such as {unread[0].name}; convert them to JPEG or PNG" if unread else ""
        )
        problems.append(Problem(str(folder), f"the folder holds no image file{such}"))
    return found
