"""The boxes of all contours from the pixels that change one: finer values, the exact convention, wrong values."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opencv_oracle import as_scores, iou, random_maps

from fcam.errors import FcamError
from fcam.metrics import MaxBoxAccV2, best_iou, best_iou_of_all
from fcam.metrics.boxtree import FINE, fill_holes
from fcam.metrics.ring import rules
from fcam.metrics.sweep import best_iou_of_largest, sweep_all_contours, sweep_largest_contour


def _truth(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    corners = np.sort(rng.integers(0, [width, height], (rng.integers(1, 4), 2, 2)), axis=1)
    return corners.reshape(-1, 4)


@settings(max_examples=200, deadline=None)
@given(
    levels=random_maps(),
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from([np.float32, np.float64]),
    convention=st.sampled_from(["reference", "exact"]),
)
def test_the_order_within_a_level_does_not_matter(levels, seed: int, kind: type, convention) -> None:
    # Added from bright to dark by their fractions, the pixels of one level begin, join and widen differently.
    rng = np.random.default_rng(seed)
    fractions = rng.choice([rng.uniform(0.1, 0.9, levels.shape), np.full(levels.shape, 0.5)])
    maps = np.minimum((levels + fractions) / 255, 1).astype(kind)[None]
    truth = _truth(rng, *levels.shape)
    offsets = np.array([0, len(truth)])
    overlap, number, top = sweep_all_contours(maps, truth, offsets, convention)
    expected = best_iou_of_all(levels[None], truth, offsets, convention)
    np.testing.assert_array_equal(overlap, expected[0])
    np.testing.assert_array_equal(number, expected[1])
    assert top.tolist() == [levels.max()]
    overlap, top = sweep_largest_contour(maps, truth, offsets, convention)
    np.testing.assert_array_equal(overlap, best_iou_of_largest(levels[None], truth, offsets, convention))
    assert top.tolist() == [levels.max()]


@settings(max_examples=100, deadline=None)
@given(levels=random_maps(), seed=st.integers(0, 2**32 - 1))
def test_exact_convention_equals_labelled_components(levels: np.ndarray, seed: int) -> None:
    truth = _truth(np.random.default_rng(seed), *levels.shape)
    overlap, number = best_iou_of_all(levels[None], truth, np.array([0, len(truth)]), "exact")
    for t in np.unique(np.concatenate([[0], levels.reshape(-1)])):
        _, _, stats, _ = cv2.connectedComponentsWithStats((levels > t).astype(np.uint8), connectivity=8)
        boxes = [(x, y, x + w - 1, y + h - 1) for x, y, w, h, _ in stats[1:].tolist()]
        assert number[0, t] == len(boxes)
        assert overlap[0, t] == max((iou(a, b) for a in boxes for b in truth.tolist()), default=0.0)


def test_a_pixel_in_the_middle_of_a_slope_does_nothing() -> None:
    # Bits of a code: from north-west clockwise, the last is west.
    eight, four = rules(4, hole=False), rules(4, hole=True)
    assert eight.active[0b00001111] == eight.active[0b11111111] == 0
    assert eight.active[0] == 1  # begins
    assert eight.active[0b00010001] == 1  # joins across
    assert eight.active[0b00011100] == 1  # widens to the left
    assert (eight.step[0], eight.others[0b00010001]) == (0, 0b00010000)
    # For holes a code is the other way round: what is not brighter came before.
    assert four.active[255] == 1
    assert four.active[255 - 0b00001010] == 1  # north and east, without the corner between them
    assert four.active[255 - 0b00001110] == 0


@pytest.mark.parametrize("value", [float("nan"), -1e-9, 1.0000001, float("inf")])
@pytest.mark.parametrize("contours", ["largest", "all"])
def test_values_outside_are_named(value: float, contours) -> None:
    maps = np.zeros((3, 5, 6))
    maps[1, 2, 3] = value
    truth = [np.array([[0, 0, 2, 2]])] * 3
    with pytest.raises(FcamError, match=f"map 1 of the batch holds the value {value}"):
        best_iou(maps, truth, np.array([0.0]), contours)  # pyright: ignore[reportArgumentType]


def test_metrics_take_single_and_double_precision_alike() -> None:
    levels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    truth = [np.array([[0, 4, 15, 9]])]
    wide, single = MaxBoxAccV2(), MaxBoxAccV2()
    wide.update(as_scores(levels), truth)  # pyright: ignore[reportArgumentType]
    single.update(as_scores(levels).astype(np.float32), truth)  # pyright: ignore[reportArgumentType]
    assert wide.total.equal(single.total)


def _filled(levels: np.ndarray) -> np.ndarray:
    """Lowest level over which each pixel drains, by lowering all of them until nothing changes."""
    filled = np.full_like(levels, 255)
    while True:
        around = np.pad(filled, 1)
        lowest = np.minimum.reduce([around[:-2, 1:-1], around[2:, 1:-1], around[1:-1, :-2], around[1:-1, 2:]])
        lower = np.maximum(levels, lowest)
        if (lower == filled).all():
            return filled
        filled = lower


# The pixel of 5 opens two holes to the outside at once.
TWO_HOLES = np.array(
    [[0, 0, 0, 0, 0, 0, 0], [0, 9, 9, 0, 9, 9, 0], [0, 9, 1, 5, 2, 9, 0], [0, 9, 9, 9, 9, 9, 0], [0] * 7],
    np.uint8,
)


@settings(max_examples=200, deadline=None)
@given(levels=random_maps(), seed=st.integers(0, 2**32 - 1))
@example(levels=TWO_HOLES, seed=0)
def test_holes_are_filled_up_to_where_they_drain(levels: np.ndarray, seed: int) -> None:
    fractions = np.random.default_rng(seed).uniform(0.1, 0.9, levels.shape)
    shift = (levels.shape[1] + 1).bit_length()
    for maps, scale in ((levels, 256.0), (np.minimum((levels + fractions) / 255, 1), FINE)):
        found, top = np.zeros((1, *levels.shape), np.uint8), np.zeros(1, np.int32)
        fill_holes(maps[None], scale, shift, rules(shift, hole=True), found, top)
        np.testing.assert_array_equal(found[0], _filled(levels))
