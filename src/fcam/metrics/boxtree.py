"""Kernels: the boxes of all contours of an 8-bit map at all 256 thresholds, from the few pixels that change one.

The pixels of a map are added from bright to dark, of equals in reading order, and `fcam.metrics.ring` tells by a
look at the neighbours what each one does. A few in a hundred pixels of a smooth map begin or join components or
may widen a box. Only these are visited, in order, and at most once each the pixels on the way from one of them to
its component: steps to a neighbour that came before lead there from every pixel.

A hole is a 4-connected component of what is not yet added that does not reach the outside. Holes are found in the
same way by adding pixels in reverse order, with the surroundings of the map as a component that came first.

All kernels of this sweep are in this file since numba's cache only notices changes of a function's own file.
Maps lie in flat arrays with a border and a row pitch that is a power of two, 1 << shift.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fcam.kernels import kernel

LEVELS = 256
FINE = 255 * 256.0
"""Highest value of a map in 256ths of a level: with finer values fewer pixels are equal and fewer active."""
_X0, _Y0, _X1, _Y1 = range(4)
_PARENT, _SINCE, _SEED, _END = 4, 5, 6, 7  # of a component
_LO, _HI = 4, 5  # of a box
_OUTSIDE = 1
_FILLED = 65535  # brighter than any value


class _Workspace(NamedTuple):
    """Arrays for maps of one size, made once and used for many."""

    values: np.ndarray
    """(size,) uint16, the map in 256ths of a level and raised by one; 0 around it."""
    codes: np.ndarray
    """(size,) uint8."""
    label: np.ndarray
    """(size,) int32, a component that a pixel belonged to when it was visited, 0 before; the outside around it."""
    order: np.ndarray
    """(2, H W) int32, the active pixels, and room to sort them."""
    nodes: np.ndarray
    """(., 8) int32, components; a row is x0, y0, x1, y1, parent, the level at which the box became this, the
    pixel that began it and the pixel that joined it to another, 0 before."""
    spans: np.ndarray
    """(., 6) int32, boxes; a row is x0, y0, x1, y1, lo, hi: the box of one component at all lo <= t < hi."""


@kernel()
def _workspace(height, width, shift):
    size, pixels = (height + 2) << shift, height * width
    return _Workspace(
        np.zeros(size, np.uint16),
        np.zeros(size, np.uint8),
        np.full(size, _OUTSIDE, np.int32),
        np.empty((2, pixels), np.int32),
        # No two neighbours begin a component, and a box ends with its component or is widened by a pixel.
        np.empty((pixels // 2 + 4, 8), np.int32),
        np.empty((2 * pixels + 4, 6), np.int32),
    )


@kernel()
def sweep_all(maps, scale, boxes, offsets, shift, exact, foreground, background, iou, number, top):
    """Overlap all contours of maps (B, H, W), in units of 1 / `scale` 256ths of a level, with the true boxes.

    Writes the best overlap `iou` and the `number` of boxes, (B, 256), to be given as zeros, and the highest level
    `top` (B,), -1 for a map with an impossible value.
    """
    count, height, width = maps.shape
    work = _workspace(height, width, shift)
    for i in range(count):
        truth = boxes[offsets[i] : offsets[i + 1]]
        top[i] = _load(maps[i], scale, shift, work.values)
        if top[i] < 0:
            continue
        _find_codes(work.values, shift, height, width, work.codes)
        n, _ = _add_pixels(False, foreground, shift, height, width, work)
        _overlap(work.spans[:n], 0, 0 if exact else 1, height, width, truth, iou[i], number[i])
        if not exact:
            n, _ = _add_pixels(True, background, shift, height, width, work)
            # The contour of a hole runs on the pixels around it.
            _overlap(work.spans[:n], 1, 1, height, width, truth, iou[i], number[i])
        # Up to here `number` holds differences between neighbouring thresholds.
        boxes_now = 0
        for t in range(LEVELS):
            boxes_now += number[i, t]
            number[i, t] = boxes_now
            if boxes_now == 0 and not exact:
                number[i, t] = 1
                iou[i, t] = _best_iou(0, 0, 0, 0, truth)


@kernel()
def fill_holes(maps, scale, shift, background, levels, top):
    """Write the levels (B, H, W) of maps, every pixel raised to the lowest over which it drains to the border.

    Drains are 4-connected. Arguments and `top` as of `sweep_all`; without `background` no hole is filled.
    """
    count, height, width = maps.shape
    work = _workspace(height, width, shift)
    values, nodes = work.values, work.nodes
    for i in range(count):
        top[i] = _load(maps[i], scale, shift, values)
        if top[i] < 0:
            continue
        for y in range(height):
            first = ((y + 1) << shift) + 1
            for x in range(width):
                levels[i, y, x] = (values[first + x] - 1) >> 8
        if background is not None:
            _find_codes(values, shift, height, width, work.codes)
            _, last = _add_pixels(True, background, shift, height, width, work)
            for hole in range(_OUTSIDE + 1, last + 1):
                end = nodes[hole, _END]
                # All end, at the last pixel at the latest; what ended in another hole is filled with that one.
                if work.label[end] == _OUTSIDE:
                    _fill(nodes[hole, _SEED], end, shift, values, work.order[1], levels[i])


@kernel()
def _fill(seed, end, shift, values, stack, levels):
    """Raise all pixels that came before `end` and are 4-connected with `seed` to the level of `end`."""
    pitch = 1 << shift
    value = values[end]
    stack[0], waiting = seed, 1
    values[seed] = _FILLED
    while waiting > 0:
        waiting -= 1
        p = np.int64(stack[waiting])
        levels[(p >> shift) - 1, (p & (pitch - 1)) - 1] = (value - 1) >> 8
        for k in range(4):
            q = p + 1 if k == 0 else p - 1 if k == 1 else p + pitch if k == 2 else p - pitch
            if values[q] < value or (values[q] == value and q > end):
                values[q] = _FILLED
                stack[waiting] = q
                waiting += 1


@kernel()
def _load(map, scale, shift, values):
    """Copy a map (H, W) into the middle of `values`; return its highest level, -1 if a value is impossible."""
    height, width = map.shape
    valid, highest = True, np.int32(0)
    for y in range(height):
        first = ((y + 1) << shift) + 1
        row = values[first : first + width]
        for x in range(width):
            value = np.float64(map[y, x]) * scale
            valid &= (value >= 0.0) & (value <= FINE)
            fine = np.int32(value)
            highest = max(highest, fine)
            row[x] = fine + 1
    return highest >> 8 if valid else -1


@kernel()
def _overlap(spans, margin, grow, height, width, truth, iou, change):
    """Take in boxes, made wider by `margin` on all sides and by `grow` to the right and below."""
    for k in range(len(spans)):
        lo, hi = spans[k, _LO], spans[k, _HI]
        change[lo] += 1
        change[hi] -= 1
        value = _best_iou(
            spans[k, _X0] - margin,
            spans[k, _Y0] - margin,
            min(spans[k, _X1] + margin + grow, width - 1),
            min(spans[k, _Y1] + margin + grow, height - 1),
            truth,
        )
        if value > 0:
            for t in range(lo, hi):
                iou[t] = max(iou[t], value)


@kernel()
def _find_codes(values, shift, height, width, codes):
    """Write the code of every pixel: which of its neighbours are brighter, or as bright and earlier."""
    pitch = 1 << shift
    for y in range(1, height + 1):
        up = values[(y - 1) * pitch : (y - 1) * pitch + width + 2]
        row = values[y * pitch : y * pitch + width + 2]
        down = values[(y + 1) * pitch : (y + 1) * pitch + width + 2]
        out = codes[y * pitch : y * pitch + width + 2]
        for x in range(1, width + 1):
            v = row[x]
            out[x] = (
                np.uint8(up[x - 1] >= v)
                | np.uint8(up[x] >= v) << 1
                | np.uint8(up[x + 1] >= v) << 2
                | np.uint8(row[x + 1] > v) << 3
                | np.uint8(down[x + 1] > v) << 4
                | np.uint8(down[x] > v) << 5
                | np.uint8(down[x - 1] > v) << 6
                | np.uint8(row[x - 1] >= v) << 7
            )


@kernel()
def _add_pixels(hole, rules, shift, height, width, work):
    """Add all pixels, from dark to bright for holes, and write all components and boxes into `work`.

    Returns the number of boxes and the last component; the outside is the first.
    """
    # Taken out of the tuples here, since numba counts references to all of a tuple's arrays in every call.
    active, step, others_of, ring = rules
    values, codes, label, order, nodes, spans = work
    for y in range(height):
        first = ((y + 1) << shift) + 1
        label[first : first + width] = 0
    n = _list_active(values, codes, active, shift, height, width, order)
    _begin(nodes, _OUTSIDE, -1, -1, 0, 0)
    nodes[_OUTSIDE, _X1], nodes[_OUTSIDE, _Y1] = width, height
    last = _OUTSIDE
    one = np.uint64(1)
    mask = (one << np.uint64(shift)) - one
    done = 0
    for k in range(n):
        p = np.uint64(order[0, n - 1 - k if hole else k])
        code = codes[p]
        level = (np.int64(values[p]) - 1) >> 8
        x, y = np.int64(p & mask) - 1, np.int64(p >> np.uint64(shift)) - 1
        if step[code] == 0:
            last += 1
            _begin(nodes, last, x, y, level, p)
            label[p] = last
            continue
        root = _find(p + step[code], codes, step, label, nodes)
        others = others_of[code]
        if others:
            for bit in range(8):
                if others >> bit & 1:
                    other = _find(p + ring[bit], codes, step, label, nodes)
                    root, done = _join(nodes, root, other, level, p, spans, done)
        label[p] = root
        done = _widen(nodes, root, x, y, x, y, level, spans, done)
    for root in range(_OUTSIDE + 1, last + 1):
        if nodes[root, _PARENT] == root:
            done = _close(nodes, root, 0, spans, done)
    return done, last


@kernel()
def _list_active(values, codes, active, shift, height, width, order):
    """Write the places of the active pixels into `order[0]`, from bright to dark; return how many they are."""
    a, b = order[0], order[1]
    n = 0
    for y in range(1, height + 1):
        first = y << shift
        for p in range(first + 1, first + 1 + width):
            # Without a branch, which could not be predicted: an inactive pixel is overwritten by the next.
            a[np.uint64(n)] = p
            n += active[codes[np.uint64(p)]]
    for digit in range(2):
        slot = np.zeros(LEVELS, np.int32)
        for k in range(n):
            slot[~values[np.uint64(a[k])] >> 8 * digit & 255] += 1
        place = 0
        for d in range(LEVELS):
            place, slot[d] = place + slot[d], place
        for k in range(n):
            d = ~values[np.uint64(a[k])] >> 8 * digit & 255
            b[slot[d]] = a[k]
            slot[d] += 1
        a, b = b, a
    return n


@kernel()
def _begin(nodes, root, x, y, level, p):
    nodes[root, _PARENT], nodes[root, _SINCE], nodes[root, _SEED], nodes[root, _END] = root, level, p, 0
    nodes[root, _X0], nodes[root, _Y0], nodes[root, _X1], nodes[root, _Y1] = x, y, x, y


@kernel()
def _find(p, codes, step, label, nodes):
    """Return the component of a pixel that came before, and label the pixels on the way there."""
    q = p
    while label[q] == 0:
        q += step[codes[q]]
    root = label[q]
    while nodes[root, _PARENT] != root:
        nodes[root, _PARENT] = nodes[nodes[root, _PARENT], _PARENT]
        root = nodes[root, _PARENT]
    while p != q:
        label[p] = root
        p += step[codes[p]]
    return root


@kernel()
def _join(nodes, a, b, level, p, spans, done):
    """Make one component of two that touch p; the one with the larger box goes on, so the outside always does."""
    if a == b:
        return a, done
    if _extent(nodes, a) < _extent(nodes, b):
        a, b = b, a
    done = _close(nodes, b, level, spans, done)
    nodes[b, _PARENT], nodes[b, _END] = a, p
    done = _widen(nodes, a, nodes[b, _X0], nodes[b, _Y0], nodes[b, _X1], nodes[b, _Y1], level, spans, done)
    return a, done


@kernel()
def _extent(nodes, root):
    return np.int64(nodes[root, _X1] - nodes[root, _X0] + 1) * np.int64(
        nodes[root, _Y1] - nodes[root, _Y0] + 1
    )


@kernel()
def _widen(nodes, root, x0, y0, x1, y1, level, spans, done):
    """Extend the box of a component by another from this level on."""
    a, b, c, d = nodes[root, _X0], nodes[root, _Y0], nodes[root, _X1], nodes[root, _Y1]
    if x0 < a or y0 < b or x1 > c or y1 > d:
        done = _close(nodes, root, level, spans, done)
        nodes[root, _X0], nodes[root, _Y0] = min(a, x0), min(b, y0)
        nodes[root, _X1], nodes[root, _Y1] = max(c, x1), max(d, y1)
        nodes[root, _SINCE] = level
    return done


@kernel()
def _close(nodes, root, level, spans, done):
    """Write out a box that ends at this level; none of the outside, or that changed again at the same level."""
    since = nodes[root, _SINCE]
    if level == since or nodes[root, _X0] < 0:
        return done
    spans[done, _X0], spans[done, _Y0] = nodes[root, _X0], nodes[root, _Y0]
    spans[done, _X1], spans[done, _Y1] = nodes[root, _X1], nodes[root, _Y1]
    spans[done, _LO], spans[done, _HI] = min(level, since), max(level, since)
    return done + 1


@kernel()
def iou_of_boxes(predicted, boxes, offsets, iou):
    """Overlap of one box per map and level (B, L, 4) with the map's true boxes, into `iou` (B, L)."""
    for i in range(predicted.shape[0]):
        truth = boxes[offsets[i] : offsets[i + 1]]
        for t in range(predicted.shape[1]):
            x0, y0, x1, y1 = predicted[i, t]
            iou[i, t] = _best_iou(x0, y0, x1, y1, truth)


@kernel()
def _best_iou(x0, y0, x1, y1, truth):
    """Best inclusive overlap of one box with the true boxes; the arithmetic of `fcam.boxes.box_iou`."""
    best = 0.0
    own = np.int64(x1 - x0 + 1) * np.int64(y1 - y0 + 1)
    for box in truth:
        w = min(x1, box[2]) - max(x0, box[0]) + 1
        h = min(y1, box[3]) - max(y0, box[1]) + 1
        if w > 0 and h > 0:
            union = own + (box[2] - box[0] + 1) * (box[3] - box[1] + 1) - w * h
            if union > 0:
                best = max(best, w * h / union)
    return best
