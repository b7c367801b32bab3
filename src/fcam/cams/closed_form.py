"""Class activation maps of a global average pooling + linear head: exact, batched, without backward.

On such a head the score is `Y = b + sum_k w_k mean(A_k)`, so its gradient with respect to A_k is the
constant `w_k / hw`. Every gradient method then becomes an expression in A and w alone. The constant
`1 / hw` is left out (a positive factor that min-max removes), which puts raw maps in units of the logit:
the mean over space of a raw CAM plus the bias is the class score.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fcam.errors import FcamError

CLOSED_FORMS = ("cam", "gradcam", "gradcampp", "smoothgradcampp", "xgradcam", "layercam")
VARIANTS = ("published", "reference")


def from_features(
    top: Tensor,
    weight: Tensor,
    class_idx: Tensor,
    method: str = "cam",
    *,
    variant: str = "published",
    noisy_top: Tensor | None = None,
) -> Tensor:
    """Return the raw map of one or several classes per image, from the features that feed global pooling.

    `top` is (B, C, h, w), `weight` the (K, C) matrix of the linear head, `class_idx` int64 of shape (B,) or
    (B, n); the result is float32, (B, h, w) or (B, n, h, w), not normalised. `method`: one of `CLOSED_FORMS`.
    `variant="reference"` follows the authors' code: Grad-CAM++ without its denominator, and Smooth-Grad-CAM++
    over `noisy_top`, the features of the last noisy image (noise of std 0.3 on the normalised image).
    Raises `FcamError` for wrong shapes, an unknown method or variant, or a missing `noisy_top`.
    Sources: Zhou 2016 (CAM), Selvaraju 2017 (Grad-CAM), Chattopadhay 2018 (Grad-CAM++), Omeiza 2019
    (Smooth-Grad-CAM++), Fu 2020 (XGrad-CAM), Jiang 2021 (LayerCAM), each with `g_k = w_k / hw` inserted.
    """
    _check(top, weight, class_idx, method, variant)
    activation = top
    with torch.autocast(top.device.type, enabled=False):
        rows = weight.float()[class_idx.to(weight.device)]  # (B, C) or (B, n, C)
        single = rows.dim() == 2
        if single:
            rows = rows[:, None]
        if method == "layercam":
            rows = F.relu(rows)
        elif method == "gradcampp" and variant == "reference":
            rows = F.relu(rows) ** 3
        elif method in ("gradcampp", "smoothgradcampp"):
            rows = _plus_plus_weights(rows, top)
            if method == "smoothgradcampp" and variant == "reference":
                activation = _last_noisy(noisy_top, top)
        maps = torch.bmm(rows, activation.float().flatten(2)).unflatten(2, tuple(top.shape[-2:]))
        if method != "cam":
            maps = F.relu(maps)
    return maps[:, 0] if single else maps


def _plus_plus_weights(rows: Tensor, top: Tensor) -> Tensor:
    """Weights of Grad-CAM++, `relu(w) / (2 + w mean(A))`, for head rows (B, n, C), features (B, C, h, w).

    Where w <= 0 the weight is 0 whatever the denominator, hence the ReLU below as well. The denominator can
    still vanish for activations that go below zero; such a channel says nothing and is left out.
    """
    positive = F.relu(rows)
    mean = top.float().mean((2, 3))[:, None]
    return torch.nan_to_num(positive / (2 + positive * mean), nan=0.0, posinf=0.0, neginf=0.0)


def _last_noisy(noisy_top: Tensor | None, top: Tensor) -> Tensor:
    if noisy_top is None:
        raise FcamError(
            "smoothgradcampp in the reference variant maps the features of the last noisy image; noisy_top "
            "is None; pass noisy_top, or take variant='published', which needs no noise on a linear head"
        )
    if noisy_top.shape != top.shape:
        raise FcamError(
            f"noisy_top has shape {tuple(noisy_top.shape)} but top has {tuple(top.shape)}; they must be equal"
        )
    return noisy_top


def _check(top: Tensor, weight: Tensor, class_idx: Tensor, method: str, variant: str) -> None:
    if method not in CLOSED_FORMS:
        raise FcamError(f"'{method}' has no closed form; those that have one are {', '.join(CLOSED_FORMS)}")
    if variant not in VARIANTS:
        raise FcamError(f"unknown variant '{variant}'; take 'published' or 'reference'")
    if top.dim() != 4:
        raise FcamError(
            f"top must be (B, C, h, w), got {tuple(top.shape)}; pass the features before global pooling"
        )
    if weight.dim() != 2 or weight.shape[1] != top.shape[1]:
        raise FcamError(f"weight must be (classes, {top.shape[1]}) to fit top, got {tuple(weight.shape)}")
    if class_idx.dim() not in (1, 2) or class_idx.shape[0] != top.shape[0] or class_idx.dtype != torch.int64:
        raise FcamError(
            f"class_idx must be int64 of shape ({top.shape[0]},) or ({top.shape[0]}, n), "
            f"got {class_idx.dtype} {tuple(class_idx.shape)}; give one row per image"
        )
    # Reading the values on an accelerator would make it wait at every training step; fcam.cam checks them.
    if class_idx.device.type == "cpu" and class_idx.numel():
        low, high = int(class_idx.min()), int(class_idx.max())
        if low < 0 or high >= weight.shape[0]:
            raise FcamError(
                f"class_idx spans {low}..{high} but the head has classes 0..{weight.shape[0] - 1}"
            )
