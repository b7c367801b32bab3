"""MaxBoxAcc and MaxBoxAccV2 (Choe et al., CVPR 2020, TPAMI 2022): boxes of maps against true boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fcam.boxes import Convention, as_array, check_choice, plain_array
from fcam.errors import FcamError, shown
from fcam.metrics.sweep import sweep_all_contours, sweep_largest_contour
from fcam.metrics.tally import Tally

Contours = Literal["largest", "all"]


def threshold_grid(thresholds: int) -> np.ndarray:
    """Return the thresholds `np.arange(0, 1, 1 / thresholds)` of the benchmark, float64 in [0, 1)."""
    if not isinstance(thresholds, int | np.integer) or thresholds < 1:
        raise FcamError(f"thresholds must be a whole number of at least 1, got {thresholds!r}")
    return np.arange(0, 1, 1 / thresholds)[:thresholds]


def best_iou(
    maps: Tensor | np.ndarray,
    boxes: Sequence[Tensor],
    thresholds: np.ndarray,
    contours: Contours = "largest",
    convention: Convention = "reference",
) -> np.ndarray:
    """Return the best overlap of a map's boxes with its true boxes at every threshold.

    Args:
        maps: (B, H, W) floating point in [0, 1], any device.
        boxes: B integer tensors (n, 4), n >= 1, x0 y0 x1 y1 inclusive, in pixels of the map.
        thresholds: (T,) in [0, 1), relative to each map's maximum.
        contours: "largest", one box per threshold; "all", a box for every contour.
        convention: "reference" or "exact", see `fcam.boxes`.

    Returns:
        (B, T) float64.

    Raises:
        FcamError: shapes, types or values outside these.
    """
    values = as_array(maps)
    truth, offsets = _flatten(boxes, len(values))
    if contours == "all":
        by_level, _, top = sweep_all_contours(values, truth, offsets, convention)
    else:
        by_level, top = sweep_largest_contour(values, truth, offsets, convention)
    # int(tau * maximum) is the benchmark's integer threshold: 1000 thresholds share at most 255 foregrounds.
    index = (thresholds[None, :] * top[:, None]).astype(np.int64)
    return np.take_along_axis(by_level, index, axis=1)


def _flatten(boxes: Sequence[Tensor], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Check the true boxes of a batch and lay them end to end: (M, 4) int64 and offsets (B + 1,)."""
    if not hasattr(boxes, "__len__"):  # none, or a generator
        raise FcamError(f"boxes is {shown(boxes)}; pass a list of one (n, 4) tensor per map")
    if len(boxes) != count:
        raise FcamError(f"{count} maps but {len(boxes)} sets of boxes; pass one (n, 4) tensor per map")
    arrays = []
    for i, given in enumerate(boxes):
        array = plain_array(given, f"boxes of map {i}")
        if array.size == 0:
            raise FcamError(f"map {i} of the batch has no true box; leave images without boxes out")
        if array.ndim != 2 or array.shape[1] != 4:
            raise FcamError(f"boxes of map {i} must be (n, 4), x0 y0 x1 y1, got shape {array.shape}")
        if array.dtype.kind not in "iu":
            raise FcamError(f"boxes of map {i} must be integer pixels, got {array.dtype}; see scale_boxes")
        arrays.append(array.astype(np.int64))
    offsets = np.cumsum([0, *map(len, arrays)]).astype(np.int64)
    return np.concatenate(arrays) if arrays else np.zeros((0, 4), np.int64), offsets


