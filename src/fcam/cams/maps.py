"""What a raw class activation map goes through before anyone looks at it: min-max, report of empty maps."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fcam.errors import FcamError


def normalize(maps: Tensor | np.ndarray) -> Tensor:
    """Scale each map to [0, 1] by its own minimum and maximum, at the resolution given, without an epsilon.

    `maps` is (..., h, w) of any float type, a tensor or an array; the result has the same shape in float32. A map that is
    constant or holds a NaN or an infinity becomes zeros; `empty_maps` says which. Raises `FcamError` for
    fewer than two dimensions. Source: the F-CAM reference protocol, which normalises before it upsamples.
    """
    values, low, span, usable = _range(maps)
    scaled = (values - low) / torch.where(usable, span, 1.0)
    return torch.where(usable, scaled, 0.0)


def empty_maps(maps: Tensor | np.ndarray) -> Tensor:
    """Tell which maps say nothing: constant, or holding a NaN or an infinity.

    `maps` is (..., h, w), raw or normalised; the result is bool, (B,) for (B, h, w).
    Raises `FcamError` for fewer than two dimensions.
    """
    usable = _range(maps)[3]
    return ~usable[..., 0, 0]


def _range(maps: Tensor | np.ndarray) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return float32 maps, and per map (..., 1, 1) the minimum, the span and whether it can be scaled."""
    maps = torch.as_tensor(maps)
    if maps.dim() < 2 or maps.shape[-1] == 0 or maps.shape[-2] == 0:
        raise FcamError(
            f"maps must be (..., h, w) with at least one pixel, got shape {tuple(maps.shape)}; "
            "pass maps as returned by fcam.cam"
        )
    values = maps.float()
    low = values.amin((-2, -1), keepdim=True)
    span = values.amax((-2, -1), keepdim=True) - low
    # amin and amax hand NaN on, so one look at the span finds NaN, infinity and the constant map.
    return values, low, span, torch.isfinite(span) & (span > 0)
