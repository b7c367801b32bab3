"""Contours of one binary map: every outer border and every hole, with box and area, in OpenCV's order.

The map is cut into horizontal runs of equal pixels; runs are joined into components (foreground 8-connected,
background 4-connected), and one walk along neighbouring rows yields the polygon area of every border: a 2x2
window holding three pixels of a filled component adds half a pixel, one holding four adds a whole one. That
sum equals the shoelace area of the polygon through the border's pixel centres, which is what
`cv2.contourArea` returns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fcam.kernels import kernel


class Contours(NamedTuple):
    """Contours in the order of `cv2.findContours(RETR_TREE)`: parent before children, latest start first."""

    boxes: np.ndarray
    """(n, 4) int32, first and last pixel of the border, x0 y0 x1 y1."""
    areas: np.ndarray
    """(n,) float64, polygon area through pixel centres, enclosed holes and islands included."""
    pixels: np.ndarray
    """(n,) int64, pixels of the component itself."""
    holes: np.ndarray
    """(n,) bool, true for the border of a hole (it runs on the foreground pixels around the hole)."""


def contours(foreground: np.ndarray) -> Contours:
    """Return all contours of a boolean map (H, W); foreground is 8-connected, background 4-connected."""
    mask = np.ascontiguousarray(foreground, dtype=np.bool_)
    starts, rows, row_first = _runs(mask)
    parent, area2 = _join(mask, starts, row_first)
    return Contours(*_tree(mask, starts, rows, row_first, parent, area2))


class Components(NamedTuple):
    """The 8-connected components of a binary map, numbered from 1 in raster order of their first pixels."""

    numbers: np.ndarray
    """(H, W) int32, 0 where there is background."""
    boxes: np.ndarray
    """(n, 4) int32, first and last pixel of each, x0 y0 x1 y1; no two components have the same."""


def components(foreground: np.ndarray) -> Components:
    """Number the 8-connected components of a boolean map (H, W): those whose outer borders `contours` lists."""
    mask = np.ascontiguousarray(foreground, dtype=np.bool_)
    starts, rows, row_first = _runs(mask)
    parent, _ = _join(mask, starts, row_first)
    return Components(*_numbered(mask, starts, rows, row_first, parent))


@kernel()
def _runs(mask):
    """First column and row of every run in raster order; run 0 stands for the outside of the map."""
    height, width = mask.shape
    count = 1 + height
    for y in range(height):
        row = mask[y]
        for x in range(1, width):
            count += row[x] != row[x - 1]
    starts = np.zeros(count, np.int32)
    rows = np.full(count, -1, np.int32)
    row_first = np.empty(height + 1, np.int32)
    run = 0
    for y in range(height):
        row = mask[y]
        run += 1
        row_first[y] = run
        starts[run] = 0
        rows[run] = y
        for x in range(1, width):
            if row[x] != row[x - 1]:
                run += 1
                starts[run] = x
                rows[run] = y
    row_first[height] = run + 1
    return starts, rows, row_first


@kernel()
def _find(parent, run):
    while parent[run] != run:
        parent[run] = parent[parent[run]]
        run = parent[run]
    return run


@kernel()
def _union(parent, a, b):
    # The smaller index wins, so a root is always its component's first run in raster order.
    a = _find(parent, a)
    b = _find(parent, b)
    if a < b:
        parent[b] = a
    elif b < a:
        parent[a] = b


@kernel()
def _join(mask, starts, row_first):
    """Union the runs of neighbouring rows and add up twice the window area of each run."""
    height, width = mask.shape
    count = starts.size
    parent = np.arange(count).astype(np.int32)
    area2 = np.zeros(count, np.int64)
    for y in range(height):
        first, last = row_first[y], row_first[y + 1] - 1
        if y == 0 or y == height - 1:
            for run in range(first, last + 1):
                if not mask[y, starts[run]]:
                    _union(parent, run, 0)
        else:
            if not mask[y, 0]:
                _union(parent, first, 0)
            if not mask[y, width - 1]:
                _union(parent, last, 0)
        if y + 1 < height:
            _join_rows(mask, starts, row_first, parent, area2, y)
    return parent, area2


@kernel()
def _join_rows(mask, starts, row_first, parent, area2, y):
    """Walk rows y and y+1 together, one step per change in either of them."""
    width = mask.shape[1]
    i, j = row_first[y], row_first[y + 1]
    end_i, end_j = row_first[y + 1], row_first[y + 2]
    x = 0
    while True:
        top, bottom = mask[y, x], mask[y + 1, x]
        next_i = starts[i + 1] if i + 1 < end_i else width
        next_j = starts[j + 1] if j + 1 < end_j else width
        x_next = min(next_i, next_j)
        windows = x_next - x - 1
        if top == bottom:
            _union(parent, i, j)
            area2[i] += 2 * windows
        else:
            area2[j if top else i] += 2 * windows
        if x_next == width:
            return
        i_next = i + 1 if next_i == x_next else i
        j_next = j + 1 if next_j == x_next else j
        top_next, bottom_next = mask[y, x_next], mask[y + 1, x_next]
        if top and bottom_next:
            _union(parent, i, j_next)
        if top_next and bottom:
            _union(parent, i_next, j)
        # A window across a change: three foreground pixels are half covered, so is the one hole pixel beside
        # them; each of two diagonal background pixels closes half a pixel of its own hole.
        foreground = int(top) + int(bottom) + int(top_next) + int(bottom_next)
        background = i if not top else j if not bottom else i_next if not top_next else j_next
        if foreground == 3:
            area2[i if top else j] += 1
            area2[background] += 1
        elif foreground == 2 and top != bottom:
            area2[j if top else i] += 1
            area2[j_next if top_next else i_next] += 1
        else:
            area2[background] += 2
        x, i, j = x_next, i_next, j_next


@kernel()
def _numbered(mask, starts, rows, row_first, parent):
    """Write the number of its component into every pixel of a run, and stretch the component's box over it."""
    width = mask.shape[1]
    numbers = np.zeros(mask.shape, np.int32)
    number = np.zeros(starts.size, np.int32)
    boxes = np.empty((starts.size, 4), np.int32)
    n = 0
    for run in range(1, starts.size):
        y, x0 = rows[run], starts[run]
        if not mask[y, x0]:
            continue
        x1 = starts[run + 1] - 1 if run + 1 < row_first[y + 1] else width - 1
        root = _find(parent, run)
        if root == run:  # a component's first run, since the smaller index wins
            boxes[n, 0], boxes[n, 1], boxes[n, 2], boxes[n, 3] = x0, y, x1, y
            n += 1
            number[run] = n
        else:
            i = number[root] - 1
            boxes[i, 0] = min(boxes[i, 0], x0)
            boxes[i, 2] = max(boxes[i, 2], x1)
            boxes[i, 3] = y
        numbers[y, x0 : x1 + 1] = number[root]
    return numbers, boxes[:n].copy()


