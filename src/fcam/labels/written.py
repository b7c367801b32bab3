"""Which label files fcam wrote into a folder, so that its own may be replaced and removed, and other people's stay.

`exported.json` lists them with the SHA-256 of what was written: a label that somebody has corrected since is theirs. Files are
listed before they are written, so that those of a killed export are fcam's too.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable
from pathlib import Path

from fcam.errors import FcamError
from fcam.files import write_json

WRITTEN = "exported.json"
_UNFINISHED = "being written"


class Written:
    """The label files in a folder that fcam wrote and nobody has changed since."""

    def __init__(self, out: Path) -> None:
        """Read the list in `out`; where there is none, or not a whole one, no file is known to be fcam's."""
        self.out = out
        self._sums: dict[str, str] = {}
        try:
            sums = json.loads((out / WRITTEN).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return
        if isinstance(sums, dict):
            self._sums = sums

    @property
    def files(self) -> list[str]:
        """Paths below the folder."""
        return list(self._sums)

    def is_ours(self, name: str) -> bool:
        """Whether nobody else's file is at this path below the folder: fcam's own, or none."""
        path = self.out / name
        return not os.path.lexists(path) or self._sums.get(name) in (_UNFINISHED, _sum(path))

    def remove(self, stale: Iterable[str]) -> list[Path]:
        """Remove files, named by their path below the folder, that are fcam's; return those that are not and stay."""
        kept = []
        for name in stale:
            path = self.out / name
            if not path.exists():
                self._sums.pop(name, None)
                continue
            if not self.is_ours(name):
                kept.append(path)
                continue
            try:
                path.unlink()
            except OSError as error:
                raise FcamError(
                    f"cannot remove {path}, a label that is left out now: {error.strerror or error}; "
                    "check that the folder is writable, then run the same command again"
                ) from error
            del self._sums[name]
        return kept

    def begin(self, names: Iterable[str]) -> None:
        """List files that are ours and about to be written; raises `FcamError` when the list cannot be written."""
        self._sums |= dict.fromkeys(names, _UNFINISHED)
        write_json(self.out / WRITTEN, self._sums)

    def finish(self, names: Collection[str]) -> None:
        """List what has been written of the files that were begun; raises `FcamError` as `begin` does."""
        written = {name: _sum(path) for name in names if (path := self.out / name).exists()}
        self._sums = {name: sum for name, sum in self._sums.items() if name not in names} | written
        write_json(self.out / WRITTEN, self._sums)


def _sum(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
