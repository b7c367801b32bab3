"""Two small factorisations that make the Gaussian filter cheap: positions by rank, colours by a node grid.

W_ij = P_ij C_ij with P a Gaussian of the pixels' distance and C one of their colours' distance. P is smooth
on an image of a few sigma_xy, so few eigenvectors carry it; C is a product over R, G and B of one 256 x 256
kernel, each replaced by T B T' with T linear interpolation between a few nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

LANES = 16  # components are handled in blocks of this many: one 64-byte line of float32 per grid node
LEVELS = 256
POSITION_TOLERANCE = 5e-4  # share of the trace of P that may be dropped
TILE_SIDE = 2.24  # largest tile in units of sigma_xy whose P is met to that tolerance by `LANES` components
REACH = 4.0  # tiles further apart than this many sigma_xy do not see each other
NODE_STEP = 0.36  # grid step in units of sigma_rgb: about 1 % error on the hardest photos after the fit
SMALLEST_RGB = 6.0  # below these sigmas the grid would need too many nodes, or the tiles too few pixels:
SMALLEST_XY = 4.0  # few pairs of pixels see each other, and they are summed one by one
NEGLIGIBLE = (
    1e-4  # node pairs that act on each other by less than this share of their self-action are skipped
)
FLOOR = 0.1  # weight of a level that no pixel has, against 1 for the mean level


def gaussian(points: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    """Return the square matrix exp(-(p_i - p_j)^2 / (2 sigma^2)) of 1-D points."""
    return np.exp(-0.5 * ((points[:, None] - points[None]) / sigma) ** 2)


def _spectrum(length: int, sigma: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    values, vectors = np.linalg.eigh(gaussian(np.arange(length, dtype=np.float64), sigma))
    return np.maximum(values[::-1], 0.0), vectors[:, ::-1]


@lru_cache(maxsize=32)
def position_components(height: int, width: int, sigma_xy: float) -> NDArray[np.float32]:
    """Return Phi (height * width, R) with P close to Phi Phi', R a multiple of `LANES` (padded with zeros).

    The 2-D kernel is a Kronecker product, so its eigenvalues are products of the two 1-D spectra; the largest
    are kept until `POSITION_TOLERANCE` of the trace is left.
    """
    row_values, rows = _spectrum(height, sigma_xy)
    column_values, columns = _spectrum(width, sigma_xy)
    products = row_values[:, None] * column_values[None]
    order = np.argsort(-products, axis=None)
    dropped = 1.0 - np.cumsum(products.ravel()[order]) / (height * width)
    wanted = int(np.argmax(dropped < POSITION_TOLERANCE)) + 1
    padded = math.ceil(wanted / LANES) * LANES
    a, b = np.unravel_index(order[:padded], products.shape)
    phi = np.zeros((height * width, padded), np.float32)
    scale = np.sqrt(products[a, b])
    phi[:, : len(a)] = (scale * rows[:, None, a] * columns[None, :, b]).reshape(height * width, -1)
    return phi


@dataclass(frozen=True)
class Tiling:
    """An image cut into equal tiles that share one position basis.

    `height`, `width`: pixels of a tile (the last row and column may be cut short); `rows`, `columns`: number
    of tiles; `basis`: Phi (height * width, LANES); `coupling`: C (2 ry + 1, 2 rx + 1, LANES, LANES), where
    the kernel between a tile and the one (dy, dx) tiles further is close to Phi C[ry + dy, rx + dx] Phi'.
    """

    height: int
    width: int
    rows: int
    columns: int
    basis: NDArray[np.float32]
    coupling: NDArray[np.float32]


def _cross_spectrum(vectors: NDArray[np.float64], sigma: float, tiles: int) -> list[NDArray[np.float64]]:
    """Return U' P_d U for the kernel between tiles d = 0, 1, ... apart along one axis, within reach."""
    length = len(vectors)
    here = np.arange(length, dtype=np.float64)
    reach = min(tiles - 1, 1 + int(REACH * sigma / length))
    blocks = [
        np.exp(-0.5 * ((here[:, None] - here[None] - d * length) / sigma) ** 2) for d in range(reach + 1)
    ]
    return [vectors.T @ block @ vectors for block in blocks]


