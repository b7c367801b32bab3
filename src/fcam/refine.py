"""A map refined along the photo's edges: mean-field inference in the dense CRF that the paper's loss relaxes."""

from __future__ import annotations

import torch
from torch import Tensor

from fcam import bilateral
from fcam.errors import FcamError

WEIGHT = 3.0
"""Log-odds that a pixel gains where all that looks like it nearby is object, and loses where none is."""
SIGMA_RGB = 15.0
"""What looks alike, in 8-bit levels, as in the loss."""
SIGMA_XY = 30 / 224
"""What is nearby, as a share of the image's side."""
ITERATIONS = 5
_LEAST = 1e-4
"""Maps are kept this far from 0 and 1, where no neighbour could change them."""


def refine(images: Tensor, maps: Tensor, threshold: float) -> Tensor:
    """Let pixels of one colour agree on whether they are object, starting from maps that are cut at `threshold`.

    Each iteration adds to a pixel's own log-odds `WEIGHT` times how its neighbourhood leans, from -1 (all of it below the
    threshold) to 1: q_i = σ(u_i + w (2 Σ_j W_ij q_j / Σ_j W_ij - 1)), where W is the Gaussian affinity of `fcam.bilateral`
    and u the log-odds relative to the threshold. Nothing is learned. It is no part of the paper; Krähenbühl and Koltun,
    NeurIPS 2011, with one kernel, normalised by its row sums.

    Args:
        images: (B, 3, H, W) floats in [0, 1], as the network saw them.
        maps: (B, H, W) in [0, 1], on the same device.
        threshold: share of a map's maximum, [0, 1), at which it will be cut.

    Returns:
        maps (B, H, W) float32 in [0, 1] for the same threshold; a constant map comes back as it is.

    Raises:
        FcamError: maps of another shape than the images.
    """
    if maps.shape != (len(images), *images.shape[-2:]):
        raise FcamError(
            f"maps have shape {tuple(maps.shape)} and images {tuple(images.shape)}; pass (B, H, W) and (B, 3, H, W)"
        )
    maps = maps.float()
    height, width = maps.shape[-2:]
    near = bilateral.Filter(images, SIGMA_RGB, SIGMA_XY * (height * width) ** 0.5)
    own = _log_odds(maps)[:, None]
    degree = near.apply(torch.ones_like(own))
    refined = own
    for _ in range(ITERATIONS):
        cut = threshold * refined.sigmoid().amax((2, 3), keepdim=True)
        object = (refined - _log_odds(cut)).sigmoid()
        refined = own + WEIGHT * (2 * near.apply(object) / degree - 1)
    constant = maps.amax((1, 2), keepdim=True) == maps.amin((1, 2), keepdim=True)
    return torch.where(constant, maps, refined.sigmoid()[:, 0])


def _log_odds(probabilities: Tensor) -> Tensor:
    return probabilities.clamp(_LEAST, 1 - _LEAST).logit()