@kernel()
def _tree(mask, starts, rows, row_first, parent, area2):
    """Gather runs into components, hang them below what surrounds them, list them in OpenCV's order."""
    width = mask.shape[1]
    count = starts.size
    pixels = np.zeros(count, np.int64)
    box = np.empty((count, 4), np.int32)
    for run in range(1, count):
        y, x0 = rows[run], starts[run]
        x1 = starts[run + 1] - 1 if run + 1 < row_first[y + 1] else width - 1
        root = _find(parent, run)
        pixels[root] += x1 - x0 + 1
        if root == run:
            box[run, 0], box[run, 1], box[run, 2], box[run, 3] = x0, y, x1, y
        elif root != 0:
            area2[root] += area2[run]
            box[root, 0] = min(box[root, 0], x0)
            box[root, 2] = max(box[root, 2], x1)
            box[root, 3] = max(box[root, 3], y)
    child = np.full(count, -1, np.int32)
    sibling = np.full(count, -1, np.int32)
    total = 0
    for run in range(1, count):
        if parent[run] == run:
            # What lies left of a component's first pixel surrounds it.
            outer = 0 if starts[run] == 0 else _find(parent, run - 1)
            sibling[run] = child[outer]
            child[outer] = run
            total += 1
    for run in range(count - 1, 0, -1):
        if parent[run] == run and starts[run] > 0:
            area2[_find(parent, run - 1)] += area2[run]
    return _listed(mask, starts, rows, child, sibling, box, area2, pixels, total)


@kernel()
def _listed(mask, starts, rows, child, sibling, box, area2, pixels, total):
    boxes = np.empty((total, 4), np.int32)
    areas = np.empty(total, np.float64)
    sizes = np.empty(total, np.int64)
    holes = np.empty(total, np.bool_)
    stack = np.empty(total + 1, np.int32)
    stack[0] = child[0]
    depth = 0
    n = 0
    while depth >= 0:
        run = stack[depth]
        if run < 0:
            depth -= 1
            continue
        stack[depth] = sibling[run]
        hole = not mask[rows[run], starts[run]]
        grow = 1 if hole else 0  # a hole's border runs on the pixels around it
        boxes[n, 0], boxes[n, 1] = box[run, 0] - grow, box[run, 1] - grow
        boxes[n, 2], boxes[n, 3] = box[run, 2] + grow, box[run, 3] + grow
        areas[n], sizes[n], holes[n] = area2[run] / 2, pixels[run], hole
        n += 1
        depth += 1
        stack[depth] = child[run]
    return boxes, areas, sizes, holes
