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
    skip = np.zeros((0, 0, 0), np.uint8) if ignore is None else _mask_array(ignore, values.shape, "ignore")
    out = np.zeros((len(values), 2, len(edges)), np.int32)
    status = np.zeros(len(values), np.int32)
    in_threads(
        lambda a, b: _histogram(values[a:b], truth[a:b], skip[a:b], edges, out[a:b], status[a:b]), len(values)
    )
    if (status & 1).any():
        raise_for_values(values)
    if (status & 2).any():
        index = int((status & 2).argmax())
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
    return np.ascontiguousarray(tensor.cpu().numpy().astype(np.uint8))


@njit(cache=True, nogil=True)
def _histogram(values, truth, skip, edges, out, status):
    count, height, width = values.shape
    bins = len(edges)
    scale = 1.0 / edges[1]
    some = skip.size > 0
    for i in range(count):
        wrong = 0
        for y in range(height):
            for x in range(width):
                value = np.float64(values[i, y, x])
                label = truth[i, y, x]
                if not 0.0 <= value <= 1.0:
                    wrong |= 1
                    continue
                if label > 1:
                    wrong |= 2 if label != IGNORE else 0
                    continue
                if some and label == 0 and skip[i, y, x] != 0:
                    continue
                # The edges are not the rounded decimals: guess the bin, then correct against the edges
                # themselves.
                bin_ = min(int(value * scale), bins - 2)
                while value < edges[bin_]:
                    bin_ -= 1
                while value >= edges[bin_ + 1]:
                    bin_ += 1
                out[i, label, bin_] += 1
        status[i] = wrong


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
