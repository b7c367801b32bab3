"""Outlines of regions: the pixels come back, the box is the region's, and there are few points."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fcam.contours import components
from fcam.errors import FcamError
from fcam.labels.outlines import outline
from polygons import filled


def iou(a: np.ndarray, b: np.ndarray) -> float:
    return (a & b).sum() / (a | b).sum()


def area(polygon: np.ndarray) -> float:
    x, y = polygon.T
    return abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2


def drawn(*rows: str) -> np.ndarray:
    return np.array([[c == "#" for c in row] for row in rows])


def blob(height: int, width: int, seed: int) -> np.ndarray:
    """The largest region of a smooth random map."""
    noise = np.random.default_rng(seed).standard_normal((12, 12)).astype(np.float32)
    smooth = cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC)
    found = components(smooth > np.quantile(smooth, 0.6))
    number = 1 + int(np.bincount(found.numbers.ravel())[1:].argmax())
    x0, y0, x1, y1 = found.boxes[number - 1]
    return found.numbers[y0 : y1 + 1, x0 : x1 + 1] == number


@settings(max_examples=300, deadline=None)
@given(mask=npst.arrays(np.bool_, st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_every_component_comes_back_exactly(mask: np.ndarray) -> None:
    found = components(mask)
    for number, (x0, y0, x1, y1) in enumerate(found.boxes.tolist(), 1):
        region = found.numbers[y0 : y1 + 1, x0 : x1 + 1] == number
        polygon = outline(region)
        np.testing.assert_array_equal(filled(polygon, region.shape), region)
        assert polygon.min(axis=0).tolist() == [0, 0]
        assert polygon.max(axis=0).tolist() == [x1 - x0 + 1, y1 - y0 + 1]
        assert len(polygon) >= 4
        assert area(polygon) >= 0.5
        assert not (polygon == np.roll(polygon, 1, axis=0)).all(axis=1).any(), "a point stands twice in a row"


def test_one_pixel() -> None:
    assert sorted(outline(drawn("#")).tolist()) == [[0, 0.5], [0.5, 0], [0.5, 1], [1, 0.5]]


def test_a_line_one_pixel_wide_has_its_corners_cut_and_nothing_between() -> None:
    polygon = outline(np.ones((1, 500), bool))
    assert len(polygon) == 6
    assert area(polygon) == 499.5


def test_pixels_that_touch_at_a_corner_are_one_ring_that_does_not_cross_itself() -> None:
    polygon = outline(drawn("##..", "##..", "..##", "..##"))
    assert len({tuple(point) for point in polygon.tolist()}) == len(polygon)
    assert area(polygon) == pytest.approx(8 - 6 / 8 + 2 / 8)  # six corners cut, a neck with two filled
    with pytest.raises(FcamError, match="got 2"):
        outline(drawn("#.#"))


@pytest.mark.parametrize("seed", range(6))
def test_large_regions_come_back_with_few_points(seed: int) -> None:
    region = blob(600, 800, seed)
    polygon = outline(region)
    assert iou(filled(polygon, region.shape), region) > 0.99
    assert area(polygon) == pytest.approx(int(region.sum()), rel=0.015)
    assert len(polygon) < 300
    assert polygon.max(axis=0).tolist() == list(region.shape[::-1])


@pytest.mark.parametrize("radius", [10, 15, 30, 100])
def test_small_regions_are_kept_closer(radius: int) -> None:
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    region = x**2 + y**2 <= radius**2
    polygon = outline(region)
    assert iou(filled(polygon, region.shape), region) > 0.98
    assert len(polygon) < 70


def test_a_photo_of_12_megapixels_takes_hundreds_of_points() -> None:
    region = blob(3000, 4000, 3)
    assert region.sum() > 1e6
    assert 50 < len(outline(region)) < 700


def test_holes_stay_empty_under_both_fill_rules() -> None:
    y, x = np.mgrid[:90, :130]
    region = np.ones((90, 130), bool)
    for cx, cy, radius in ((20, 20, 9), (70, 20, 9), (45, 60, 20), (110, 60, 3), (90, 20, 1)):
        region &= (x - cx) ** 2 + (y - cy) ** 2 > radius**2
    polygon = outline(region)
    assert iou(filled(polygon, region.shape), region) > 0.99
    # Holes run the other way round, so that they count as empty where the winding number decides.
    assert area(polygon) == pytest.approx(int(region.sum()), rel=0.015)


def test_an_island_in_a_hole_is_another_region() -> None:
    y, x = np.mgrid[:41, :41]
    radius = np.hypot(x - 20, y - 20)
    found = components((radius < 6) | ((radius > 12) & (radius < 20)))
    assert found.boxes.tolist() == [[1, 1, 39, 39], [15, 15, 25, 25]]
    ring = found.numbers == 1
    assert iou(filled(outline(ring[1:40, 1:40]), (39, 39)), ring[1:40, 1:40]) > 0.98


def test_nothing_is_a_sentence() -> None:
    with pytest.raises(FcamError, match="empty"):
        outline(np.zeros((3, 4), bool))
