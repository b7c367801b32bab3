"""Kernels: every component of an 8-bit map at all 256 thresholds with its area, from one flood.

Foregrounds at falling thresholds are nested, so their components form a tree (the max-tree of Salembier et
al., IEEE TIP 1998). Flooding from bright to dark (Nistér and Stewénius, ECCV 2008) closes every component
exactly once and needs no labels; its box and weight are extrema and sums over its pixels.

- The contour area of a component is that of its filled form, so holes are filled first, once for all
  thresholds (`fcam.metrics.boxtree.fill_holes`).
- A 2x2 window adds half a pixel when its third-brightest and another half when its darkest pixel appears, so
  those two pixels carry its weight.
- A diagonal step only matters where both pixels beside it are darker than its ends; those few are marked.

All kernels of this sweep are in this file since numba's cache only notices changes of a function's own file.
Maps lie in flat arrays with a border of -1, which stops every flood, and a row pitch that is a power of two.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fcam.kernels import kernel

LEVELS = 256
LO, HI, X0, Y0, X1, Y1, AREA, START = range(8)
_SEEN = 256  # bucket that takes in neighbours that were visited before
_FAR = 1 << 30
_NOTHING = (_FAR, _FAR, -1, -1, 0, _FAR)
_WEIGHT = 7
_NW, _NE, _SW, _SE = 8, 16, 32, 64


class Workspace(NamedTuple):
    """Arrays for maps of one size, made once and used for many."""

    padded: np.ndarray
    """(size,) int16, the map."""
    marks: np.ndarray
    """(size,) uint8, weight in the low three bits, needed diagonals above."""
    base: np.ndarray
    """(257,) int32, where the bucket of each level begins in `queue`."""
    slot: np.ndarray
    """(257,) int32, where the next pixel of each bucket goes."""
    queue: np.ndarray
    """int32, visited pixels whose neighbours wait, by level."""
    stack: np.ndarray
    """(258, 8) int32, open components from dark to bright."""
    nodes: np.ndarray
    """(H W + 1, 8) int32, closed components; a row is lo, hi, x0, y0, x1, y1, area, start."""


@kernel()
def pitch_shift(width):
    """Logarithm of the row pitch, so that coordinates come from an index by shift and mask."""
    shift = 1
    while (1 << shift) < width + 2:
        shift += 1
    return shift


@kernel()
def workspace(height, width):
    """Make the arrays for maps of one size."""
    size = (height + 2) << pitch_shift(width)
    return Workspace(
        np.full(size, -1, np.int16),
        np.zeros(size, np.uint8),
        np.empty(LEVELS + 1, np.int32),
        np.empty(LEVELS + 1, np.int32),
        np.empty(height * width + LEVELS + 2, np.int32),
        np.empty((LEVELS + 2, 8), np.int32),
        np.empty((height * width + 1, 8), np.int32),
    )


@kernel()
def load(levels, padded):
    """Copy a uint8 map (H, W) into the middle of `padded`."""
    height, width = levels.shape
    shift = pitch_shift(width)
    for y in range(height):
        row = padded[((y + 1) << shift) + 1 :]
        for x in range(width):
            row[x] = levels[y, x]


@kernel()
def mark(height, width, values, windows, marks):
    """Set each pixel's weight and the diagonals it needs.

    The weight is the number of 2x2 windows in which the pixel is the third-brightest or the darkest (of
    equals the later is darker), or 1 unless `windows`.
    """
    shift = pitch_shift(width)
    pitch = 1 << shift
    for y in range(1, height + 1):
        up = values[(y - 1) * pitch : (y - 1) * pitch + width + 2]
        row = values[y * pitch : y * pitch + width + 2]
        down = values[(y + 1) * pitch : (y + 1) * pitch + width + 2]
        out = marks[y * pitch : y * pitch + width + 2]
        for x in range(1, width + 1):
            v, n, s, w, e = row[x], up[x], down[x], row[x - 1], row[x + 1]
            nw, ne, sw, se = up[x - 1], up[x + 1], down[x - 1], down[x + 1]
            weight = np.uint8(1)
            if windows:
                weight = (
                    _two_of(n >= v, w >= v, nw >= v)
                    + _two_of(n >= v, e > v, ne >= v)
                    + _two_of(s > v, w >= v, sw > v)
                    + _two_of(s > v, e > v, se > v)
                )
            out[x] = (
                weight
                + np.uint8(max(n, w) < min(v, nw)) * np.uint8(_NW)
                + np.uint8(max(n, e) < min(v, ne)) * np.uint8(_NE)
                + np.uint8(max(s, w) < min(v, sw)) * np.uint8(_SW)
                + np.uint8(max(s, e) < min(v, se)) * np.uint8(_SE)
            )


@kernel(inline="always")
def _two_of(a, b, c):
    return np.uint8((a & b) | (a & c) | (b & c))


@kernel()
def components(height, width, values, work):
    """Flood a map from bright to dark and write every component to `work.nodes`; empties `values`.

    A row of `nodes` is lo, hi, x0, y0, x1, y1, area, start: one component of `values > t` for all lo <= t <
    hi, with its first and last column and row, the sum of its weights and its first pixel. Children come
    before their parents. Connected along `work.marks`. Returns the number of rows.
    """
    shift = pitch_shift(width)
    _make_buckets(height, width, shift, values, work)
    stack, nodes = work.stack, work.nodes
    p = np.uint64((1 << shift) + 1)
    level = np.int64(values[p])
    values[p] = -1
    stack[0, HI] = level
    top, n, box = 0, 0, _NOTHING
    while True:
        q, value = _explore(p, level, shift, values, work)
        if value > level:
            # Brighter ground first; the rest of p's neighbours wait.
            _push(level, p, work)
            _save(stack[top], box)
            p, level, box = q, value, _NOTHING
            top += 1
            stack[top, HI] = level
            continue
        box = _grow(box, np.int64(p), shift, work.marks[p] & _WEIGHT)
        lower = level
        while lower >= 0 and work.slot[np.uint64(lower)] == work.base[np.uint64(lower)]:
            lower -= 1
        if lower < level:
            top, n, box = _close(stack, top, max(lower, 0), nodes, n, box)
            if lower < 0:
                return n
            level = lower
        p = _pop(level, work)


@kernel()
def _make_buckets(height, width, shift, values, work):
    """Give every level as many places in the queue as it has pixels, and one to write into in vain."""
    count = np.zeros(LEVELS, np.int32)
    for y in range(1, height + 1):
        row = values[(y << shift) + 1 : (y << shift) + 1 + width]
        for x in range(width):
            count[np.uint64(row[x])] += 1
    place = 0
    for value in range(LEVELS):
        work.base[value] = work.slot[value] = place
        place += count[value] + 1
    work.base[_SEEN] = work.slot[_SEEN] = place


@kernel()
def _push(level, p, work):
    bucket = np.uint64(level)
    work.queue[np.uint64(work.slot[bucket])] = p
    work.slot[bucket] += 1


@kernel()
def _pop(level, work):
    bucket = np.uint64(level)
    work.slot[bucket] -= 1
    return np.uint64(work.queue[np.uint64(work.slot[bucket])])


@kernel()
def _explore(p, level, shift, values, work):
    """Queue the unseen neighbours of p; stop at and return the first brighter one, with its value."""
    one = np.uint64(1)
    pitch = one << np.uint64(shift)
    for k in range(4):
        q = p + one if k == 0 else p - one if k == 1 else p + pitch if k == 2 else p - pitch
        value = np.int64(values[q])
        values[q] = -1
        if value > level:
            return q, value
        # Without a branch, which could not be predicted: what was seen before is written but not kept.
        bucket = np.uint64(value if value >= 0 else _SEEN)
        place = work.slot[bucket]
        work.queue[np.uint64(place)] = q
        work.slot[bucket] = place + (value >= 0)
    diagonals = np.int64(work.marks[p])
    if diagonals > _WEIGHT:
        for k in range(4):
            if diagonals & (_NW << k):
                row = p - pitch if k < 2 else p + pitch
                q = row + one if k & 1 else row - one
                value = np.int64(values[q])
                values[q] = -1
                if value > level:
                    return q, value
                if value >= 0:
                    _push(value, q, work)
    return p, np.int64(-1)


@kernel()
def _grow(box, p, shift, weight):
    x0, y0, x1, y1, area, start = box
    x, y = (p & ((1 << shift) - 1)) - 1, (p >> shift) - 1
    return min(x0, x), min(y0, y), max(x1, x), max(y1, y), area + weight, min(start, p)


@kernel()
def _save(row, box):
    row[X0], row[Y0], row[X1], row[Y1], row[AREA], row[START] = box


@kernel()
def _merge(box, row):
    x0, y0, x1, y1, area, start = box
    return (
        min(x0, np.int64(row[X0])),
        min(y0, np.int64(row[Y0])),
        max(x1, np.int64(row[X1])),
        max(y1, np.int64(row[Y1])),
        area + np.int64(row[AREA]),
        min(start, np.int64(row[START])),
    )


@kernel()
def _close(stack, top, level, nodes, n, box):
    """Lower the open component to `level`; write out what ends on the way and merge it into its parent."""
    while stack[top, HI] > level:
        below = np.int64(stack[top - 1, HI]) if top > 0 else np.int64(-1)
        row = nodes[n]
        row[LO], row[HI] = max(level, below), stack[top, HI]
        _save(row, box)
        n += 1
        if below < level:
            stack[top, HI] = level
            break
        top -= 1
        box = _merge(box, stack[top])
    return top, n, box


@kernel()
def sweep_largest(levels, exact, out):
    """Write the boxes of the largest components of maps (B, H, W), without holes unless `exact`, to zeros `out`."""
    count, height, width = levels.shape
    work = workspace(height, width)
    area, winner = np.empty(LEVELS, np.int32), np.empty(LEVELS, np.int32)
    grow = 0 if exact else 1
    for i in range(count):
        load(levels[i], work.padded)
        mark(height, width, work.padded, not exact, work.marks)
        n = components(height, width, work.padded, work)
        _rank(work.nodes[:n], exact, area, winner)
        for t in range(LEVELS):
            if winner[t] >= 0:
                row = work.nodes[winner[t]]
                out[i, t, 0], out[i, t, 1] = row[X0], row[Y0]
                out[i, t, 2], out[i, t, 3] = min(row[X1] + grow, width - 1), min(row[Y1] + grow, height - 1)
            elif exact:
                out[i, t, 2] = out[i, t, 3] = -1


@kernel()
def _rank(nodes, exact, area, winner):
    """Find the largest component of every threshold; of equals the latest ("reference") or earliest start."""
    area[:] = -1
    winner[:] = -1
    # Parents first: areas only grow as the threshold falls, so a component that is beaten at its highest
    # threshold is beaten everywhere, and most small ones are out after one look.
    for index in range(len(nodes) - 1, -1, -1):
        row = nodes[index]
        if row[AREA] < area[row[HI] - 1]:
            continue
        for t in range(row[LO], row[HI]):
            if row[AREA] < area[t]:
                continue
            if row[AREA] == area[t] and (row[START] < nodes[winner[t], START]) != exact:
                continue
            area[t] = row[AREA]
            winner[t] = index
