"""The boxes of 8-bit maps at all 256 thresholds, from one sweep per map.

Foregrounds at falling thresholds are nested, so their components form a tree (the max-tree of Salembier et al.,
IEEE TIP 1998). It is built by flooding from bright to dark (Nistér and Stewénius, ECCV 2008), which closes every
component exactly once and needs no labels. Area and box of a component are sums and extrema over its pixels:

- the contour area of a component is that of its filled form, so holes are filled first, once for all thresholds:
  the filled value of a pixel is the lowest level over which it drains to the border of the map;
- a 2x2 window adds half a pixel when its third-brightest and another half when its darkest pixel appears, so those
  two pixels carry its weight;
- holes are components of the inverted map that do not touch the border.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numba import njit

from fcam.boxes import Convention

LEVELS = 256
LO, HI, X0, Y0, X1, Y1, AREA, START = range(8)


def largest_boxes(levels: np.ndarray, convention: Convention = "reference") -> np.ndarray:
    """Return the box of the largest contour at every integer threshold.

    Args:
        levels: (B, H, W) uint8.
        convention: see `fcam.boxes`.

    Returns:
        (B, 256, 4) int32: entry t is the box of `levels > t`; without foreground 0, 0, 0, 0 ("reference") or the
        empty box 0, 0, -1, -1 ("exact").
    """
    out = np.zeros((len(levels), LEVELS, 4), np.int32)
    exact = convention == "exact"
    in_threads(lambda first, last: _largest(levels[first:last], exact, out[first:last]), len(levels))
    return out


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
        (B, 256) float64 overlap and (B, 256) int32 number of predicted boxes (the box 0, 0, 0, 0 that "reference"
        predicts without foreground included).
    """
    iou = np.zeros((len(levels), LEVELS))
    count = np.zeros((len(levels), LEVELS), np.int32)
    exact = convention == "exact"
    in_threads(
        lambda a, b: _all(levels[a:b], boxes, offsets[a : b + 1], exact, iou[a:b], count[a:b]), len(levels)
    )
    return iou, count


def in_threads(work: Callable[[int, int], object], count: int) -> None:
    """Call `work(first, last)` on equal slices of `count` images, one per thread that torch may use."""
    workers = min(torch.get_num_threads(), count)
    if workers <= 1:
        if count:
            work(0, count)
        return
    edges = [count * i // workers for i in range(workers + 1)]
    # Plain threads over nogil kernels: unlike numba's own pool they survive fork and concurrent callers.
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, edges[:-1], edges[1:]))


@njit(cache=True, nogil=True)
def _shift(width):
    """Row pitch as a power of two, so that coordinates come from an index by shift and mask."""
    shift = 1
    while (1 << shift) < width + 2:
        shift += 1
    return shift


@njit(cache=True, nogil=True)
def _pad(levels, shift, invert, padded):
    """Copy a map into the middle of `padded`, whose border of -1 stops every flood."""
    height, width = levels.shape
    padded[:] = -1
    for y in range(height):
        base = ((y + 1) << shift) + 1
        for x in range(width):
            value = np.int16(levels[y, x])
            padded[base + x] = 255 - value if invert else value


@njit(cache=True, nogil=True)
def _fill_holes(height, width, shift, padded, filled, head, link):
    """Raise every pixel to the lowest level over which it drains, 4-connected, to the border; empties `padded`."""
    filled[:] = -1
    head[:] = -1
    pitch = 1 << shift
    for y in range(1, height + 1):
        step = 1 if y == 1 or y == height else max(width - 1, 1)
        for x in range(1, width + 1, step):
            p = (y << shift) + x
            value = padded[p]
            padded[p] = -1
            filled[p] = value
            link[p] = head[value]
            head[value] = p
    for level in range(LEVELS):
        while head[level] >= 0:
            p = head[level]
            head[level] = link[p]
            for k in range(4):
                q = p + (1 if k == 0 else -1 if k == 1 else pitch if k == 2 else -pitch)
                value = padded[q]
                if value >= 0:
                    padded[q] = -1
                    value = max(value, np.int16(level))
                    filled[q] = value
                    link[q] = head[value]
                    head[value] = q


