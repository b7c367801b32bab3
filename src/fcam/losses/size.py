"""The absolute size constraint and its extended log-barrier (paper, eq. 3, "s.t."; Kervadec et al. 2019)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def barrier_t(epoch: int, initial: float = 1.0, growth: float = 1.01, largest: float = 10.0) -> float:
    """t of the barrier while epoch `epoch` (from 1) runs: initial · growth^(epoch - 1), at most `largest`."""
    try:
        return min(initial * growth ** (epoch - 1), largest)
    except OverflowError:  # of a power that is far beyond `largest`
        return largest


def extended_log_barrier(f: Tensor, t: float) -> Tensor:
    """Smooth penalty for the constraint f <= 0, defined for every f.

    -(1/t) log(-f)                          where f <= -1/t²
    t f - (1/t) log(1/t²) + 1/t             elsewhere

    Args:
        f: any shape.
        t: sharpness, > 0.

    Returns:
        the shape of `f`.
    """
    switch = 1.0 / t**2
    # The clamp keeps the untaken branch finite, so that its gradient is 0 and not NaN.
    barrier = -(-f).clamp(min=switch).log() / t
    linear = t * f - _log(switch, f) / t + 1.0 / t
    return torch.where(f <= -switch, barrier, linear)


def _log(number: float, like: Tensor) -> float | Tensor:
    """Natural logarithm. That of `math` would be a constant of a compiled graph, and every epoch's t cost another graph."""
    return like.new_full((), number).log() if torch.compiler.is_compiling() else math.log(number)


def size_constraint(maps: Tensor, t: float) -> Tensor:
    """½ Σ_r ELB_t(-Σ_p S_p^r), averaged over the batch: both regions are pushed to be large.

    Sizes are sums over pixels, not shares of the image.

    Args:
        maps: S, (B, 2, H, W), softmax over dim 1.
        t: barrier sharpness of the epoch, see `barrier_t`.

    Returns:
        scalar float32.
    """
    sizes = maps.float().sum((2, 3))
    return 0.5 * extended_log_barrier(-sizes, t).mean(0).sum()
