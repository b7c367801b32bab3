"""`fcam data prepare`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from fcam.data.prepare.archives import where
from fcam.data.prepare.prepare import prepare
from fcam.errors import FcamError


@dataclass(frozen=True)
class PrepareConfig:
    """Build the lists of the WSOL benchmark from the unpacked archives of CUB, OpenImages or ILSVRC.

    Writes ROOT/metadata; then ROOT is a data set for every other command. Lists that are there already are never
    overwritten with something else.
    """

    kind: Positional[Literal["cub", "openimages", "ilsvrc"]]
    root: Positional[Path | None] = None
    """Folder of the unpacked archives."""
    metadata: Path | None = None
    """Folder metadata/ (or metadata/CUB, ...) of wsolevaluation; its lists are taken as they are, which val needs."""
    where: bool = False
    """Only say where the archives are, how to unpack and how to check them."""


def run_prepare(config: PrepareConfig) -> int:
    """Do what `fcam data prepare` was asked for; 0 when every split found is as large as the benchmark's."""
    if config.where:
        print(where(config.kind))
        return 0
    if config.root is None:
        raise FcamError(f"name the folder of the archives: fcam data prepare {config.kind} ROOT")
    result = prepare(config.kind, config.root, config.metadata)
    for split, images in result.images.items():
        print(f"{split:<5}  {images:>9,} images")
    for note in result.notes:
        print(f"note: {note}")
    for problem in result.problems:
        print(f"problem: {problem}")
    print(f"lists in {result.folder}; look over everything with: fcam data check {config.root}")
    return 1 if result.problems else 0
