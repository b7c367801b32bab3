"""RefineCAM: the training-free way to a finer map, by multiplying the maps of several layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fcam.cams.maps import normalize
from fcam.errors import FcamError


def refine(maps: Sequence[Tensor]) -> Tensor:
    """Return the product of the layers' maps at the finest of their resolutions.

    `maps` holds one (..., h_l, w_l) raw map per layer; the result is (..., h, w) float32 in [0, 1], not
    normalised: `R = prod_l U(N(L_l))`, L_l the map of layer l (Grad-CAM++ in the paper), N min-max to [0,
    1], U bilinear to the finest size. A layer with an empty map empties the product. Raises `FcamError` for
    fewer than two layers. Source: Domeniconi et al., "How to Evaluate and Refine your CAM", arXiv
    2605.14641 (2026).
    """
    if len(maps) < 2:
        raise FcamError(f"refinecam multiplies the maps of at least two layers, got {len(maps)}")
    size = max((tuple(m.shape[-2:]) for m in maps), key=lambda hw: hw[0] * hw[1])
    product = torch.ones((), device=maps[0].device)
    for layer in maps:
        scaled = normalize(layer).reshape(-1, 1, *layer.shape[-2:])
        larger = F.interpolate(scaled, size, mode="bilinear", align_corners=False)
        product = product * larger.view(*layer.shape[:-2], *size)
    return product
