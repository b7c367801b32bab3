"""The same maps for heads that are not linear: from the gradient of the score with respect to the features.

Gradients come in as `G = hw dY/dA`. That scale makes raw maps comparable with the closed forms (for global
average pooling + linear G is the weight itself), and keeps half precision gradients away from underflow.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fcam.errors import FcamError


def from_gradients(
    activation: Tensor, gradient: Tensor, method: str = "gradcam", *, variant: str = "published"
) -> Tensor:
    """Return raw maps (B, n, h, w) float32 from features (B, C, h, w) and G = hw dY/dA (B, n, C, h, w).

    `method` is cam, gradcam, gradcampp, xgradcam or layercam; `cam` is Grad-CAM without its ReLU, which is
    CAM wherever the head is linear. `variant="reference"` drops the denominator of Grad-CAM++, as the
    authors' code does. Raises `FcamError` for another method. Sources as in `from_features`.
    """
    with torch.autocast(activation.device.type, enabled=False):
        A = activation.float()[:, None]
        G = gradient.float()
        if method == "layercam":
            return F.relu((F.relu(G) * A).sum(2))
        if method in ("cam", "gradcam"):
            weights = G.mean((3, 4))
        elif method == "xgradcam":
            weights = _finite((G * A).sum((3, 4)) / A.sum((3, 4)))
        elif method == "gradcampp" and variant == "reference":
            weights = (F.relu(G) ** 3).mean((3, 4))
        elif method == "gradcampp":
            weights = smooth_weights(A, G, G**2, G**3)
        else:
            raise FcamError(f"'{method}' is not made from one gradient; take gradcam or call fcam.cam")
        maps = weigh(weights, A[:, 0])
        return maps if method == "cam" else F.relu(maps)


def smooth_weights(
    A: Tensor, first: Tensor, second: Tensor, third: Tensor, *, variant: str = "published"
) -> Tensor:
    """Return channel weights (B, n, C) of (Smooth-)Grad-CAM++ from moments of G, each (B, n, C, h, w).

    `A` is (B, 1, C, h, w). Published (Chattopadhay eq. 19, Omeiza eq. 10): `alpha = G2 / (2 G2 + G3 sum A)`
    at each pixel. Reference: the authors' code sums `G3 A` instead, the same thing where G is constant over
    space.
    """
    spread = third * A.mean((3, 4), keepdim=True)
    if variant == "reference":
        spread = (third * A).mean((3, 4), keepdim=True)
    alpha = _finite(second / (2 * second + spread))
    return (alpha * F.relu(first)).mean((3, 4))


def weigh(weights: Tensor, activation: Tensor) -> Tensor:
    """Return `sum_k w_k A_k`: weights (B, n, C) and features (B, C, h, w) to maps (B, n, h, w)."""
    return torch.bmm(weights, activation.flatten(2)).unflatten(2, tuple(activation.shape[-2:]))


def _finite(weights: Tensor) -> Tensor:
    """0/0 in a dead channel says nothing: such terms count as zero, as in the reference's nansum."""
    return torch.nan_to_num(weights, nan=0.0, posinf=0.0, neginf=0.0)
