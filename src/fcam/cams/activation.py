"""The softmax or sigmoid that a classifier may end in: how it is known, in a graph and in a forward pass that is watched."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_LAST = {"softmax", "logsoftmax", "sigmoid"}
_KEEPING = {"flatten", "squeeze", "unsqueeze", "view", "reshape", "getitem", "identity", "dropout"}
_RULES: dict[str, tuple[Callable[[Tensor], Tensor], ...]] = {
    "softmax": (lambda logits: logits.softmax(1), lambda logits: logits.log_softmax(1)),
    "sigmoid": (torch.sigmoid,),
}


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def is_activation(name: str) -> bool:
    """Whether a layer, function or method of this name may turn logits into probabilities."""
    return _plain(name) in _LAST


def keeps_values(name: str) -> bool:
    """Whether it changes no more than the shape, so that scores may pass through it."""
    return _plain(name) in _KEEPING


def activation_between(logits: Tensor, scores: Tensor) -> str | None:
    """Return "softmax" (or its logarithm), or "sigmoid", by which logits (B, K) became scores (B, K); None for neither.

    Found by trying: a softmax over another dimension is none.
    """
    if logits.shape != scores.shape or logits.dim() != 2:
        return None
    close = 3e-2 if torch.finfo(scores.dtype).bits <= 16 else 1e-4
    with torch.no_grad():
        for name, rules in _RULES.items():
            if any(torch.allclose(rule(logits.float()), scores.float(), close, close) for rule in rules):
                return name
    return None


def are_probabilities(outputs: Tensor) -> bool:
    """Whether the outputs (B, K) of some images add up to one, as those of no layer of logits do."""
    one = torch.ones(len(outputs), device=outputs.device)
    return outputs.shape[1] > 1 and bool((outputs >= 0).all()) and torch.allclose(outputs.sum(1), one)
