"""The lists of one split, and how they are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fcam import files
from fcam.data.wsol import read_ids, read_labels, read_sizes
from fcam.errors import FcamError, shown


@dataclass
class Lists:
    """One split: rows of the four files, images named relative to the data set's folder."""

    ids: list[str] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    """(width, height), or empty."""
    localization: list[str] = field(default_factory=list)
    """Rows as they stand in the file."""

    def texts(self) -> dict[str, str]:
        """Content of the files by name."""
        return {
            "image_ids": _text(self.ids),
            "class_labels": _text(f"{i},{label}" for i, label in zip(self.ids, self.labels, strict=True)),
            "image_sizes": _text(
                f"{i},{w},{h}" for i, (w, h) in zip(self.ids, self.sizes, strict=True)
            ) if self.sizes else "",
            "localization": _text(self.localization),
        }  # fmt: skip


def read_lists(folder: Path) -> Lists:
    """Read the four files of a split as they are; sizes and localization may be missing or empty, and so may all images.

    Raises:
        FcamError: a row that is not like the others of its file, or an image without a label or size.
    """
    if not _rows(folder / "image_ids.txt"):
        return Lists()
    ids, labels, sizes = read_ids(folder), read_labels(folder), read_sizes(folder)
    for image in ids:
        if image not in labels or (sizes and image not in sizes):
            raise FcamError(
                f"the lists in {folder} do not fit together: {shown(image)} has no {'size' if image in labels else 'label'}; "
                "fetch them again"
            )
    localization = _rows(folder / "localization.txt")
    return Lists(ids, [labels[i] for i in ids], [sizes[i] for i in ids] if sizes else [], localization)


def prefixed(lists: Lists, prefix: str, masks: bool) -> Lists:
    """The same with another folder in front of every file name; `masks` says that rows end in file names."""
    if not prefix:
        return lists

    def moved(row: str) -> str:
        if not masks:
            return prefix + row
        return ",".join(prefix + name if name else "" for name in row.split(","))

    return Lists(
        [prefix + i for i in lists.ids], lists.labels, lists.sizes, [moved(row) for row in lists.localization]
    )


def write_lists(folder: Path, texts: dict[str, str]) -> None:
    """Write the files of a split; those that are there with another content are never overwritten.

    Raises:
        FcamError: a file of that name holds something else.
    """
    for name, text in texts.items():
        path = folder / f"{name}.txt"
        if path.is_file() and path.read_text(encoding="utf-8").rstrip("\n") != text.rstrip("\n"):
            raise FcamError(
                f"{path} is there already and differs from what would be written; move it away first"
            )
    for name, text in texts.items():
        files.write_text(folder / f"{name}.txt", text)


def find_prefix(root: Path, ids: Sequence[str], candidates: Iterable[str]) -> str | None:
    """The first folder below `root` in which most of a sample of images lie; None when no folder has any."""
    sample = ids[:: max(1, len(ids) // 20)]
    found = {prefix: sum((root / (prefix + i)).is_file() for i in sample) for prefix in candidates}
    best = max(found, key=lambda prefix: found[prefix])
    return best if found[best] else None


def _rows(path: Path) -> list[str]:
    if not path.is_file():
        return []
    return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _text(rows: Iterable[str]) -> str:
    return "".join(f"{row}\n" for row in rows)
