"""R(S, X): the dense CRF loss (paper, supplementary eq. 1; Tang et al. 2018)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from fcam import bilateral

# The filter's kernels are compiled already, and torch.compile cannot follow them.
_filter = cast(Callable[..., Tensor], torch.compiler.disable(bilateral.filter))


class _QuadraticForm(torch.autograd.Function):
    """Σ_t of a quadratic form in S with a symmetric W: one filtering gives both value and gradient."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, filtered: Tensor, published: bool) -> Tensor:
        if published:
            # The maps sum to one, so their filtered maps sum to the degree W1 and need no filtering of their own.
            degree = filtered.sum(1, keepdim=True)
            value = (maps * (degree - filtered)).sum()
            gradient = degree - 2 * filtered
        else:
            value = -(maps * filtered).sum()
            gradient = -2 * filtered
        ctx.save_for_backward(gradient / maps.shape[0])
        return value / maps.shape[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return grads[0] * gradient, None, None


class CRFLoss(nn.Module):
    """R(S, X) = Σ_t S^tᵀ W (1 - S^t), averaged over the images of the batch.

    W is the Gaussian affinity of colours and positions, `fcam.bilateral`. It is neither normalised by its row sums nor
    by the number of pixels, so λ depends on the resolution: multiply it by s⁻⁴ when both sides shrink by s.

    Args:
        sigma_rgb: colour bandwidth in 8-bit levels.
        sigma_xy: position bandwidth in pixels.
        method: filter, see `fcam.bilateral.filter`.
        form: "published" is the paper's value, 0 for a cut through no affinity; "reference" is the authors' code,
            -Σ_t S^tᵀ W S^t. Both have the same gradient behind a softmax.
    """

    def __init__(
        self,
        sigma_rgb: float = 15.0,
        sigma_xy: float = 100.0,
        method: Literal["gaussian", "lattice"] = "gaussian",
        form: Literal["published", "reference"] = "published",
    ) -> None:
        super().__init__()
        self.sigma_rgb, self.sigma_xy, self.form = sigma_rgb, sigma_xy, form
        self.method: Literal["gaussian", "lattice"] = method

    def forward(self, maps: Tensor, images: Tensor) -> Tensor:
        """Value of R.

        Args:
            maps: S, (B, 2, H, W), softmax over dim 1.
            images: X, (B, 3, H, W) in [0, 1], at the same resolution.

        Returns:
            scalar float32.
        """
        maps = maps.float()
        with torch.no_grad():
            filtered = _filter(images, maps.detach(), self.sigma_rgb, self.sigma_xy, method=self.method)
        value: Any = _QuadraticForm.apply(maps, filtered, self.form == "published")
        return value
