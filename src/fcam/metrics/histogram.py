"""Histograms of map values over foreground and background: all that the pixel metrics need of a split."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from fcam.boxes import as_array, plain_array, raise_for_values
from fcam.errors import FcamError
from fcam.kernels import kernel
from fcam.metrics.box_acc import threshold_grid
from fcam.metrics.sweep import in_threads
from fcam.metrics.tally import Tally

IGNORE = 255
_BLOCK = 512
_NEAR = 1e-6
"""Values so near to a multiple of the bin width, in bins, are compared with the edge itself."""


def score_edges(thresholds: int) -> np.ndarray:
    """Return the T + 2 lower bin edges of the benchmark: the threshold grid, then 1 and 2 (float64).

    The last bin is always empty; values of exactly 1 fall into the one before.
    """
    return np.concatenate([threshold_grid(thresholds), [1.0, 2.0]])


def score_histograms(
    maps: Tensor | np.ndarray,
    masks: Tensor | np.ndarray,
    edges: np.ndarray,
    ignore: Tensor | np.ndarray | None = None,
) -> np.ndarray:
    """Return the histograms of the values over background and foreground pixels of each map.

    Args:
        maps: (B, H, W) floating point in [0, 1], any device.
        masks: (B, H, W) integer or bool; 1 foreground, 0 background, 255 not counted.
        edges: (E,) lower bin edges as `score_edges` returns them; compared in double precision.
        ignore: (B, H, W), true or non-zero where a pixel that is not foreground does not count.

    Returns:
        (B, 2, E) int32; [:, 0] over background, [:, 1] over foreground.

    Raises:
        FcamError: shapes that differ, a mask value besides 0, 1, 255, a map value that is NaN or outside
            [0, 1].
    """
    values = as_array(maps)
    truth = _mask_array(masks, values.shape, "masks")
    if ignore is not None:
        truth = np.where(_mask_array(ignore, values.shape, "ignore") & (truth == 0), IGNORE, truth)
    out = np.zeros((len(values), 2, len(edges)), np.int32)
    status = np.zeros(len(values), np.int32)
    pixels = values.shape[1] * values.shape[2]
    flat, mask = values.reshape(-1, pixels), truth.reshape(-1, pixels).astype(np.uint8, copy=False)
    in_threads(lambda a, b: _histogram(flat[a:b], mask[a:b], edges, out[a:b], status[a:b]), len(values))
    if (status == 1).any():
        raise_for_values(values)
    if (status == 2).any():
        index = int((status == 2).argmax())
        found = [v for v in np.unique(plain_array(masks, "masks")[index]).tolist() if v not in (0, 1, IGNORE)]
        raise FcamError(
            f"mask {index} of the batch holds the value {found[0]}; use 1, 0 and {IGNORE} (ignored)"
        )
    return out


def _mask_array(mask: Tensor | np.ndarray, shape: tuple[int, ...], name: str) -> np.ndarray:
    array = plain_array(mask, name)
    if array.shape != shape:
        raise FcamError(f"{name} must have the shape of the maps {shape}, got {array.shape}; resize them")
    if array.dtype.kind not in "biu":
        raise FcamError(f"{name} must be integer or bool, got {array.dtype}; threshold them first")
    if name == "ignore":
        array = array != 0
    elif array.dtype not in (np.uint8, np.bool_):
        # A value that does not fit 8 bits must not wrap around to a valid one.
        array = np.where((array < 0) | (array > IGNORE), 2, array)
    return np.require(array, np.uint8, ["C", "W"])


@kernel()
def _histogram(values, truth, edges, out, status):
    """Histograms of maps (B, P) and masks (B, P); status 1 for a wrong value, 2 for a wrong mask, 0 for neither."""
    count, pixels = values.shape
    bins = len(edges)
    # The third row takes in what does not count. Neighbours often share a bin, and a counter just written can
    # only be read some cycles later, so pixels count in two tables by turns.
    table = np.empty((2, 3, bins), np.int32)
    counters = table.reshape(-1)
    places = np.empty(_BLOCK, np.int32)
    for i in range(count):
        table[:] = 0
        for first in range(0, pixels, _BLOCK):
            last = min(first + _BLOCK, pixels)
            if not _find_places(values[i, first:last], truth[i, first:last], edges, places):
                status[i] = _check(values[i], truth[i])
                break
            for k in range(last - first):
                counters[np.uint64(places[k])] += 1
        out[i] = table[0, :2] + table[1, :2]


@kernel()
def _find_places(values, truth, edges, places):
    """Write where each pixel counts in the tables of `_histogram`; return whether all values are possible.

    The bin of a value is the last whose lower edge it reaches. No branch, so that it runs in vectors.
    """
    bins = len(edges)
    scale = np.round(1.0 / edges[1])
    valid, doubtful = True, False
    for k in range(len(values)):
        scaled = values[k] * scale
        place = np.int32(scaled)
        rest = scaled - place
        valid &= (values[k] >= 0) & (values[k] <= 1) & ((truth[k] <= 1) | (truth[k] == IGNORE))
        doubtful |= (values[k] > 0) & (values[k] < 1) & ((rest < _NEAR) | (rest > 1 - _NEAR))
        row = np.int32(min(truth[k], np.uint8(2)))
        places[k] = ((k & 1) * 3 + row) * bins + place
    if valid and doubtful:
        # The edges are not multiples of the first to the last bit: beside one, only comparing with it tells.
        for k in range(len(values)):
            place = places[k] % bins
            places[k] += np.int32(values[k] >= edges[place + 1]) - np.int32(values[k] < edges[place])
    return valid


@kernel()
def _check(values, truth):
    """1 if a map value is wrong, else 2 if a mask value is, else 0."""
    wrong = 0
    for p in range(len(values)):
        if not (values[p] >= 0 and values[p] <= 1):
            return 1
        if truth[p] > 1 and truth[p] != IGNORE:
            wrong = 2
    return wrong


class PixelTally(Tally):
    """Histograms of the values over background and foreground, added up over the split."""

    def __init__(self, thresholds: int, images: int | None, **kwargs: Any) -> None:
        self.edges = score_edges(thresholds)
        super().__init__((2, len(self.edges)), images, bits=False, **kwargs)

    def update(
        self,
        maps: Tensor | np.ndarray,
        masks: Tensor | np.ndarray,
        ignore: Tensor | np.ndarray | None = None,
        ids: Tensor | None = None,
    ) -> None:
        """Take in a batch.

        Args:
            maps: (B, H, W) floating point in [0, 1], any device.
            masks: (B, H, W) integer or bool; 1 foreground, 0 background, 255 not counted.
            ignore: (B, H, W), true or non-zero where a pixel that is not foreground does not count.
            ids: (B,) positions in the split; only with `images=N`.

        Raises:
            FcamError: shapes, types or values outside these.
        """
        self._record(score_histograms(maps, masks, self.edges, ignore), ids)

    def objects(self) -> int:
        """Return the number of foreground pixels counted so far, over all processes; without any, recall is undefined."""
        with self._synced():
            (_, foreground), _ = self._totals()
        return int(foreground.sum())

    def _counts(self) -> tuple[np.ndarray, np.ndarray, int, int]:
        """Return, per edge ascending, the true and false positives of `value >= edge`, and both class sizes.

        Raises `FcamError` when the split has no foreground pixel.
        """
        (background, foreground), _ = self._totals()
        true, false = foreground[::-1].cumsum()[::-1], background[::-1].cumsum()[::-1]
        if true[0] == 0:
            raise FcamError(
                "no mask of the split holds a foreground pixel (value 1), so recall is undefined; "
                f"{IGNORE} is not counted, so give masks of 0 and {IGNORE} as masks > 0"
            )
        return true, false, int(true[0]), int(false[0])
