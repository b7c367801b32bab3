"""Kernels of the Gaussian filter on CPU: one image's colour grid is laid out, filled from a map, blurred and read back.

The grid keeps only the runs of nodes that pixels touch: a line is a (red, green) pair of nodes, and holds the
blue nodes from the lowest to the highest one in use. Each node is a block of `LANES` position components.

They share one file since numba's cache only notices changes of a function's own file; those in `vectors.py` it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fcam.bilateral import factors
from fcam.bilateral.vectors import FOUR, LANES, add_scaled, combine, slice_cell, splat_edge
from fcam.kernels import kernel

_compile: Callable[..., Any] = kernel(fastmath=True, boundscheck=False)
_compile_strict: Callable[..., Any] = kernel()  # keeps NaN comparisons meaningful


@_compile_strict
def locate(image, nodes, line, blue, fraction, histogram):
    """Find every pixel's cell (line of its lowest red and green node, lowest blue node) and place in it."""
    scale = np.float32(nodes - 1)
    level = np.float32(histogram.shape[1] - 1)
    for i in range(line.shape[0]):
        cell = (0, 0, 0)
        for axis in range(3):
            value = image[axis, i]
            value = min(value, np.float32(1)) if value > 0 else np.float32(0)  # NaN becomes 0
            place = value * scale
            node = min(int(place), nodes - 2)
            fraction[i, axis] = place - np.float32(node)
            histogram[axis, int(value * level + np.float32(0.5))] += 1
            cell = (cell[1], cell[2], node)
        line[i] = cell[0] * nodes + cell[1]
        blue[i] = cell[2]


@_compile_strict
def occupy(line, blue, width, tall, wide, nodes, low, high, start):
    """Fill the runs [low, high) of blue nodes per tile and line, and where each would begin at blue node 0.

    Returns the number of nodes kept.
    """
    height = line.shape[0] // width
    columns = (width + wide - 1) // wide
    low[:] = nodes
    high[:] = 0
    for y in range(height):
        for x0 in range(0, width, wide):
            tile = y // tall * columns + x0 // wide
            first, last = low[tile], high[tile]
            for i in range(y * width + x0, y * width + min(x0 + wide, width)):
                k, b = line[i], blue[i]
                first[k] = min(first[k], b)
                last[k] = max(last[k], b + 2)
    total = 0
    for tile in range(low.shape[0]):
        first, last, begin = low[tile], high[tile], start[tile]
        for step in (1, nodes):  # a cell reaches one line further along green, then along red
            for k in range(nodes * nodes - 1, step - 1, -1):
                first[k] = min(first[k], first[k - step])
                last[k] = max(last[k], last[k - step])
        for k in range(nodes * nodes):
            if last[k] == 0:
                first[k] = 0
            begin[k] = total - first[k]
            total += last[k] - first[k]
    return total


@_compile
def fit(histogram, factor, nodes, matrices, reach):
    """Fill the three node matrices B = X X', X solving (T' w T) X = T' w F, and how far their rows matter.

    w is the image's own histogram above a floor: a level that fills half of the picture (white paper, a black
    border) is met almost exactly. T' w T is tridiagonal.
    """
    levels, rank = factor.shape
    for axis in range(3):
        pixels = histogram[axis].sum()
        main, upper = np.zeros(nodes), np.zeros(nodes)
        x = np.zeros((nodes, rank))
        for level in range(levels):
            weight = histogram[axis, level] * levels / pixels + factors.FLOOR
            place = level * (nodes - 1) / (levels - 1)
            k = min(int(place), nodes - 2)
            f = place - k
            main[k] += weight * (1 - f) * (1 - f)
            main[k + 1] += weight * f * f
            upper[k] += weight * f * (1 - f)
            for q in range(rank):
                x[k, q] += weight * (1 - f) * factor[level, q]
                x[k + 1, q] += weight * f * factor[level, q]
        for k in range(1, nodes):
            ratio = upper[k - 1] / main[k - 1]
            main[k] -= ratio * upper[k - 1]
            x[k] -= ratio * x[k - 1]
        x[nodes - 1] /= main[nodes - 1]
        for k in range(nodes - 2, -1, -1):
            x[k] = (x[k] - upper[k] * x[k + 1]) / main[k]
        for j in range(nodes):
            for k in range(j + 1):
                total = 0.0
                for q in range(rank):
                    total += x[j, q] * x[k, q]
                matrices[axis, j, k] = total
                matrices[axis, k, j] = total
        for j in range(nodes):
            for k in range(nodes):
                size = np.sqrt(matrices[axis, j, j] * matrices[axis, k, k])
                if abs(matrices[axis, j, k]) > factors.NEGLIGIBLE * size:
                    reach[axis] = max(reach[axis], abs(j - k))


