"""Boxes of 8-bit maps and their overlap with true boxes at all 256 integer thresholds, one sweep per map."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numba import config

from fcam.boxes import Convention, raise_for_values
from fcam.metrics.boxtree import FINE, LEVELS, fill_holes, iou_of_boxes, sweep_all
from fcam.metrics.maxtree import sweep_largest
from fcam.metrics.ring import rules
from fcam.threads import run


def largest_boxes(levels: np.ndarray, convention: Convention = "reference") -> np.ndarray:
    """Return the box of the largest contour at every integer threshold.

    Args:
        levels: (B, H, W) uint8.
        convention: see `fcam.boxes`.

    Returns:
        (B, 256, 4) int32: entry t is the box of `levels > t`; without foreground 0, 0, 0, 0 ("reference") or
        the empty box 0, 0, -1, -1 ("exact").
    """
    return _largest_boxes(levels, convention)[0]


def _largest_boxes(maps: np.ndarray, convention: Convention) -> tuple[np.ndarray, np.ndarray]:
    out = np.zeros((len(maps), LEVELS, 4), np.int32)
    levels = np.empty(maps.shape, np.uint8)
    top = np.zeros(len(maps), np.int32)
    exact = convention == "exact"
    scale, shift = _scale_and_shift(maps)
    holes = None if exact else rules(shift, hole=True)

    def work(a: int, b: int) -> None:
        fill_holes(maps[a:b], scale, shift, holes, levels[a:b], top[a:b])
        if (top[a:b] >= 0).all():
            sweep_largest(levels[a:b], exact, out[a:b])

    in_threads(work, len(maps))
    if (top < 0).any():
        raise_for_values(maps)
    return out, top


def best_iou_of_largest(
    levels: np.ndarray, boxes: np.ndarray, offsets: np.ndarray, convention: Convention = "reference"
) -> np.ndarray:
    """Return the best overlap of the largest contour with any true box, (B, 256); as `best_iou_of_all`."""
    return sweep_largest_contour(levels, boxes, offsets, convention)[0]


def sweep_largest_contour(
    maps: np.ndarray, boxes: np.ndarray, offsets: np.ndarray, convention: Convention = "reference"
) -> tuple[np.ndarray, np.ndarray]:
    """Return what `best_iou_of_largest` does, and the highest level of each map; as `sweep_all_contours`."""
    predicted, top = _largest_boxes(maps, convention)
    iou = np.empty((len(maps), LEVELS))
    iou_of_boxes(predicted, boxes, offsets, iou)
    return iou, top


def best_iou_of_all(
    levels: np.ndarray, boxes: np.ndarray, offsets: np.ndarray, convention: Convention = "reference"
) -> tuple[np.ndarray, np.ndarray]:
    """Return the best overlap of any contour with any true box at every integer threshold.

    Args:
        levels: (B, H, W) uint8.
        boxes: (M, 4) int64 true boxes of all maps, one after another.
        offsets: (B + 1,) int64; map i has the boxes `offsets[i]:offsets[i + 1]`.
        convention: see `fcam.boxes`; hole contours count as boxes under "reference" only.

    Returns:
        (B, 256) float64 overlap and (B, 256) int32 number of predicted boxes (the box 0, 0, 0, 0 that
        "reference" predicts without foreground included).
    """
    return sweep_all_contours(levels, boxes, offsets, convention)[:2]


def sweep_all_contours(
    maps: np.ndarray, boxes: np.ndarray, offsets: np.ndarray, convention: Convention = "reference"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what `best_iou_of_all` does, and the highest level of each map, (B,) int32.

    `maps` (B, H, W) are levels, uint8, or floating point in [0, 1], which takes less time. Raises `FcamError` for
    values outside.
    """
    count = len(maps)
    iou = np.zeros((count, LEVELS))
    number = np.zeros((count, LEVELS), np.int32)
    top = np.zeros(count, np.int32)
    scale, shift = _scale_and_shift(maps)
    how = shift, convention == "exact", rules(shift, hole=False), rules(shift, hole=True)
    in_threads(
        lambda a, b: sweep_all(
            maps[a:b], scale, boxes, offsets[a : b + 1], *how, iou[a:b], number[a:b], top[a:b]
        ),
        count,
    )
    if (top < 0).any():
        raise_for_values(maps)
    return iou, number, top


def _scale_and_shift(maps: np.ndarray) -> tuple[float, int]:
    """Return what brings the values of maps to 256ths of a level, and the logarithm of the kernels' row pitch."""
    return 256.0 if maps.dtype == np.uint8 else FINE, (maps.shape[2] + 1).bit_length()


def in_threads(work: Callable[[int, int], object], count: int) -> None:
    """Call `work(first, last)` on equal slices of `count` images, one per thread.

    As many threads as numba would use: the cores this process may run on, or the environment variable
    NUMBA_NUM_THREADS.
    """
    threads: int = config.NUMBA_NUM_THREADS  # pyright: ignore[reportAttributeAccessIssue]
    slices = min(threads, count)
    edges = [count * i // slices for i in range(slices + 1)] if count else []
    run(lambda edge: work(*edge), pairwise(edges), threads)
