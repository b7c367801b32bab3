"""The pixel alignment loss: named terms, weights, epoch windows (paper, eq. 3)."""

from __future__ import annotations

from torch import Tensor, nn

from fcam.config import EpochWindow, LossConfig
from fcam.losses.crf import CRFLoss
from fcam.losses.entropy import pixel_entropy
from fcam.losses.partial_ce import partial_cross_entropy
from fcam.losses.size import barrier_t, size_constraint

TERMS = {"partial_ce": "alpha", "crf": "crf", "size": "size", "entropy": "entropy"}
"""Terms by name, and the field of `LossConfig` that is the weight of each; `..._epochs` is its window."""


def is_on(epoch: int, window: EpochWindow) -> bool:
    """Whether `epoch` (from 1) lies in the window (first, last); last = -1 means without end."""
    first, last = window
    return first <= epoch and (last < 0 or epoch <= last)


def terms_on(config: LossConfig, epoch: int) -> set[str]:
    """Names of the terms that have a weight and whose window holds `epoch`."""
    return {
        term
        for term, name in TERMS.items()
        if getattr(config, name) > 0 and is_on(epoch, getattr(config, f"{name}_epochs"))
    }


class PixelAlignmentLoss(nn.Module):
    """α H(Y, S) + λ R(S, X) + w · size(S), stage 2's loss; the classification term is stage 1's.

    Args:
        config: weights and windows; a term with weight 0, or outside its window, is neither computed nor returned.
    """

    def __init__(self, config: LossConfig) -> None:
        super().__init__()
        self.config = config
        self.crf = CRFLoss(config.sigma_rgb, config.sigma_xy, method=config.crf_filter)

    def needs_seeds(self, epoch: int) -> bool:
        """Whether the partial cross-entropy is on in `epoch`."""
        return "partial_ce" in terms_on(self.config, epoch)

    def forward(self, logits: Tensor, labels: Tensor | None, images: Tensor, epoch: int) -> dict[str, Tensor]:
        """Weighted terms by name; their sum is the loss.

        Args:
            logits: (B, 2, H, W) decoder output before the softmax.
            labels: Y, (B, H, W), see `fcam.seeds.sample_seeds`; None when `needs_seeds` is False.
            images: X, (B, 3, H, W) in [0, 1].
            epoch: running epoch, from 1.

        Returns:
            {"partial_ce", "crf", "size", "entropy"} restricted to the terms that are on, scalars float32.
        """
        config, on = self.config, terms_on(self.config, epoch)
        maps = logits.float().softmax(1)
        terms: dict[str, Tensor] = {}
        if labels is not None and "partial_ce" in on:
            terms["partial_ce"] = config.alpha * partial_cross_entropy(logits, labels)
        if "crf" in on:
            terms["crf"] = config.crf * self.crf(maps, images)
        if "size" in on:
            t = barrier_t(epoch, config.barrier_t, config.barrier_growth, config.barrier_max)
            terms["size"] = config.size * size_constraint(maps, t)
        if "entropy" in on:
            terms["entropy"] = config.entropy * pixel_entropy(maps)
        return terms
