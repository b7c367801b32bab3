"""Mosaics: four photos of a batch at half their side, two by two, with their maps; ours, the paper has none.

Photos of data sets show one object that fills the middle. In a mosaic objects are small and stand anywhere, and their maps
are known: those of the photos, made small in the same way.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def draw_mosaics(
    images: Tensor, maps: Tensor | None, count: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor | None]:
    """Draw `count` mosaics from a batch; no photo comes twice in one unless there are fewer than four.

    Args:
        images: (B, 3, H, W).
        maps: (B, H, W), or None.
        generator: draws the photos; on the images' device.

    Returns:
        mosaics (count, 3, H, W) and their maps (count, H, W), or None.
    """
    chances = torch.ones(count, len(images), device=images.device)
    photos = torch.multinomial(chances, 4, replacement=len(images) < 4, generator=generator)
    tiled = _tile(images, photos).contiguous(memory_format=torch.channels_last)
    return tiled, None if maps is None else _tile(maps[:, None], photos)[:, 0]


def _tile(images: Tensor, photos: Tensor) -> Tensor:
    """(B, C, H, W) and (count, 4) places in the batch to (count, C, H, W)."""
    height, width = images.shape[-2:]
    heights, widths = (height - height // 2, height // 2), (width - width // 2, width // 2)
    rows = []
    for row, h in enumerate(heights):
        tiles = [
            F.interpolate(images[photos[:, 2 * row + column]], (h, w), mode="bilinear", antialias=True)
            for column, w in enumerate(widths)
        ]
        rows.append(torch.cat(tiles, dim=3))
    return torch.cat(rows, dim=2)
