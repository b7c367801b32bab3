"""The Gaussian sum pair by pair on CPU: for sigmas too small for a grid, and the yardstick of the others.

Pixels are put in an order in which those that can see a pixel lie in a few contiguous ranges: rows of a
window when sigma_xy is small, neighbouring colour cells when it is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fcam.bilateral.tensors import pixel_features
from fcam.kernels import kernel
from fcam.threads import run

_compile: Callable[..., Any] = kernel(fastmath=True, error_model="numpy")

SIGHT = 4.0  # pairs further apart than this many sigmas along one axis may be skipped: they weigh < 4e-4
MOST_CELLS = 64  # colour cells along one axis
CHUNK = 1024  # pixels per task
SQUARINGS = 10


@_compile
def _add_range(features, i, first, last, maps, weights, sums):
    """sums[t] += sum of W_ij maps[t, j] over j in [first, last)."""
    y, x, red, green, blue = features[0, i], features[1, i], features[2, i], features[3, i], features[4, i]
    shrink = np.float32(-0.5 / (1 << SQUARINGS))
    for j in range(first, last):
        distance = (features[0, j] - y) ** 2 + (features[1, j] - x) ** 2 + (features[2, j] - red) ** 2
        distance += (features[3, j] - green) ** 2 + (features[4, j] - blue) ** 2
        # exp(d) = (1 + d/n + (d/n)^2 / 2)^n: arithmetic only, to be vectorised; error d^3 / 6 n^2.
        small = max(distance * shrink, np.float32(-0.05))
        power = np.float32(1) + small + np.float32(0.5) * small * small
        for _ in range(SQUARINGS):
            power *= power
        weights[j - first] = power
    for t in range(maps.shape[0]):
        total = np.float32(0)
        for j in range(last - first):
            total += weights[j] * maps[t, first + j]
        sums[t] += total


@_compile
def _sum_window(features, maps, height, width, reach, first, last, result):
    """Pixels in raster order: every pixel sees the window of `reach` rows and columns around it."""
    weights = np.empty(width, np.float32)
    for i in range(first, last):
        y, x = i // width, i % width
        sums = result[i]
        sums[:] = 0
        left, right = max(0, x - reach), min(width, x + reach + 1)
        for v in range(max(0, y - reach), min(height, y + reach + 1)):
            _add_range(features, i, v * width + left, v * width + right, maps, weights, sums)


@_compile
def _sum_cells(features, maps, cells, starts, side, first, last, result):
    """Pixels sorted by colour cell (blue fastest): every pixel sees the 27 cells around its own."""
    weights = np.empty(features.shape[1], np.float32)
    for i in range(first, last):
        red, rest = cells[i] // (side * side), cells[i] % (side * side)
        green, blue = rest // side, rest % side
        sums = result[i]
        sums[:] = 0
        for r in range(max(0, red - 1), min(side, red + 2)):
            for g in range(max(0, green - 1), min(side, green + 2)):
                line = (r * side + g) * side
                low, high = starts[line + max(0, blue - 1)], starts[line + min(side, blue + 2)]
                if high > low:
                    _add_range(features, i, low, high, maps, weights, sums)


class ExactSum:
    """Every pair of pixels that see each other, for a batch of images on CPU."""

    def __init__(self, images: Tensor, sigma_rgb: float, sigma_xy: float) -> None:
        self._height, self._width = images.shape[2:]
        self._reach = min(math.ceil(SIGHT * sigma_xy), max(self._height, self._width))
        window = (2 * self._reach + 1) ** 2
        self._by_cells = window > self._height * self._width // 4
        self._features = pixel_features(images, sigma_rgb, sigma_xy).numpy()
        self._side = min(MOST_CELLS, max(1, math.floor(255 / (SIGHT * sigma_rgb))))
        self._cell = 255 / sigma_rgb / self._side
        if self._by_cells:
            self._orders = run(self._sort, range(len(self._features)))

    def _sort(self, image: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Bring the features of one image into cell order; return the order, its cells, where each begins."""
        colours = self._features[image, 2:]
        red, green, blue = np.clip(colours / self._cell, 0, self._side - 1).astype(np.int64)
        cells = (red * self._side + green) * self._side + blue
        order = np.argsort(cells, kind="stable")
        cells = cells[order]
        self._features[image] = self._features[image][:, order]
        return order, cells, np.searchsorted(cells, np.arange(self._side**3 + 1))

    def apply(self, maps: Tensor) -> Tensor:
        """Return W S for maps (B, T, H, W) on CPU, float32."""
        flat = maps.float().flatten(2).contiguous().numpy()
        if self._by_cells:
            flat = np.stack([map_[:, order] for map_, (order, _, _) in zip(flat, self._orders, strict=True)])
        count = flat.shape[2]
        result = np.empty((len(flat), count, flat.shape[1]), np.float32)

        def sum_chunk(task: tuple[int, int]) -> None:
            image, first = task
            last = min(first + CHUNK, count)
            features, map_, target = self._features[image], flat[image], result[image]
            if self._by_cells:
                _, cells, starts = self._orders[image]
                _sum_cells(features, map_, cells, starts, self._side, first, last, target)
            else:
                _sum_window(features, map_, self._height, self._width, self._reach, first, last, target)

        run(sum_chunk, [(image, first) for image in range(len(flat)) for first in range(0, count, CHUNK)])
        if self._by_cells:
            for image, (order, _, _) in enumerate(self._orders):
                unsorted = np.empty_like(result[image])
                unsorted[order] = result[image]
                result[image] = unsorted
        return torch.from_numpy(result).mT.reshape(maps.shape)
