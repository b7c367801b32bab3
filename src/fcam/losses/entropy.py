"""Mean pixel entropy of S; a term of the authors' code that the paper leaves off."""

from __future__ import annotations

from torch import Tensor


def pixel_entropy(maps: Tensor) -> Tensor:
    """-(1/n|Ω|) Σ_p Σ_t S_p^t log2 S_p^t, in bits.

    Args:
        maps: S, (B, 2, H, W), softmax over dim 1.

    Returns:
        scalar float32 in [0, 1].
    """
    maps = maps.float()
    return -(maps * maps.clamp(min=1e-12).log2()).sum(1).mean()