class BoxTally(Tally):
    """Number of images correct at every threshold: the common ground of box accuracies.

    The table of an image has the shape (I, T) of overlaps and thresholds, or with `ranks`, the values of k of a
    subclass, (k, I, T).
    """

    def __init__(
        self,
        ranks: tuple[int, ...] | None,
        contours: Contours,
        thresholds: int,
        iou: Sequence[float],
        convention: Convention,
        images: int | None,
        **kwargs: Any,
    ) -> None:
        check_choice("contours", contours, get_args(Contours))
        check_choice("convention", convention, get_args(Convention))
        deltas = plain_array(iou, "iou")
        if deltas.ndim != 1 or not len(deltas) or not ((deltas > 0) & (deltas <= 1)).all():
            raise FcamError(f"iou must hold overlaps in (0, 1], such as (0.5,), got {iou!r}")
        self.grid = threshold_grid(thresholds)
        lead = () if ranks is None else (len(ranks),)
        settings = (ranks, contours, deltas.tolist(), convention)
        super().__init__((*lead, len(deltas), len(self.grid)), images, True, settings, **kwargs)
        self.contours: Contours = contours
        self.convention: Convention = convention
        self.iou = tuple(deltas.tolist())

    def _hits(self, maps: Tensor | np.ndarray, boxes: Sequence[Tensor]) -> np.ndarray:
        """Return whether each image of the batch is correct, (B, I, T) bool."""
        overlap = best_iou(maps, boxes, self.grid, self.contours, self.convention)
        return overlap[:, None, :] >= np.asarray(self.iou)[:, None]

    def _curve(self) -> np.ndarray:
        total, count = self._totals()
        return total * 100.0 / float(count)

    def curve(self) -> Tensor:
        """Return the percentage of images correct at all of `thresholds()`, (..., iou, threshold) float64."""
        with self._synced():
            return torch.from_numpy(self._curve())

    def thresholds(self) -> Tensor:
        """Return the thresholds tau, (T,) float64 in [0, 1), relative to each map's maximum."""
        return torch.from_numpy(self.grid.copy())

    def at_best_threshold(self) -> Tensor:
        """Return the percentage correct at each overlap's own best threshold on this split, (..., iou)."""
        return self.curve().amax(-1)

    def best_threshold(self) -> Tensor:
        """Return the first threshold that is best for each overlap on this split, (..., iou) in [0, 1)."""
        return self.thresholds()[self.curve().argmax(-1)]

    def plateau_threshold(self) -> Tensor:
        """Return the best threshold of each overlap to carry over to other images, (..., iou) in [0, 1).

        On few images many thresholds are equally good: it is the middle of the longest run of them.
        """
        return self.thresholds()[plateau(self.curve())]

    def at_threshold(self, tau: float | Tensor) -> Tensor:
        """Return the percentage correct at a threshold carried over from another split, (..., iou).

        Args:
            tau: one threshold of the grid for all overlaps, or one each, as `plateau_threshold()` of the metric
                of the validation split returns them.

        Raises:
            FcamError: a threshold that is not on this metric's grid.
        """
        curve = self.curve()
        wanted = numbers(tau)
        if wanted.ndim and wanted.shape != curve.shape[:-1]:
            raise FcamError(
                f"tau must be one number or have shape {tuple(curve.shape[:-1])}, got {tuple(wanted.shape)}"
            )
        index = grid_index(self.grid, wanted.expand(curve.shape[:-1]).numpy())
        return curve.gather(-1, torch.from_numpy(index)[..., None])[..., 0]


def plateau(curve: Tensor) -> Tensor:
    """Return the place of the middle of the longest run of maxima of curves (..., T), the first of equals, (...)."""

    def middle(best: np.ndarray) -> int:
        starts, ends = np.flatnonzero(np.diff(best, prepend=0, append=0)).reshape(-1, 2).T
        longest = (ends - starts).argmax()
        return (starts[longest] + ends[longest] - 1) // 2

    best = (curve == curve.amax(-1, keepdim=True)).numpy().astype(np.int8)
    return torch.from_numpy(np.asarray(np.apply_along_axis(middle, -1, best)))


