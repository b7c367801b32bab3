"""Two small factorisations that make the Gaussian filter cheap: positions by rank, colours by a node grid.

W_ij = P_ij C_ij with P a Gaussian of the pixels' distance and C one of their colours' distance. P is smooth
on an image of a few sigma_xy, so few eigenvectors carry it; C is a product over R, G and B of one 256 x 256
kernel, each replaced by T B T' with T linear interpolation between a few nodes.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

LANES = 16  # components are handled in blocks of this many: one 64-byte line of float32 per grid node
LEVELS = 256
POSITION_TOLERANCE = 5e-4  # share of the trace of P that may be dropped
NODE_STEP = 0.425  # grid step in units of sigma_rgb: at most about 1 % error after the fit
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