@njit(cache=True, nogil=True)
def _window_weights(height, width, shift, filled, weight):
    """Count for each pixel the 2x2 windows in which it is the third-brightest or the darkest (later = darker)."""
    pitch = 1 << shift
    for y in range(1, height + 1):
        up = filled[(y - 1) * pitch : (y - 1) * pitch + width + 2]
        row = filled[y * pitch : y * pitch + width + 2]
        down = filled[(y + 1) * pitch : (y + 1) * pitch + width + 2]
        out = weight[y * pitch : y * pitch + width + 2]
        for x in range(1, width + 1):
            v = row[x]
            n, s, w, e = up[x] >= v, down[x] > v, row[x - 1] >= v, row[x + 1] > v
            nw, ne, sw, se = up[x - 1] >= v, up[x + 1] >= v, down[x - 1] > v, down[x + 1] > v
            out[x] = (
                np.uint8((n & w) | (n & nw) | (w & nw))
                + np.uint8((n & e) | (n & ne) | (e & ne))
                + np.uint8((s & w) | (s & sw) | (w & sw))
                + np.uint8((s & e) | (s & se) | (e & se))
            )


@njit(cache=True, nogil=True)
def _components(padded, weight, first, shift, eight, head, link, stack, nodes):
    """Flood from bright to dark; write each component's life, box, weight and first pixel to `nodes`.

    A row of `nodes` is lo, hi, x0, y0, x1, y1, area, start: a component of `padded > t` for lo <= t < hi. Children
    precede their parents. Empties `padded`; returns the number of rows.
    """
    pitch = 1 << shift
    steps = np.array([1, -1, pitch, -pitch, pitch + 1, pitch - 1, -pitch + 1, -pitch - 1])
    count = 8 if eight else 4
    head[:] = -1
    n = 0
    p = first
    level = padded[p]
    padded[p] = -1
    top = _open(stack, 0, level)
    while True:
        brighter = False
        for k in range(count):
            q = p + steps[k]
            value = padded[q]
            if value < 0:
                continue
            padded[q] = -1
            if value <= level:
                link[q] = head[value]
                head[value] = q
                continue
            link[p] = head[level]  # the rest of p's neighbours wait until the brighter side is done
            head[level] = p
            p, level, brighter = q, value, True
            top = _open(stack, top + 1, level)
            break
        if brighter:
            continue
        _add(stack[top], p, shift, weight[p])
        while level >= 0 and head[level] < 0:
            level -= 1
        if level < 0:
            return _close(stack, top, 0, nodes, n)[1]
        p = head[level]
        head[level] = link[p]
        if level < stack[top, HI]:
            top, n = _close(stack, top, level, nodes, n)


@njit(cache=True, nogil=True, inline="always")
def _open(stack, top, level):
    row = stack[top]
    row[HI] = level
    row[X0] = row[Y0] = row[START] = np.int32(2147483647)
    row[X1] = row[Y1] = -1
    row[AREA] = 0
    return top


@njit(cache=True, nogil=True, inline="always")
def _add(row, p, shift, weight):
    x = (p & ((1 << shift) - 1)) - 1
    y = (p >> shift) - 1
    row[X0] = min(row[X0], x)
    row[X1] = max(row[X1], x)
    row[Y0] = min(row[Y0], y)
    row[Y1] = max(row[Y1], y)
    row[AREA] += weight
    row[START] = min(row[START], p)


@njit(cache=True, nogil=True)
def _close(stack, top, level, nodes, n):
    """Lower the open component to `level`, writing out what ends on the way and merging it into its parent."""
    while stack[top, HI] > level:
        row = stack[top]
        below = stack[top - 1, HI] if top > 0 else -1
        nodes[n] = row
        nodes[n, LO] = max(level, below)
        n += 1
        if below < level:
            row[HI] = level
            break
        top -= 1
        parent = stack[top]
        parent[X0] = min(parent[X0], row[X0])
        parent[Y0] = min(parent[Y0], row[Y0])
        parent[X1] = max(parent[X1], row[X1])
        parent[Y1] = max(parent[Y1], row[Y1])
        parent[AREA] += row[AREA]
        parent[START] = min(parent[START], row[START])
    return top, n


