"""Images for timing. The CRF filter's cost depends on how many colours an image has, so plain noise will not do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from fcam.data.images import open_image
from fcam.errors import FcamError

PHOTO_TYPES = {".jpg", ".jpeg", ".png"}


def pictures(count: int, side: int, photos: Path | None = None) -> Tensor:
    """Return (count, 3, side, side) uint8 on the CPU: photos of a folder in a fixed order, or drawn pictures.

    Raises `FcamError` when the folder holds no photo.
    """
    if photos is None:
        return drawn(count, side)
    files = sorted(path for path in photos.rglob("*") if path.suffix.lower() in PHOTO_TYPES)
    if not files:
        raise FcamError(f"{photos} holds no .jpg or .png files; leave --photos off for drawn pictures")
    order = np.random.default_rng(0).permutation(len(files))
    chosen = [files[order[i % len(files)]] for i in range(count)]
    small = [open_image(path).resize((side, side), Image.Resampling.BILINEAR) for path in chosen]
    return torch.stack([torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in small])


def drawn(count: int, side: int) -> Tensor:
    """Soft blobs of muted colours with sensor noise, the same ones in every call, (count, 3, side, side) uint8.

    Contrast, colour and noise are such that an image has about as many colours as a photograph (4000 cells of a third
    of sigma_rgb), and the CRF filter has as much to do.
    """
    generator = torch.Generator().manual_seed(0)

    def blobs(channels: int) -> Tensor:
        coarse = torch.rand(count, channels, 7, 7, generator=generator) - 0.5
        return F.interpolate(coarse, (side, side), mode="bicubic", align_corners=False)

    def noise(channels: int) -> Tensor:
        return torch.randn(count, channels, side, side, generator=generator)

    images = 0.5 + 0.75 * blobs(1) + 0.15 * blobs(3) + 0.03 * noise(1) + 0.01 * noise(3)
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)


def soft_maps(count: int, side: int) -> Tensor:
    """Smooth maps S (count, 2, side, side) that sum to one, on the CPU."""
    generator = torch.Generator().manual_seed(1)
    coarse = 3 * torch.randn(count, 2, 6, 6, generator=generator)
    return F.interpolate(coarse, (side, side), mode="bilinear", align_corners=False).softmax(1)