@_compile
def _aligned(length):
    """Zeros whose first element begins a cache line, so that one node is one line."""
    raw = np.zeros(length + LANES, np.float32)
    skip = (-(raw.ctypes.data // 4)) % LANES
    return raw[skip : skip + length]


@_compile
def _splat(map_, width, tile, size, line, blue, fraction, start, nodes, basis, grid):
    """Spread one tile of a map over the eight nodes around each pixel's colour."""
    y0, x0, tall, wide = size
    one = np.float32(1)
    for y in range(y0, min(y0 + tall, map_.shape[0] // width)):
        for x in range(x0, min(x0 + wide, width)):
            i = y * width + x
            origin = ((y - y0) * wide + x - x0) * LANES
            red, green, share = fraction[i, 0], fraction[i, 1], fraction[i, 2]
            k, b = line[i], blue[i]
            upper = red * map_[i]
            lower = map_[i] - upper
            splat_edge(grid, (start[tile, k] + b) * LANES, basis, origin, lower * (one - green), share)
            splat_edge(grid, (start[tile, k + 1] + b) * LANES, basis, origin, lower * green, share)
            k += nodes
            splat_edge(grid, (start[tile, k] + b) * LANES, basis, origin, upper * (one - green), share)
            splat_edge(grid, (start[tile, k + 1] + b) * LANES, basis, origin, upper * green, share)


@_compile
def _slice(result, width, tile, size, line, blue, fraction, start, nodes, basis, grid):
    """Read one tile of the filtered map back from the grid."""
    y0, x0, tall, wide = size
    for y in range(y0, min(y0 + tall, result.shape[0] // width)):
        for x in range(x0, min(x0 + wide, width)):
            i = y * width + x
            k, b = line[i], blue[i]
            edges = (
                (start[tile, k] + b) * LANES,
                (start[tile, k + 1] + b) * LANES,
                (start[tile, k + nodes] + b) * LANES,
                (start[tile, k + nodes + 1] + b) * LANES,
            )
            origin = ((y - y0) * wide + x - x0) * LANES
            result[i] = slice_cell(grid, edges, fraction[i, 0], fraction[i, 1], fraction[i, 2], basis, origin)


@_compile
def _couple(tile, rows, columns, coupling, low, high, start, grid):
    """Gather what a tile receives from all tiles within reach: the runs (low, high, start), their nodes."""
    ry, rx = coupling.shape[0] // 2, coupling.shape[1] // 2
    y, x = tile // columns, tile % columns
    lines = low.shape[1]
    low_in, high_in = np.full(lines, 1 << 14, np.int16), np.zeros(lines, np.int16)
    y_range = range(max(0, y - ry), min(rows, y + ry + 1))
    x_range = range(max(0, x - rx), min(columns, x + rx + 1))
    for v in y_range:
        for u in x_range:
            for k in range(lines):
                if high[v * columns + u, k] > 0:
                    low_in[k] = min(low_in[k], low[v * columns + u, k])
                    high_in[k] = max(high_in[k], high[v * columns + u, k])
    start_in = np.zeros(lines, np.int64)
    total = 0
    for k in range(lines):
        if high_in[k] > 0:
            start_in[k] = total - low_in[k]
            total += high_in[k] - low_in[k]
        else:
            low_in[k] = 0
    gathered = _aligned(total * LANES)
    for v in y_range:
        for u in x_range:
            other = v * columns + u
            block = coupling[ry + v - y, rx + u - x].T.copy().reshape(-1)
            for k in range(lines):
                for b in range(low[other, k], high[other, k]):
                    source, target = (start[other, k] + b) * LANES, (start_in[k] + b) * LANES
                    for lane in range(LANES):
                        add_scaled(gathered, target, block, lane * LANES, grid[source + lane])
    return (low_in, high_in, start_in), gathered


@_compile
def _blur_red(source, low, high, start, red, factors, reach, plane, green_low, green_high):
    """plane (green, blue) = row `red` of B_red times the source; where it is not zero, per blue node."""
    nodes = green_low.shape[0]
    plane[:] = 0
    green_low[:] = nodes
    green_high[:] = 0
    for r in range(max(0, red - reach), min(nodes, red + reach + 1)):
        for g in range(nodes):
            k = r * nodes + g
            for b in range(low[k], high[k]):
                place = (start[k] + b) * LANES
                add_scaled(plane, (g * nodes + b) * LANES, source, place, factors[r])
                green_low[b] = min(green_low[b], g)
                green_high[b] = max(green_high[b], g + 1)


@_compile
def _blur(source, runs_in, target, runs, matrices, reach):
    """target = (B_red x B_green x B_blue) source, from the runs of one set of nodes to those of another.

    One red plane of the result at a time, four of its green lines at a time, four nodes of a line at a time.
    A run is filled in whole fours: what lies beyond its end belongs to a run filled later, or to none.
    """
    low_in, high_in, start_in = runs_in
    low, high, start = runs
    nodes = matrices.shape[2]
    plane, lines = _aligned(nodes * nodes * LANES), _aligned(FOUR * nodes * LANES)
    green_low, green_high = np.empty(nodes, np.int64), np.empty(nodes, np.int64)
    flat = matrices.reshape(-1)
    green_rows, blue_rows = matrices[0].size, 2 * matrices[0].size
    for red in range(nodes):
        if high[red * nodes : (red + 1) * nodes].max() == 0:
            continue
        row = matrices[0, red]
        _blur_red(source, low_in, high_in, start_in, red, row, reach[0], plane, green_low, green_high)
        for group in range(0, nodes, FOUR):
            k = red * nodes + group
            if high[k : min(k + FOUR, (red + 1) * nodes)].max() == 0:
                continue
            bottom, top = nodes, 0
            for b in range(nodes):
                g = max(green_low[b], group - reach[1])
                count = min(green_high[b], group + FOUR + reach[1]) - g
                if count > 0:
                    bottom, top = min(bottom, b), b + 1
                entry = green_rows + group * nodes + g
                origin = (g * nodes + b) * LANES
                combine(
                    lines,
                    b * LANES,
                    nodes * LANES,
                    plane,
                    origin,
                    nodes * LANES,
                    max(0, count),
                    flat,
                    entry,
                    nodes,
                )
            for q in range(min(FOUR, nodes - group)):
                for out in range(low[k + q], high[k + q], FOUR):
                    b = max(bottom, out - reach[2])
                    count = min(top, out + FOUR + reach[2]) - b
                    entry = blue_rows + out * nodes + b
                    place, origin = (start[k + q] + out) * LANES, (q * nodes + b) * LANES
                    combine(target, place, LANES, lines, origin, LANES, max(0, count), flat, entry, nodes)


@_compile
def filter_map(map_, result, width, tiles, pixels, runs, total, colours, positions):
    """result = W map for one image and one map: splat, couple the tiles, blur, slice."""
    tall, wide, rows, columns = tiles
    line, blue, fraction = pixels
    low, high, start = runs
    matrices, reach = colours
    basis, coupling = positions
    nodes = matrices.shape[2]
    grid, blurred = _aligned(total * LANES), _aligned((total + FOUR - 1) * LANES)
    for tile in range(rows * columns):
        size = (tile // columns * tall, tile % columns * wide, tall, wide)
        _splat(map_, width, tile, size, line, blue, fraction, start, nodes, basis, grid)
    for tile in range(rows * columns):
        size = (tile // columns * tall, tile % columns * wide, tall, wide)
        mine = low[tile], high[tile], start[tile]
        runs_in, source = mine, grid
        if rows * columns > 1:
            runs_in, source = _couple(tile, rows, columns, coupling, low, high, start, grid)
        _blur(source, runs_in, blurred, mine, matrices, reach)
        _slice(result, width, tile, size, line, blue, fraction, start, nodes, basis, blurred)
