"""Top-1 and top-5 localization: the box must be right and the class too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fcam.boxes import Convention, plain_array
from fcam.errors import FcamError
from fcam.metrics.box_acc import BoxTally, Contours


def label_rank(logits: Tensor | np.ndarray, labels: Tensor | np.ndarray) -> Tensor:
    """Return the place of the true label in the stable descending sort of the logits, (B,), 0 is first.

    Args:
        logits: (B, K) floating point; of equal logits the lower class comes first.
        labels: (B,) integer in [0, K).

    Raises:
        FcamError: shapes that do not fit, a label outside the classes, a NaN logit.
    """
    logits, labels = torch.as_tensor(logits), torch.as_tensor(labels)
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise FcamError(
            f"logits must be (B, K) and labels (B,), got {tuple(logits.shape)} and {tuple(labels.shape)}"
        )
    if labels.is_floating_point():
        raise FcamError(f"labels must be integer classes, got {labels.dtype}; pass them as integers")
    if logits.isnan().any():
        raise FcamError(
            "logits hold NaN, so classes cannot be ranked; check the classifier's weights and input"
        )
    labels = labels.to(logits.device).long()
    outside = (labels < 0) | (labels >= logits.shape[1])
    if outside.any():
        raise FcamError(
            f"label {int(labels[outside][0])} lies outside the {logits.shape[1]} classes of the logits"
        )
    own = logits.gather(1, labels[:, None])
    earlier = torch.arange(logits.shape[1], device=logits.device) < labels[:, None]
    return ((logits > own) | ((logits == own) & earlier)).sum(1)


class TopKLocalization(BoxTally):
    """Percentage of images whose box is right and whose true label is among the k highest logits.

    The map is that of the true class (or class-agnostic), never of the predicted one, and each k and overlap
    has its own best threshold over the split, as in the reference evaluation of F-CAM (Belharbi et al., WACV
    2022).

    Args:
        topk: the values of k.
        contours: "largest" or "all", as in `MaxBoxAcc`.
        thresholds: number of thresholds of the grid.
        iou: overlaps delta.
        convention: "reference" or "exact", as in `MaxBoxAcc`.
        images: number of images of the split, to count each once by `ids`.
    """

    def __init__(
        self,
        topk: Sequence[int] = (1, 5),
        contours: Contours = "largest",
        thresholds: int = 1000,
        iou: Sequence[float] = (0.3, 0.5, 0.7),
        convention: Convention = "reference",
        images: int | None = None,
        **kwargs: Any,
    ) -> None:
        ranks = plain_array(topk, "topk")
        if ranks.ndim != 1 or ranks.dtype.kind not in "iu" or not len(ranks) or ranks.min() < 1:
            raise FcamError(f"topk must hold whole numbers of at least 1, such as (1, 5), got {topk!r}")
        self.topk = tuple(ranks.tolist())
        super().__init__(self.topk, contours, thresholds, iou, convention, images, **kwargs)

    def update(
        self,
        maps: Tensor | np.ndarray,
        boxes: Sequence[Tensor],
        logits: Tensor | np.ndarray,
        labels: Tensor | np.ndarray,
        ids: Tensor | None = None,
    ) -> None:
        """Take in a batch.

        Args:
            maps: (B, H, W) floating point in [0, 1], the map of the true class.
            boxes: B integer tensors (n, 4), n >= 1, x0 y0 x1 y1 inclusive, in pixels of the map.
            logits: (B, K).
            labels: (B,) true classes.
            ids: (B,) positions in the split; only with `images=N`.

        Raises:
            FcamError: shapes, types or values outside these.
        """
        if len(logits) != len(maps):
            raise FcamError(f"{len(maps)} maps but logits for {len(logits)} images; pass one row per map")
        rank = label_rank(logits, labels).cpu().numpy()
        known = rank[:, None] < np.asarray(self.topk)
        self._record(known[:, :, None, None] & self._hits(maps, boxes)[:, None], ids)

    def compute(self) -> Tensor:
        """Return the percentage correct at the best thresholds, (k, iou) float64, a scalar if one."""
        return torch.from_numpy(self._curve().max(-1))
