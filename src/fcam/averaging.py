"""Moving average of the trained weights: what is validated and kept does not depend on the last few noisy steps (ours)."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

STEPS, PREFIX = "n_averaged", "module."
"""Keys of a state: the number of steps, and what stands before the names of the averaged tensors."""


class WeightAverage:
    """Exponential moving average of a module's weights and batch statistics.

    After n steps the average keeps min(decay, (1 + n) / (10 + n)) of itself, so that the first steps, far from where
    training ends, are forgotten quickly. Steps are counted here and not on the device: `update` never waits for it.

    Args:
        module: what is trained; its values at this moment are not part of the average.
        decay: share of the average that each step keeps, 0 to 1; at 0 the module itself stands for the average.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.module, self.decay, self.steps = module, decay, 0
        self._average = copy.deepcopy(module) if decay > 0 else None

    @torch.no_grad()
    def update(self) -> None:
        """Take in the module's present values; called after every optimizer step."""
        if self._average is None:
            return
        share = min(self.decay, (1 + self.steps) / (10 + self.steps))
        for average, value in zip(_tensors(self._average), _tensors(self.module), strict=True):
            blended = self.steps > 0 and value.is_floating_point()
            average.copy_(torch.lerp(value, average, share) if blended else value)
        self.steps += 1

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block the module holds the averaged values."""
        if self._average is None:
            yield
            return
        own = {name: value.detach().clone() for name, value in self.module.state_dict().items()}
        self.module.load_state_dict(self._average.state_dict())
        try:
            yield
        finally:
            self.module.load_state_dict(own)

    def state_dict(self) -> dict[str, Any] | None:
        """The average as it goes into the resume point; None when there is none."""
        if self._average is None:
            return None
        tensors = {f"{PREFIX}{name}": value for name, value in self._average.state_dict().items()}
        return {STEPS: torch.tensor(self.steps), **tensors}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Go on from a resume point; raises what `torch.nn.Module.load_state_dict` does, and KeyError without a count."""
        if self._average is not None and state is not None:
            tensors = {name.removeprefix(PREFIX): value for name, value in state.items() if name != STEPS}
            self._average.load_state_dict(tensors)
            self.steps = int(state[STEPS])


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    return chain(module.parameters(), module.buffers())
