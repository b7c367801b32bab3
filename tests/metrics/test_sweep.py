"""The sweep against OpenCV at every threshold, and against the stored values of the official evaluator."""

from __future__ import annotations

from pathlib import Path

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opencv_oracle import best_iou_at, contours_at, largest_at, make_map, random_maps

from fcam.boxes import quantize
from fcam.metrics import best_iou_of_all, best_iou_of_largest, largest_boxes
from fcam.metrics.sweep import in_threads

EXTRACT = Path(__file__).parents[1] / "data" / "eval_extract.npz"
THRESHOLDS = np.arange(0, 1, 0.001)


def _truth(golden, boxes_key: str) -> tuple[np.ndarray, np.ndarray]:
    counts = golden["n_gt_boxes"].astype(np.int64)
    boxes = np.concatenate([b[:n] for b, n in zip(golden[boxes_key], counts, strict=True)]).astype(np.int64)
    return boxes, np.concatenate([[0], counts.cumsum()])


def _check_against_evaluator(levels: np.ndarray, golden, boxes_key: str) -> None:
    boxes, offsets = _truth(golden, boxes_key)
    index = (THRESHOLDS * levels.reshape(len(levels), -1).max(1)[:, None]).astype(int)
    at = (np.arange(len(levels))[:, None], index)
    iou, count = best_iou_of_all(levels, boxes, offsets)
    np.testing.assert_array_equal(largest_boxes(levels)[at], golden["pred_boxes_single"])
    np.testing.assert_array_equal(best_iou_of_largest(levels, boxes, offsets)[at], golden["best_iou_single"])
    np.testing.assert_array_equal(iou[at], golden["best_iou_multi"])
    np.testing.assert_array_equal(count[at], golden["n_boxes_multi"])


def test_four_maps_equal_the_official_evaluator() -> None:
    with np.load(EXTRACT) as golden:
        _check_against_evaluator(golden["levels"], golden, "gt_boxes")


def test_all_maps_equal_the_official_evaluator(shared: Path) -> None:
    with np.load(shared / "golden" / "eval.npz") as golden:
        np.testing.assert_array_equal(golden["thresholds"], THRESHOLDS)
        _check_against_evaluator(quantize(golden["score_maps"]), golden, "gt_boxes_224")


@settings(max_examples=300, deadline=None)
@given(levels=random_maps(), seed=st.integers(0, 2**32 - 1))
def test_every_threshold_equals_opencv(levels: np.ndarray, seed: int) -> None:
    check_equals_opencv(levels, np.random.default_rng(seed))


def check_equals_opencv(levels: np.ndarray, rng: np.random.Generator) -> None:
    height, width = levels.shape
    corners = rng.integers(0, [width, height, width, height], (rng.integers(1, 4), 4))
    truth = np.concatenate(
        [np.minimum(corners[:, :2], corners[:, 2:]), np.maximum(corners[:, :2], corners[:, 2:])], 1
    )
    boxes = largest_boxes(levels[None])[0]
    iou, count = best_iou_of_all(levels[None], truth.astype(np.int64), np.array([0, len(truth)]))
    # Between two values that occur the foreground stays the same, so these thresholds stand for all 256.
    values = np.unique(np.concatenate([[0], levels.reshape(-1)])).tolist()
    for low, high in zip(values, [*values[1:], 256], strict=True):
        assert (boxes[low:high] == largest_at(levels, low)).all()
        expected = best_iou_at(levels, low, truth.tolist())
        assert set(zip(iou[0, low:high].tolist(), count[0, low:high].tolist(), strict=True)) == {expected}


@settings(max_examples=100, deadline=None)
@given(levels=random_maps())
def test_exact_convention_ranks_components_by_pixels(levels: np.ndarray) -> None:
    import cv2

    boxes = largest_boxes(levels[None], "exact")[0]
    for t in np.unique(np.concatenate([[0], levels.reshape(-1)])):
        _, _, stats, _ = cv2.connectedComponentsWithStats((levels > t).astype(np.uint8), connectivity=8)
        if len(stats) == 1:
            assert boxes[t].tolist() == [0, 0, -1, -1]
            continue
        best = stats[1:][stats[1:, cv2.CC_STAT_AREA] == stats[1:, cv2.CC_STAT_AREA].max()]
        candidates = [[x, y, x + w - 1, y + h - 1] for x, y, w, h, _ in best.tolist()]
        assert boxes[t].tolist() in candidates
        assert boxes[t, 1] == min(box[1] for box in candidates)  # of equals the topmost


def test_exact_convention_has_no_holes_and_no_box_without_foreground() -> None:
    ring = np.zeros((1, 7, 7), np.uint8)
    ring[0, 1:6, 1:6] = 200
    ring[0, 2:5, 2:5] = 0
    truth, offsets = np.array([[1, 1, 5, 5]]), np.array([0, 1])
    iou, count = best_iou_of_all(ring, truth, offsets, "exact")
    assert set(count[0, :200]) == {1}
    assert set(iou[0, :200]) == {1.0}
    assert set(count[0, 200:]) == {0}
    assert set(iou[0, 200:]) == {0.0}
    assert len(contours_at(ring[0], 0)) == 2


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1), (37, 254), (40, 255), (3, 1022)])
def test_sizes_around_the_row_pitch(size: tuple[int, int]) -> None:
    check_equals_opencv(make_map("coarse", *size, seed=1), np.random.default_rng(0))


def test_threads_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = np.stack([make_map(kind, 20, 30, 5) for kind in ("noise", "rings", "smooth", "dots", "lines")])
    together = largest_boxes(levels)
    for threads in (1, 3):
        monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", threads)
        np.testing.assert_array_equal(largest_boxes(levels), together)
    for i, one in enumerate(levels):
        np.testing.assert_array_equal(largest_boxes(one[None])[0], together[i])


def test_threads_cover_everything_once_and_pass_errors_on() -> None:
    seen: list[int] = []
    in_threads(lambda a, b: seen.extend(range(a, b)), 7)
    assert sorted(seen) == list(range(7))
    in_threads(lambda a, b: seen.append(-1), 0)
    assert -1 not in seen
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda a, b: 1 // 0, 4)
