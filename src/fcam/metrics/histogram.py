"""Histograms of map values over foreground and background: all that the pixel metrics need of a split."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from fcam.boxes import as_array, raise_for_values
from fcam.errors import FcamError
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
        edges: (E,) ascending lower bin edges, the first 0; compared in double precision.
        ignore: (B, H, W), true or non-zero where a pixel that is not foreground does not count.

    Returns:
        (B, 2, E) int32; [:, 0] over background, [:, 1] over foreground.

    Raises:
        FcamError: shapes that differ, a mask value besides 0, 1, 255, a map value that is NaN or outside [0,
    1].
    """
    values = as_array(maps)
    truth = _mask_array(masks, values.shape, "masks")
    if ignore is not None:
        truth = np.where(_mask_array(ignore, values.shape, "ignore") & (truth == 0), IGNORE, truth)
    out = np.zeros((len(values), 2, len(edges)), np.int32)
    status = np.zeros(len(values), np.int32)
    flat, mask = values.reshape(len(values), -1), truth.reshape(len(truth), -1).astype(np.uint8, copy=False)
    in_threads(lambda a, b: _histogram(flat[a:b], mask[a:b], edges, out[a:b], status[a:b]), len(values))
    if (status == 1).any():
        raise_for_values(values)
    if (status == 2).any():
        index = int((status == 2).argmax())
        found = [v for v in torch.as_tensor(masks[index]).unique().tolist() if v not in (0, 1, IGNORE)]
        raise FcamError(
            f"mask {index} of the batch holds the value {found[0]}; use 1, 0 and {IGNORE} (ignored)"
        )
    return out


def _mask_array(mask: Tensor | np.ndarray, shape: tuple[int, ...], name: str) -> np.ndarray:
    tensor = torch.as_tensor(mask)
    if tuple(tensor.shape) != shape:
        raise FcamError(
            f"{name} must have the shape of the maps {shape}, got {tuple(tensor.shape)}; resize them"
        )
    if tensor.is_floating_point() or tensor.is_complex():
        raise FcamError(f"{name} must be integer or bool, got {tensor.dtype}; threshold them first")
    if name == "ignore":
        tensor = tensor != 0
    elif tensor.dtype not in (torch.uint8, torch.bool):
        # A value that does not fit 8 bits must not wrap around to a valid one.
        tensor = torch.where((tensor < 0) | (tensor > IGNORE), 2, tensor)
    return np.ascontiguousarray(tensor.cpu().numpy().astype(np.uint8, copy=False))


@njit(cache=True, nogil=True)
def _histogram(values, truth, edges, out, status):
    """Histograms of maps (B, P) and masks (B, P); status 1 for a wrong value, 2 for a wrong mask, 0 for neither."""
    count, pixels = values.shape
    bins = len(edges)
    table = np.zeros(3 * bins, np.int32)  # the third row takes in what does not count
    places = np.empty(_BLOCK, np.int32)
    for i in range(count):
        status[i] = _check(values[i], truth[i])
        if status[i] != 0:
            continue
        table[:] = 0
        for first in range(0, pixels, _BLOCK):
            last = min(first + _BLOCK, pixels)
            _find_bins(values[i, first:last], edges, places)
            for k in range(last - first):
                row = min(truth[i, first + k], np.uint8(2))
                table[np.uint64(row * bins + places[k])] += 1
        out[i] = table[: 2 * bins].reshape(2, bins)


@njit(cache=True, nogil=True)
def _check(values, truth):
    """2 where a mask value is wrong, 1 where a map value is, 0 where neither is; no branch, so that it runs in vectors."""
    wrong = 0
    for p in range(len(values)):
        wrong |= (not ((values[p] >= 0) & (values[p] <= 1))) * 2
        wrong |= (truth[p] > np.uint8(1)) & (truth[p] != np.uint8(IGNORE))
    return 1 if wrong >= 2 else 2 * wrong


@njit(cache=True, nogil=True)
def _find_bins(values, edges, places):
    """Write the number of the bin of each value, the last whose lower edge it reaches."""
    scale = 1.0 / edges[1]
    doubtful = False
    for k in range(len(values)):
        scaled = values[k] * scale
        place = np.int32(scaled)
        rest = scaled - place
        doubtful |= (values[k] > 0) & ((rest < _NEAR) | (rest > 1 - _NEAR))
        places[k] = place
    if doubtful:
        # The edges are not multiples of the first to the last bit: beside one, only comparing with it tells.
        for k in range(len(values)):
            place = places[k]
            places[k] = place - (values[k] < edges[place]) + (values[k] >= edges[place + 1])


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

    def _counts(self) -> tuple[np.ndarray, np.ndarray, int, int]:
        """Return, per edge ascending, the true and false positives of `value >= edge`, and both class sizes.

        Raises `FcamError` when the split has no foreground pixel.
        """
        (background, foreground), _ = self._totals()
        true, false = foreground[::-1].cumsum()[::-1], background[::-1].cumsum()[::-1]
        if true[0] == 0:
            raise FcamError("no mask of the split holds a foreground pixel (value 1), so recall is undefined")
        return true, false, int(true[0]), int(false[0])
