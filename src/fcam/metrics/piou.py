"""Pixel overlap: the best intersection over union of the thresholded maps of a split with its masks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fcam.metrics.box_acc import number_index, plateau
from fcam.metrics.histogram import PixelTally


class PIoU(PixelTally):
    """Intersection over union of `value >= tau` with the masks, all pixels of the split, at the best tau.

    Unlike in the box metrics, tau is the value itself, not relative to each map's maximum.

    Args:
        thresholds: number T of thresholds in [0, 1), to which 1 is added.
        images: number of images of the split, to count each once by `ids` (see `fcam.metrics.tally`).
    """

    def __init__(self, thresholds: int = 1000, images: int | None = None, **kwargs: Any) -> None:
        super().__init__(thresholds, images, **kwargs)

    def _curve(self) -> Tensor:
        true, false, positives, _ = self._counts()
        return torch.from_numpy(100.0 * true[:-1] / (positives + false[:-1]))

    def compute(self) -> Tensor:
        """Return the overlap at the best threshold of this split, a float64 scalar in percent."""
        return self._curve().max()

    def thresholds(self) -> Tensor:
        """Return the thresholds, (T + 1,) float64 in [0, 1]."""
        return torch.from_numpy(self.edges[:-1].copy())

    def curve(self) -> Tensor:
        """Return the overlap at all of `thresholds()`, (T + 1,) float64 in percent."""
        with self._synced():
            return self._curve()

    def best_threshold(self) -> Tensor:
        """Return the first threshold that is best on this split, a float64 scalar in [0, 1]."""
        return self.thresholds()[self.curve().argmax()]

    def plateau_threshold(self) -> Tensor:
        """Return the middle of the longest run of thresholds that are best, a float64 scalar in [0, 1]; for other images."""
        return self.thresholds()[plateau(self.curve())]

    def at_threshold(self, tau: float | Tensor) -> Tensor:
        """Return the overlap in percent at a threshold carried over from another split, a float64 scalar.

        Raises `FcamError` for a threshold that is not on this metric's grid.
        """
        return self.curve()[number_index(self.edges[:-1], tau)]
