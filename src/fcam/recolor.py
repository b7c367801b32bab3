"""Photos in other colours; ours, the paper has none.

Seeds and loss see the photo as it is, so a decoder that sees it in other colours learns that the object is where it was,
and relies less on colours that happen to go with the objects of a small set.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SATURATION = 1.3
"""The most that colours are strengthened by; 0 makes them grey."""
GAMMA = 2.0
"""The most, and one over it the least, that the exponent of the brightness is."""


def recolored(images: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Give every image a hue, a saturation and a gamma of its own; what is where stays.

    Args:
        images: (B, 3, H, W) in [0, 1].
        generator: draws them; on the images' device.

    Returns:
        (B, 3, H, W) in [0, 1].
    """
    hue, saturation, gamma = torch.rand(3, len(images), device=images.device, generator=generator)
    matrix = _hue_matrices(math.tau * hue)
    grey = torch.full((3, 3), 1 / 3, device=images.device)
    matrix = torch.lerp(grey, matrix, SATURATION * saturation[:, None, None]).to(images.dtype)
    turned = torch.einsum("bij,bjhw->bihw", matrix, images).clamp(0, 1)
    return (turned**GAMMA ** (2 * gamma - 1)[:, None, None, None].to(images.dtype)).contiguous(
        memory_format=torch.channels_last
    )


def _hue_matrices(angles: Tensor) -> Tensor:
    """(B,) angles to (B, 3, 3): rotations of red, green and blue about the axis of greys (Rodrigues' formula)."""
    cos, sin = angles.cos()[:, None, None], angles.sin()[:, None, None]
    identity = torch.eye(3, device=angles.device)
    turn = (identity.roll(1, 0) - identity.roll(-1, 0)) / math.sqrt(3)
    return cos * identity + (1 - cos) / 3 + sin * turn