def numbers(tau: Any) -> Tensor:
    """Return thresholds as float64 on the CPU; raise `FcamError` for what is no number."""
    try:
        return torch.as_tensor(tau, dtype=torch.float64).cpu()
    except (TypeError, ValueError, RuntimeError) as error:  # torch's errors for what it cannot read
        raise FcamError(
            f"tau is {shown(tau)}, but a threshold is a number; take what a metric's best_threshold() returns"
        ) from error


def number_index(grid: np.ndarray, tau: Any) -> int:
    """Return the place of one threshold in an ascending grid; raises as `grid_index`, and for several."""
    wanted = numbers(tau)
    if wanted.numel() != 1:
        raise FcamError(f"tau must be one number, got {wanted.numel()}; give this metric one at a time")
    return int(grid_index(grid, wanted.reshape(()).numpy()))


def grid_index(grid: np.ndarray, tau: np.ndarray) -> np.ndarray:
    """Return the places of thresholds in an ascending grid; raise `FcamError` for one that is not on it."""
    index = np.abs(grid - tau[..., None]).argmin(-1)
    off = ~(np.abs(grid[index] - tau) < 1e-7)  # single precision is near enough
    if off.any():
        raise FcamError(
            f"threshold {tau[off].flat[0]:.6g} is not among this metric's {len(grid)} thresholds, "
            f"the nearest is {grid[index][off].flat[0]:.6g} (use as many thresholds on both splits)"
        )
    return index


class MaxBoxAcc(BoxTally):
    """Percentage of images whose box overlaps a true box enough, at the best threshold of the whole split.

    One threshold is chosen for all images together, per overlap, on the split that is measured ("oracle");
    carry over a threshold from another split with `at_threshold`. Choe et al., CVPR 2020, section 4.1; the
    protocol compares at overlap 0.5 with the largest contour.

    Args:
        contours: "largest" (MaxBoxAcc) or "all" (as in MaxBoxAccV2).
        thresholds: number T of thresholds, 0, 1/T, ..., (T-1)/T of each map's maximum.
        iou: overlaps delta; an image is correct when its best overlap is at least delta.
        convention: "reference", the benchmark to the last digit; "exact", boxes that end at their last pixel
            and components ranked by pixel count (`fcam.boxes`).
        images: number of images of the split, to count each once by `ids` (see `fcam.metrics.tally`).
    """

    def __init__(
        self,
        contours: Contours = "largest",
        thresholds: int = 1000,
        iou: Sequence[float] = (0.3, 0.5, 0.7),
        convention: Convention = "reference",
        images: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(None, contours, thresholds, iou, convention, images, **kwargs)

    def update(self, maps: Tensor | np.ndarray, boxes: Sequence[Tensor], ids: Tensor | None = None) -> None:
        """Take in a batch.

        Args:
            maps: (B, H, W) floating point in [0, 1], any device.
            boxes: B integer tensors (n, 4), n >= 1, x0 y0 x1 y1 inclusive, in pixels of the map.
            ids: (B,) positions in the split; only with `images=N`.

        Raises:
            FcamError: shapes, types or values outside these.
        """
        self._record(self._hits(maps, boxes), ids)

    def compute(self) -> Tensor:
        """Return the percentage correct at each overlap's best threshold, (iou,) float64, a scalar if one."""
        return torch.from_numpy(self._curve().max(-1))


class MaxBoxAccV2(MaxBoxAcc):
    """Mean of MaxBoxAcc over the overlaps, each at its own best threshold, with a box for every contour.

    Choe et al., TPAMI 2022, section 4.1. Arguments as `MaxBoxAcc`; `at_best_threshold()` has the single
    overlaps.
    """

    def __init__(
        self,
        contours: Contours = "all",
        thresholds: int = 1000,
        iou: Sequence[float] = (0.3, 0.5, 0.7),
        convention: Convention = "reference",
        images: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(contours, thresholds, iou, convention, images, **kwargs)

    def compute(self) -> Tensor:
        """Return the mean over the overlaps, a float64 scalar in percent."""
        return torch.from_numpy(self._curve().max(-1)).mean()