def _coupling(
    along_y: list[NDArray[np.float64]], along_x: list[NDArray[np.float64]], inverse: NDArray[np.float64]
) -> NDArray[np.float32]:
    """Return C (2 ry + 1, 2 rx + 1, LANES, LANES) from the spectra of both axes, one entry per distance."""
    ry, rx = len(along_y) - 1, len(along_x) - 1
    used = len(inverse)
    coupling = np.zeros((2 * ry + 1, 2 * rx + 1, LANES, LANES), np.float32)
    for dy in range(-ry, ry + 1):
        for dx in range(-rx, rx + 1):
            y = along_y[dy] if dy >= 0 else along_y[-dy].T
            x = along_x[dx] if dx >= 0 else along_x[-dx].T
            coupling[ry + dy, rx + dx, :used, :used] = inverse[:, None] * y * x * inverse
    return coupling


def _cut(length: int, sigma: float) -> tuple[int, int]:
    """Return the side of a tile and the number of tiles along one axis."""
    side = math.ceil(length / max(1, math.ceil(length / (TILE_SIDE * sigma))))
    return side, math.ceil(length / side)


@lru_cache(maxsize=32)
def tiling(height: int, width: int, sigma_xy: float) -> Tiling:
    """Return the tiles of an image and what couples them, so that the cost per pixel is that of one tile."""
    (tall, rows), (wide, columns) = _cut(height, sigma_xy), _cut(width, sigma_xy)
    row_values, row_vectors = _spectrum(tall, sigma_xy)
    column_values, column_vectors = _spectrum(wide, sigma_xy)
    products = row_values[:, None] * column_values[None]
    order = np.argsort(-products, axis=None)[:LANES]
    a, b = np.unravel_index(order, products.shape)
    values = products[a, b]
    # Eigenvalues that are rounding noise carry nothing, and their inverse roots would be large.
    used = int((values > 1e-12 * values[0]).sum())
    a, b, values = a[:used], b[:used], values[:used]
    basis = np.zeros((tall * wide, LANES), np.float32)
    pairs = row_vectors[:, None, a] * column_vectors[None, :, b]
    basis[:, :used] = (np.sqrt(values) * pairs).reshape(tall * wide, -1)
    along_y = [block[np.ix_(a, a)] for block in _cross_spectrum(row_vectors, sigma_xy, rows)]
    along_x = [block[np.ix_(b, b)] for block in _cross_spectrum(column_vectors, sigma_xy, columns)]
    return Tiling(tall, wide, rows, columns, basis, _coupling(along_y, along_x, 1 / np.sqrt(values)))


def node_count(sigma_rgb: float) -> int:
    """Return the number of grid nodes per colour axis, from level 0 to level 255 inclusive."""
    return max(2, math.ceil((LEVELS - 1) / max(1.0, NODE_STEP * sigma_rgb)) + 1)


@lru_cache(maxsize=32)
def level_factor(sigma_rgb: float) -> NDArray[np.float64]:
    """Return F (256, q) with F F' the 1-D colour kernel over the 256 levels, to 1e-7."""
    values, vectors = np.linalg.eigh(gaussian(np.arange(LEVELS, dtype=np.float64), sigma_rgb))
    kept = values > 1e-8 * values[-1]
    return np.ascontiguousarray(vectors[:, kept] * np.sqrt(values[kept]))


@lru_cache(maxsize=32)
def interpolation(nodes: int) -> NDArray[np.float64]:
    """Return T (256, nodes): the weights by which each level is interpolated between its two nodes."""
    place = np.arange(LEVELS) * (nodes - 1) / (LEVELS - 1)
    return np.maximum(0.0, 1.0 - np.abs(place[:, None] - np.arange(nodes)[None]))
