"""C, the low-resolution map at the images' size: what seeds are drawn in, and what F-CAM is compared with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fcam.cams.compute import from_top
from fcam.cams.maps import normalize


def interpolated(
    classifier: nn.Module,
    images: Tensor,
    top: Tensor,
    class_idx: Tensor,
    method: str = "cam",
    variant: str = "published",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the maps C of an fcam classifier at the size of `images`, (B, H, W) float32 in [0, 1].

    Each map is min-max normalised at its own resolution and then enlarged bilinearly, as the authors' code does.
    Arguments as in `from_top`: `images` (B, 3, H, W) in [0, 1], `top` (B, C, h, w) their features under the pooling head,
    `class_idx` int64 (B,), `generator` for methods that look at noisy copies. Raises `FcamError` for an unknown method.
    """
    with torch.no_grad():
        raw = from_top(classifier, images, top, class_idx, method, variant=variant, generator=generator)
        return enlarged(normalize(raw), images.shape[-2:])


def enlarged(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Return normalised maps (B, h, w) at `size` (H, W), bilinearly, in [0, 1]."""
    large = F.interpolate(maps[:, None], size=list(size), mode="bilinear", align_corners=False)
    return large[:, 0].clamp(0, 1)
