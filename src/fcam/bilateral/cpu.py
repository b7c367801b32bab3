"""The Gaussian filter on CPU: the colour grid of each image, filtered one thread per image and map.

Plain threads carry the work (`fcam.threads`), not numba's parallel loops, whose pools cannot be entered from two
threads, break after a fork, or fix the thread count.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fcam.bilateral import factors
from fcam.bilateral.grid_kernels import filter_map, fit, locate, occupy
from fcam.bilateral.vectors import FOUR
from fcam.threads import run


class _ImageGrid:
    """The colour grid of one image: where its pixels lie, which nodes exist, how they act on each other."""

    def __init__(self, image: np.ndarray, tiling: factors.Tiling, width: int, sigma_rgb: float) -> None:
        nodes = factors.node_count(sigma_rgb)
        count = image.shape[1]
        line, blue = np.empty(count, np.int16), np.empty(count, np.int16)
        fraction = np.empty((count, 3), np.float32)
        histogram = np.zeros((3, factors.LEVELS), np.int64)
        locate(image, nodes, line, blue, fraction, histogram)
        shape = tiling.rows * tiling.columns, nodes * nodes
        low, high, start = np.empty(shape, np.int16), np.empty(shape, np.int16), np.zeros(shape, np.int64)
        self.total = occupy(line, blue, width, tiling.height, tiling.width, nodes, low, high, start)
        matrices, reach = np.zeros((3, nodes + FOUR - 1, nodes), np.float32), np.zeros(3, np.int64)
        fit(histogram, factors.level_factor(sigma_rgb), nodes, matrices, reach)
        self.pixels = line, blue, fraction
        self.runs = low, high, start
        self.colours = matrices, reach


class CpuGrid:
    """The colour grids of a batch of images on CPU."""

    def __init__(self, images: Tensor, sigma_rgb: float, sigma_xy: float) -> None:
        height, self._width = images.shape[2:]
        self._tiling = factors.tiling(height, self._width, sigma_xy)
        pixels = images.float().flatten(2).contiguous().numpy()
        self._grids = run(lambda image: _ImageGrid(image, self._tiling, self._width, sigma_rgb), pixels)

    def apply(self, maps: Tensor) -> Tensor:
        """Return W S for maps (B, T, H, W) on CPU, float32."""
        tiling = self._tiling
        tiles = tiling.height, tiling.width, tiling.rows, tiling.columns
        positions = tiling.basis.reshape(-1), tiling.coupling
        flat = maps.float().flatten(2).contiguous().numpy()
        result = np.empty_like(flat)

        def filter_one(place: tuple[int, int]) -> None:
            grid = self._grids[place[0]]
            filter_map(
                flat[place],
                result[place],
                self._width,
                tiles,
                grid.pixels,
                grid.runs,
                grid.total,
                grid.colours,
                positions,
            )

        run(filter_one, np.ndindex(flat.shape[:2]))
        return torch.from_numpy(result).view(maps.shape)
