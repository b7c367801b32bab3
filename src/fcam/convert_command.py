"""`fcam convert`: a checkpoint of another project becomes a model folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional

from fcam.convert import convert


@dataclass(frozen=True)
class ConvertConfig:
    """Read a checkpoint of wsolevaluation or of the F-CAM authors' code and write a model folder.

    Nothing pickled is executed; every shape is checked.
    """

    source: Annotated[Path, Positional]
    """Checkpoint file, or folder of encoder.pt, decoder.pt, segmentation_head.pt, classification_head.pt."""
    out: Path
    """Model folder to write."""
    classifier: Path | None = None
    """Folder with the classification head, where the source has none."""
    head: Literal["gap", "maxpool", "logsumexp", "wildcat"] | None = None
    """Pooling of a head that pools class maps, which no checkpoint says; left off for the linear head of the paper."""
    background: bool = False
    """With --head: one map more than classes, the first, is the background's."""
    modalities: int | None = None
    """With --head wildcat: maps per class, where they are not 5."""


def run_convert(config: ConvertConfig) -> None:
    """Convert, and say where the model is; raises `FcamError` as `convert` does."""
    options: dict[str, Any] = {"background": True} if config.background else {}
    if config.modalities is not None:
        options["modalities"] = config.modalities
    convert(config.source, config.out, classifier=config.classifier, head=config.head, head_options=options)
    print(f"model in {config.out}")
