"""Boxes of 8-bit maps and their overlap with true boxes at all 256 integer thresholds, one sweep per map."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import config

from fcam.boxes import Convention
from fcam.metrics.maxtree import LEVELS, iou_of_boxes, sweep_all, sweep_largest


def largest_boxes(levels: np.ndarray, convention: Convention = "reference") -> np.ndarray:
    """Return the box of the largest contour at every integer threshold.

    Args:
        levels: (B, H, W) uint8.
        convention: see `fcam.boxes`.

    Returns:
        (B, 256, 4) int32: entry t is the box of `levels > t`; without foreground 0, 0, 0, 0 ("reference") or
        the empty box 0, 0, -1, -1 ("exact").
    """
    out = np.zeros((len(levels), LEVELS, 4), np.int32)
    exact = convention == "exact"
    in_threads(lambda first, last: sweep_largest(levels[first:last], exact, out[first:last]), len(levels))
    return out


def best_iou_of_largest(
    levels: np.ndarray, boxes: np.ndarray, offsets: np.ndarray, convention: Convention = "reference"
) -> np.ndarray:
    """Return the best overlap of the largest contour with any true box, (B, 256); as `best_iou_of_all`."""
    iou = np.empty((len(levels), LEVELS))
    iou_of_boxes(largest_boxes(levels, convention), boxes, offsets, iou)
    return iou


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
    iou = np.zeros((len(levels), LEVELS))
    count = np.zeros((len(levels), LEVELS), np.int32)
    exact = convention == "exact"
    in_threads(
        lambda a, b: sweep_all(levels[a:b], boxes, offsets[a : b + 1], exact, iou[a:b], count[a:b]),
        len(levels),
    )
    return iou, count


def in_threads(work: Callable[[int, int], object], count: int) -> None:
    """Call `work(first, last)` on equal slices of `count` images, one per thread.

    As many threads as numba would use: the cores this process may run on, or the environment variable
    NUMBA_NUM_THREADS.
    """
    workers = min(config.NUMBA_NUM_THREADS, count)  # pyright: ignore[reportAttributeAccessIssue]
    if workers <= 1:
        if count:
            work(0, count)
        return
    edges = [count * i // workers for i in range(workers + 1)]
    # Plain threads over nogil kernels: unlike numba's own pool they survive fork and concurrent callers.
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, edges[:-1], edges[1:]))
