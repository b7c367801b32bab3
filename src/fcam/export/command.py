"""`fcam export`: its arguments, and what it says when it is done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from fcam import shipped
from fcam.data.find import find_images
from fcam.errors import FcamError
from fcam.export.formats import Exported, InputKind, export_onnx, export_torch
from fcam.model import FCAM
from fcam.progress import say

WRITERS = {".onnx": export_onnx, ".pt2": export_torch}


@dataclass(frozen=True)
class ExportConfig:
    """Write a model as one file that runs without fcam: .onnx, or .pt2 of torch.export.

    The file takes photos of any size and gives class scores and the foreground map. It is run and compared with
    PyTorch before it is kept.
    """

    model: Annotated[str, Positional] = shipped.DEFAULT
    """A run's folder, a model's folder, a Hugging Face repo id, or lite0, which comes with the package."""
    out: Path = Path("model.onnx")
    """The file; its suffix, .onnx or .pt2, is the format."""
    photos: tuple[str, ...] = ()
    """Photos, folders and patterns to compare on; default: pictures drawn for it."""
    input: InputKind = "float"
    """float: (batch, 3, height, width) in [0, 1]. uint8: (batch, height, width, 3), 0 to 255."""
    fixed_size: bool = False
    """Take images of the training size only, for classifiers that take no other."""
    threshold: float | None = None
    """Stored threshold of mask and boxes; default: the model's (from val), or 0.5."""
    size: int | None = None
    """Stored side of the square to resize photos to; default: the size that the model was trained on."""
    classifier: str = ""
    """module.path:factory that builds the classifier, for a model made from your own code."""


def run_export(config: ExportConfig) -> Exported:
    """Do what `fcam export` was asked for; raises `FcamError` when no file could be written."""
    write = WRITERS.get(config.out.suffix)
    if write is None:
        raise FcamError(f"--out {config.out} must end in {' or '.join(WRITERS)}; the suffix is the format")
    photos, problems = find_images(config.photos)
    if problems:
        raise FcamError("; ".join(f"{problem.path}: {problem.reason}" for problem in problems))
    model = FCAM.from_pretrained(config.model, config.classifier or None)
    done = write(
        model,
        config.out,
        photos=photos,
        input=config.input,
        fixed_size=config.fixed_size,
        threshold=config.threshold,
        size=config.size,
    )
    sizes = " and ".join(f"{height}x{width}" for height, width in done.sizes)
    what = f"{len(photos)} photos" if photos else "drawn pictures"
    say(f"{done.path}: {done.num_bytes / 1e6:.1f} MB, images: {done.note['input']}")
    say(f"equal to PyTorch on {what} at {sizes} pixels up to {done.difference:.1g}")
    return done
