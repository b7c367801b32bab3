"""Which label files fcam wrote into a folder, so that those of a laxer run before can be told from other people's.

`exported.json` lists them with the SHA-256 of what was written: a label that somebody has corrected since is theirs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from fcam.errors import FcamError
from fcam.files import write_json

WRITTEN = "exported.json"


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

    def remove(self, stale: Iterable[str]) -> list[Path]:
        """Remove files, named by their path below the folder, that are fcam's; return those that are not and stay."""
        kept = []
        for name in stale:
            path = self.out / name
            if not path.exists():
                self._sums.pop(name, None)
                continue
            if self._sums.get(name) != _sum(path):
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

    def add(self, paths: Iterable[Path]) -> None:
        """Add files that fcam has just written, and save the list; raises `FcamError` when it cannot be written."""
        self._sums |= {path.relative_to(self.out).as_posix(): _sum(path) for path in paths}
        write_json(self.out / WRITTEN, self._sums)


def _sum(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
