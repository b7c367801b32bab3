"""The centre-Gaussian baseline: the map of someone who never looked at the image."""

from __future__ import annotations

import torch
from torch import Tensor

from fcam.errors import FcamError

SIGMA_AT_224 = 60.0


def center_gaussian(height: int, width: int, *, device: torch.device | str | None = None) -> Tensor:
    """Return one (height, width) float32 map, `exp(-((x - c)^2 + (y - c)^2) / (2 s^2))`, not yet normalised.

    At 224x224 c is 112 and s is 60 pixels; other sizes stretch that map along each axis. Raises `FcamError`
    for sizes below 1. Source: the centre baseline of the WSOL evaluation protocol (Choe et al., CVPR 2020),
    which scores 59.72 MaxBoxAcc at IoU 0.5 on the CUB test list.
    """
    if height < 1 or width < 1:
        raise FcamError(f"the map must have at least one pixel, got {height}x{width}")

    def axis(size: int) -> Tensor:
        offset = torch.arange(size, dtype=torch.float32, device=device) - size / 2
        return torch.exp(-0.5 * (offset / (SIGMA_AT_224 * size / 224)) ** 2)

    return axis(height)[:, None] * axis(width)[None, :]
