"""H(Y, S): cross-entropy on the few pixels that carry a pseudo-label (paper, eq. 3)."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from fcam.seeds import IGNORE


def partial_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean of  -Σ_t Y_p^t log S_p^t  over the labelled pixels p ∈ Ω' of the whole batch.

    The paper writes a sum over Ω'; the mean, which the authors' code takes, keeps α independent of the number of drawn
    pixels. A batch without any labelled pixel gives 0 with a zero gradient.

    Args:
        logits: (B, 2, H, W) maps before the softmax, index 0 background.
        labels: (B, H, W) int64 with 1 foreground, 0 background, `IGNORE` elsewhere.

    Returns:
        scalar float32.
    """
    loss = F.cross_entropy(logits.float(), labels, ignore_index=IGNORE, reduction="sum")
    # A count on the device instead of `.item()`: the training step never waits for the accelerator.
    return loss / (labels != IGNORE).sum().clamp(min=1)