@njit(cache=True, nogil=True)
def _largest(levels, exact, out):
    count, height, width = levels.shape
    shift = _shift(width)
    first = (1 << shift) + 1
    size = (height + 2) << shift
    padded, filled = np.empty(size, np.int16), np.empty(size, np.int16)
    weight = np.ones(size, np.uint8)
    head, link = np.empty(LEVELS, np.int32), np.empty(size, np.int32)
    stack, nodes = np.empty((LEVELS + 1, 8), np.int32), np.empty((height * width + 1, 8), np.int32)
    area = np.empty(LEVELS, np.int64)
    winner = np.empty(LEVELS, np.int32)
    for i in range(count):
        _pad(levels[i], shift, False, padded)
        if exact:
            n = _components(padded, weight, first, shift, True, head, link, stack, nodes)
        else:
            _fill_holes(height, width, shift, padded, filled, head, link)
            _window_weights(height, width, shift, filled, weight)
            n = _components(filled, weight, first, shift, True, head, link, stack, nodes)
        _rank(nodes[:n], exact, area, winner)
        for t in range(LEVELS):
            if winner[t] < 0:
                if exact:
                    out[i, t, 2] = out[i, t, 3] = -1
                continue
            row = nodes[winner[t]]
            grow = 0 if exact else 1
            out[i, t, 0], out[i, t, 1] = row[X0], row[Y0]
            out[i, t, 2], out[i, t, 3] = min(row[X1] + grow, width - 1), min(row[Y1] + grow, height - 1)


@njit(cache=True, nogil=True)
def _rank(nodes, exact, area, winner):
    """Find the largest component of every threshold; of equals the latest ("reference") or earliest start."""
    area[:] = -1
    winner[:] = -1
    # Parents first: areas only grow as the threshold falls, so a component that is beaten at its highest threshold
    # is beaten everywhere, and most small ones are out after one look.
    for index in range(len(nodes) - 1, -1, -1):
        row = nodes[index]
        if row[AREA] < area[row[HI] - 1]:
            continue
        for t in range(row[LO], row[HI]):
            if row[AREA] == area[t]:
                other = nodes[winner[t], START]
                if (row[START] < other) != exact:
                    continue
            elif row[AREA] < area[t]:
                continue
            area[t] = row[AREA]
            winner[t] = index


@njit(cache=True, nogil=True)
def _all(levels, boxes, offsets, exact, iou, number):
    count, height, width = levels.shape
    shift = _shift(width)
    first = (1 << shift) + 1
    size = (height + 2) << shift
    padded, weight = np.empty(size, np.int16), np.zeros(size, np.uint8)
    head, link = np.empty(LEVELS, np.int32), np.empty(size, np.int32)
    stack, nodes = np.empty((LEVELS + 1, 8), np.int32), np.empty((height * width + 1, 8), np.int32)
    grow = 0 if exact else 1
    for i in range(count):
        truth = boxes[offsets[i] : offsets[i + 1]]
        _pad(levels[i], shift, False, padded)
        n = _components(padded, weight, first, shift, True, head, link, stack, nodes)
        for row in nodes[:n]:
            row[X1], row[Y1] = min(row[X1] + grow, width - 1), min(row[Y1] + grow, height - 1)
            _raise(iou[i], number[i], row[LO], row[HI], _iou(row, truth))
        if exact:
            continue
        _pad(levels[i], shift, True, padded)
        n = _components(padded, weight, first, shift, False, head, link, stack, nodes)
        for row in nodes[:n]:
            if row[X0] > 0 and row[Y0] > 0 and row[X1] < width - 1 and row[Y1] < height - 1:
                row[X0] -= 1
                row[Y0] -= 1
                row[X1], row[Y1] = min(row[X1] + 2, width - 1), min(row[Y1] + 2, height - 1)
                _raise(iou[i], number[i], 255 - row[HI], 255 - row[LO], _iou(row, truth))
        row = nodes[0]
        row[X0] = row[Y0] = row[X1] = row[Y1] = 0
        nothing = _iou(row, truth)
        for t in range(LEVELS):
            if number[i, t] == 0:
                number[i, t] = 1
                iou[i, t] = nothing


@njit(cache=True, nogil=True)
def _raise(iou, number, lo, hi, value):
    for t in range(lo, hi):
        iou[t] = max(iou[t], value)
        number[t] += 1


@njit(cache=True, nogil=True)
def _iou(row, truth):
    """Best inclusive overlap of one node's box with the true boxes; same arithmetic as `fcam.boxes.box_iou`."""
    best = 0.0
    own = np.int64(row[X1] - row[X0] + 1) * (row[Y1] - row[Y0] + 1)
    for box in truth:
        w = min(row[X1], box[2]) - max(row[X0], box[0]) + 1
        h = min(row[Y1], box[3]) - max(row[Y0], box[1]) + 1
        if w <= 0 or h <= 0:
            continue
        union = own + (box[2] - box[0] + 1) * (box[3] - box[1] + 1) - w * h
        if union > 0:
            best = max(best, w * h / union)
    return best
