"""Contours of one binary map, equal to OpenCV's in boxes, areas and order."""

from __future__ import annotations

import cv2
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fcam.contours import components, contours


def _opencv(foreground: np.ndarray) -> list[tuple[list[int], float]]:
    found = cv2.findContours(foreground.astype(np.uint8), cv2.RETR_TREE, cv2.CHAIN_APPROX_SIMPLE)[-2]
    rectangles = [cv2.boundingRect(contour) for contour in found]
    return [
        ([x, y, x + w - 1, y + h - 1], cv2.contourArea(contour))
        for (x, y, w, h), contour in zip(rectangles, found, strict=True)
    ]


def _ours(foreground: np.ndarray) -> list[tuple[list[int], float]]:
    found = contours(foreground)
    return list(zip(found.boxes.tolist(), found.areas.tolist(), strict=True))


@settings(max_examples=400, deadline=None)
@given(foreground=npst.arrays(np.bool_, st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_small_maps_equal_opencv(foreground: np.ndarray) -> None:
    assert _ours(foreground) == _opencv(foreground)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    density=st.sampled_from([0.1, 0.4, 0.5, 0.6, 0.7, 0.9]),
)
def test_noise_equals_opencv(seed: int, size: tuple[int, int], density: float) -> None:
    foreground = np.random.default_rng(seed).random(size) < density
    assert _ours(foreground) == _opencv(foreground)


def test_island_in_a_ring_in_a_ring() -> None:
    y, x = np.mgrid[:31, :31]
    radius = np.maximum(abs(y - 15), abs(x - 15))
    found = contours((radius // 3) % 2 == 0)
    # Foreground at radius 0-2, 6-8 and 12-14: three outer borders and the two holes between them.
    assert found.holes.tolist() == [False, True, False, True, False]
    assert found.areas.tolist() == [28.0**2, 24.0**2 - 2, 16.0**2, 12.0**2 - 2, 4.0**2]
    assert found.boxes[0].tolist() == [1, 1, 29, 29]
    assert found.boxes[4].tolist() == [13, 13, 17, 17]
    assert found.pixels.sum() == 31**2 - (31**2 - 29**2)


def test_nothing_and_everything() -> None:
    assert len(contours(np.zeros((4, 5), bool)).boxes) == 0
    full = contours(np.ones((4, 5), bool))
    assert full.boxes.tolist() == [[0, 0, 4, 3]]
    assert full.areas.tolist() == [12.0]
    assert full.pixels.tolist() == [20]


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    density=st.sampled_from([0.1, 0.4, 0.6, 0.9]),
)
def test_components_are_numbered_in_raster_order_and_have_boxes_of_their_own(
    seed: int, size: tuple[int, int], density: float
) -> None:
    foreground = np.random.default_rng(seed).random(size) < density
    found = components(foreground)
    numbers, first = np.unique(found.numbers, return_index=True)
    assert (first[numbers > 0][1:] > first[numbers > 0][:-1]).all()
    count, _, stats, _ = cv2.connectedComponentsWithStats(foreground.astype(np.uint8), connectivity=8)
    assert count == len(found.boxes) + 1
    pairs = {(*stats[label, :4].tolist(), int(stats[label, cv2.CC_STAT_AREA])) for label in range(1, count)}
    ours = {
        (x0, y0, x1 - x0 + 1, y1 - y0 + 1, int((found.numbers == i).sum()))
        for i, (x0, y0, x1, y1) in enumerate(found.boxes.tolist(), 1)
    }
    assert ours == pairs
    outer = contours(foreground)
    assert sorted(map(tuple, outer.boxes[~outer.holes].tolist())) == sorted(map(tuple, found.boxes.tolist()))
    assert len({tuple(box) for box in found.boxes.tolist()}) == len(found.boxes)
