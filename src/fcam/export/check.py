"""Whether an exported file gives what the model gives, on photos or on pictures drawn for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fcam.data.synthetic import draw_image
from fcam.errors import FcamError
from fcam.model import FCAM, foreground
from fcam.predict.localizer import Localizer, Photo

INPUT = "images"
OUTPUTS = ("logits", "probabilities", "foreground")
TOLERANCE = 1e-4
DRAWN = 2
"""Pictures that are drawn where no photo is given."""


def sizes_for(side: int, fixed: bool = False) -> tuple[tuple[int, int], ...]:
    """(height, width) to compare at: the square that the network was trained on, and one with odd sides."""
    square, odd = (side, side), (max(33, side * 3 // 4 | 1), max(45, side // 2 | 1))
    return (square,) if fixed else (square, odd)


def batches(
    localizer: Localizer, photos: Sequence[Photo], sizes: Sequence[tuple[int, int]]
) -> Iterator[Tensor]:
    """All photos at all sizes, two at a time, and the first one alone, as uint8 (B, 3, h, w)."""
    shrunk = [_at_sizes(localizer.open(photo), sizes) for photo in photos] or [
        _at_sizes(picture, sizes) for picture in drawn(localizer.size)
    ]
    if len(shrunk) % 2:  # batches of one are the exception
        shrunk.append([image.flip(2) for image in shrunk[0]])
    for tensors in zip(*shrunk, strict=True):
        for first in range(0, len(tensors), 2):
            yield torch.stack(tensors[first : first + 2])
        yield tensors[0][None]


def _at_sizes(image: Image.Image, sizes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """A photo at each (height, width) as uint8 (3, h, w); the photo itself may be too large to keep many."""
    small = [image.resize((width, height), Image.Resampling.BILINEAR) for height, width in sizes]
    return [torch.from_numpy(np.array(one)).permute(2, 0, 1) for one in small]


def drawn(side: int) -> list[Image.Image]:
    """Pictures of side `side`, or 64 where that is smaller."""
    return [
        Image.fromarray(draw_image(i, max(side, 64), np.random.default_rng(i)).image) for i in range(DRAWN)
    ]


@torch.inference_mode()
def check(
    run: Callable[[Tensor], Sequence[Any]], model: FCAM, batches: Iterable[Tensor], pixels: bool = False
) -> float:
    """Compare `run` with `model` on uint8 batches (B, 3, h, w); return the largest difference of any output.

    `run` takes them as float (B, 3, h, w) in [0, 1], or as they are in (B, h, w, 3) if `pixels`. Logits are compared
    relative to the largest of them where that is above 1. Raises `FcamError` when the difference reaches 1e-4.
    """
    worst = 0.0
    for batch in batches:
        images = batch.float() / 255
        out = model(images)
        wanted = (out.logits, model.classifier.probabilities(out.logits), foreground(out.maps))
        if not all(bool(value.isfinite().all()) for value in wanted):
            raise FcamError("the model's own output is not finite; nothing was written, check its weights")
        found = run(batch.permute(0, 2, 3, 1).contiguous() if pixels else images)
        for name, want, have in zip(OUTPUTS, wanted, found, strict=True):
            worst = max(worst, _difference(name, want, torch.as_tensor(have), batch))
    return worst


def _difference(name: str, want: Tensor, have: Tensor, batch: Tensor) -> float:
    where = f"for {len(batch)} images of {batch.shape[2]}x{batch.shape[3]}"
    if have.shape != want.shape:
        raise FcamError(
            f"the exported network gives {name} of shape {tuple(have.shape)} {where}, not {tuple(want.shape)}; "
            "nothing was written, try --fixed-size (in Python fixed_size=True)"
        )
    scale = max(1.0, float(want.abs().max())) if name == "logits" else 1.0
    difference = float((have - want).abs().max()) / scale
    if not difference < TOLERANCE:
        raise FcamError(
            f"the exported network's {name} differ from PyTorch's by {difference:.2g} {where}, and less than "
            f"{TOLERANCE:g} is asked; nothing was written, try --fixed-size (in Python fixed_size=True)"
        )
    return difference
