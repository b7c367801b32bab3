"""Moving average of the trained weights: what is validated and kept does not depend on the last few noisy steps (ours)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel


class WeightAverage:
    """Exponential moving average of a module's weights and batch statistics.

    After n steps the average keeps min(decay, (1 + n) / (10 + n)) of itself, so that the first steps, far from where
    training ends, are forgotten quickly.

    Args:
        module: what is trained; its values at this moment are not part of the average.
        decay: share of the average that each step keeps, 0 to 1; at 0 the module itself stands for the average.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.module = module
        self._average = None
        if decay > 0:

            def blend(average: Tensor, value: Tensor, steps: Tensor | int) -> Tensor:
                if not torch.is_floating_point(value):
                    return value
                return torch.lerp(value, average, min(decay, (1 + int(steps)) / (10 + int(steps))))

            self._average = AveragedModel(module, avg_fn=blend, use_buffers=True)

    def update(self) -> None:
        """Take in the module's present values; called after every optimizer step."""
        if self._average is not None:
            self._average.update_parameters(self.module)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block the module holds the averaged values."""
        if self._average is None:
            yield
            return
        own = {name: value.detach().clone() for name, value in self.module.state_dict().items()}
        self.module.load_state_dict(self._average.module.state_dict())
        try:
            yield
        finally:
            self.module.load_state_dict(own)

    def state_dict(self) -> dict[str, Any] | None:
        """The average as it goes into the resume point; None when there is none."""
        return None if self._average is None else self._average.state_dict()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Go on from a resume point."""
        if self._average is not None and state is not None:
            self._average.load_state_dict(state)
