"""The outline of a region of a mask as one polygon, the way labels for segmentation need it.

Marching squares (Lorensen and Cline, SIGGRAPH 1987) between pixels and background passes halfway between
neighbouring pixel centres: through the middle of every pixel edge on the border, cutting corners. The centre
of each pixel of the region is inside, every other centre outside, the polygon's box is the region's box, and
pixels that touch at a corner only are joined, as 8-connected components are. Formats for labels have one ring
per region and no holes, so a hole is reached by a cut of no width, there and back.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from contourpy import FillType, contour_generator
from numpy.typing import NDArray

from fcam.errors import FcamError

Points = NDArray[np.float64]

TOLERANCE = 1.0
"""Pixels by which a simplified outline may miss the traced one, at most."""
AREA_TOLERANCE = 0.03
"""Share of a region's area that simplifying may add and take away together; 0.007 is the most that was measured."""
COMPLEX = np.array([1, 1j])
_LEVEL = 0.5 - 1e-9  # below the mean of two pixels at opposite corners: these are joined


def outline(region: NDArray[np.bool_]) -> Points:
    """Trace one 8-connected region (h, w), simplified, as a ring of n >= 4 points (n, 2), x and y.

    Pixel (x, y) covers [x, x+1] x [y, y+1]; the last point is not the first again. Holes are left out of the
    area by cuts of no width, under both fill rules. The ring stays within min(1 pixel, 0.03 area / length) of
    the traced one, which leaves regions of a few pixels as they are, and has the same box. Raises `FcamError`
    for anything but one region.
    """
    if region.ndim != 2 or not region.any():
        raise FcamError(f"an outline needs one region in a mask (h, w), got an empty {region.shape}")
    rings = _trace(region)
    length = sum(float(np.hypot(*(np.roll(ring, -1, 0) - ring).T).sum()) for ring in rings)
    tolerance = min(TOLERANCE, AREA_TOLERANCE * float(region.sum()) / length)
    ring, fixed = _joined(rings)
    return _simplified(ring, fixed, tolerance)


def _trace(region: NDArray[np.bool_]) -> list[Points]:
    """Return the outer ring and then the holes' rings, which run the other way round."""
    padded = np.zeros((region.shape[0] + 2, region.shape[1] + 2))
    padded[1:-1, 1:-1] = region
    tracer = contour_generator(z=padded, name="serial", fill_type=FillType.OuterOffset)
    points, offsets = cast(tuple[list[Points], list[NDArray[np.uint32]]], tracer.filled(_LEVEL, 2.0))
    if len(points) != 1:
        raise FcamError(f"an outline needs one 8-connected region, got {len(points)}; label components first")
    # Centres of padded pixels lie half a pixel off; all points lie on a grid of halves.
    halves = np.round(points[0] * 2 - 1) / 2 + 0.0  # no negative zeros
    return [halves[a : b - 1] for a, b in zip(offsets[0][:-1], offsets[0][1:], strict=True)]


def _joined(rings: list[Points]) -> tuple[Points, list[int]]:
    """Cut from every hole to the ring left of it; return the one ring and the places of the cuts' ends.

    Holes are taken from left to right, so that what lies left of a hole is part of the ring already. Its
    leftmost point lies in the middle of a row of pixels, where every crossing of the ring is one of its
    points, and the level cut to the nearest of them crosses nothing.
    """
    ring = rings[0]
    ends: list[Points] = []
    for hole in sorted(rings[1:], key=lambda hole: float(hole[:, 0].min())):
        hole = np.roll(hole, -int(hole[:, 0].argmin()), axis=0)
        left = np.flatnonzero((ring[:, 1] == hole[0, 1]) & (ring[:, 0] < hole[0, 0]))
        nearest = int(left[ring[left, 0].argmax()])
        ends += [hole[0], ring[nearest]]
        ring = np.concatenate([ring[: nearest + 1], hole, hole[:1], ring[nearest:]])
    # Coordinates are halves, so that points can be looked up as exact complex numbers, however many the cuts are.
    fixed = np.isin(ring @ COMPLEX, np.reshape(ends, (-1, 2)) @ COMPLEX)
    return ring, np.flatnonzero(fixed).tolist()


def _simplified(ring: Points, fixed: list[int], tolerance: float) -> Points:
    """Leave out points within `tolerance` of the line without them (Douglas and Peucker, 1973).

    The outermost points on each side and those at `fixed` stay: the box stays the same, and cuts stay closed.
    """
    x, y = ring.T
    stay = sorted({int(x.argmin()), int(x.argmax()), int(y.argmin()), int(y.argmax()), *fixed})
    ring = np.roll(ring, -stay[0], axis=0)
    closed = np.concatenate([ring, ring[:1]])
    kept = np.zeros(len(closed), dtype=bool)
    kept[[place - stay[0] for place in stay]] = True
    todo = list(zip(np.flatnonzero(kept), [*np.flatnonzero(kept)[1:], len(ring)], strict=True))
    while todo:
        first, last = todo.pop()
        if last - first > 1:
            distance = _distance(closed[first + 1 : last], closed[first], closed[last])
            farthest = first + 1 + int(distance.argmax())
            if distance.max() > tolerance:
                kept[farthest] = True
                todo += [(first, farthest), (farthest, last)]
    return ring[kept[:-1]]


def _distance(points: Points, a: Points, b: Points) -> Points:
    """Return the distances of points (n, 2) to the segment from a to b."""
    along = b - a
    square = float(along @ along)
    share = np.clip((points - a) @ along / square, 0, 1) if square else np.zeros(len(points))
    return np.hypot(*(points - a - share[:, None] * along).T)
