"""Pixel average precision (Choe et al., CVPR 2020): precision against recall of all pixels of a split."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fcam.metrics.box_acc import number_index
from fcam.metrics.histogram import PixelTally


class PrecisionRecall(NamedTuple):
    """The curve from the highest threshold down, in percent; precision is NaN where nothing is predicted."""

    precision: Tensor
    recall: Tensor
    thresholds: Tensor


class PixelScores(NamedTuple):
    """Precision, recall and overlap of `value >= tau` with the masks, in percent."""

    precision: float
    recall: float
    iou: float


def precision_recall(
    true_positives: np.ndarray, false_positives: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return precision and recall (fractions) from counts at falling thresholds; 0 / 0 is NaN."""
    with np.errstate(invalid="ignore"):
        return true_positives / (true_positives + false_positives), true_positives / true_positives[-1]


def average_precision(precision: np.ndarray, recall: np.ndarray) -> float:
    """Return 100 times the sum of precision times the step in recall, no interpolation, first bin left out.

    The first bin holds no value at all in a valid map, so nothing is lost by leaving it out; Choe et al.,
    CVPR 2020.
    """
    area = precision[1:] * np.diff(recall)
    return float(area[~np.isnan(precision[1:])].sum() * 100)


class PxAP(PixelTally):
    """Area under the precision-recall curve of the pixels of the whole split, in percent.

    Pixels of all images are pooled (not averaged per image); values of equal bins share one point of the
    curve. Choe et al., CVPR 2020, section 4.1 and their code.

    Args:
        thresholds: number T of bins in [0, 1); values of exactly 1 have their own.
        images: number of images of the split, to count each once by `ids` (see `fcam.metrics.tally`).
    """

    def __init__(self, thresholds: int = 1000, images: int | None = None, **kwargs: Any) -> None:
        super().__init__(thresholds, images, **kwargs)

    def _fractions(self) -> tuple[np.ndarray, np.ndarray]:
        true, false, _, _ = self._counts()
        return precision_recall(true[::-1], false[::-1])

    def compute(self) -> Tensor:
        """Return PxAP, a float64 scalar in percent."""
        return torch.tensor(average_precision(*self._fractions()), dtype=torch.float64)

    def curve(self) -> PrecisionRecall:
        """Return precision, recall and thresholds, (T + 2,) float64 each, from the highest threshold down."""
        with self._synced():
            precision, recall = self._fractions()
        return PrecisionRecall(
            torch.from_numpy(precision * 100),
            torch.from_numpy(recall * 100),
            torch.from_numpy(self.edges[::-1].copy()),
        )

    def at_threshold(self, tau: float | Tensor) -> PixelScores:
        """Return precision, recall and overlap of the pixels with `value >= tau`, in percent.

        Args:
            tau: a threshold of the grid, for instance `PIoU.best_threshold()` of the validation split.

        Raises:
            FcamError: a threshold that is not on this metric's grid.
        """
        with self._synced():
            true, false, positives, _ = self._counts()
        i = number_index(self.edges, tau)
        predicted = int(true[i] + false[i])
        return PixelScores(
            precision=100 * int(true[i]) / predicted if predicted else float("nan"),
            recall=100 * int(true[i]) / positives,
            iou=100 * int(true[i]) / (positives + int(false[i])),
        )
