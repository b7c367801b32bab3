"""Boxes from maps, overlap and scaling."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fcam.boxes import box_iou, from_map, quantize, scale_boxes
from fcam.errors import FcamError

sys.path.insert(0, str(Path(__file__).parent / "metrics"))
from opencv_oracle import as_scores, contours_at, random_maps


def test_scaling_truncates_each_axis_by_itself() -> None:
    assert scale_boxes(torch.tensor([[1, 2, 4, 3]]), (10, 20), (35, 10)).tolist() == [[3, 1, 14, 1]]
    assert scale_boxes(torch.tensor([[176, 136, 459, 291]]), (560, 419), (224, 224)).tolist() == [
        [70, 72, 183, 155]
    ]
    assert scale_boxes(np.array([[1.9, 2.9, 4.9, 3.9]]), (10, 20), (35, 10)).tolist() == [[6, 1, 17, 1]]
    assert scale_boxes(torch.zeros(0, 4, dtype=torch.int64), (5, 5), (7, 7)).shape == (0, 4)
    with pytest.raises(FcamError, match="positive"):
        scale_boxes(torch.tensor([[0, 0, 1, 1]]), (0, 5), (7, 7))


def test_scaling_equals_the_official_lists(shared: Path) -> None:
    with np.load(shared / "golden" / "eval.npz") as golden:
        sizes, original = golden["image_sizes_wh"], golden["gt_boxes_original"]
        for size, boxes, expected in zip(sizes.tolist(), original, golden["gt_boxes_224"], strict=True):
            assert scale_boxes(torch.from_numpy(boxes), tuple(size), (224, 224)).tolist() == expected.tolist()


def test_overlap_counts_both_edges() -> None:
    assert box_iou(torch.tensor([[1, 2, 5, 6]]), torch.tensor([[3, 1, 4, 5]])).item() == 8 / 27
    one_past = box_iou(torch.tensor([[60, 50, 119, 99]]), torch.tensor([[60, 50, 120, 100]])).item()
    assert one_past == pytest.approx(0.9643, abs=5e-5)
    assert box_iou(np.array([[1, 2, 5, 6]]), np.array([[3, 1, 4, 5]])).item() == 8 / 27
    far = box_iou(torch.tensor([[0, 0, 1, 1], [5, 5, 5, 5]]), torch.tensor([[5, 5, 5, 5]]))
    assert far.tolist() == [[0.0], [1.0]]
    assert box_iou(torch.tensor([[5, 5, 4, 4]]), torch.tensor([[5, 5, 4, 4]])).tolist() == [[0.0]]


def test_values_of_the_reference() -> None:
    rectangle = torch.zeros(224, 224)
    rectangle[50:100, 60:120] = 1
    assert from_map(rectangle, 0.5).tolist() == [[60, 50, 120, 100]]
    assert from_map(rectangle, 0.5, convention="exact").tolist() == [[60, 50, 119, 99]]
    assert from_map(torch.zeros(224, 224), 0.0).tolist() == [[0, 0, 0, 0]]
    assert from_map(torch.zeros(224, 224), 0.0, convention="exact").shape == (0, 4)
    assert from_map(torch.ones(224, 224), 0.0).tolist() == [[0, 0, 223, 223]]
    assert from_map(torch.full((224, 224), 0.003), 0.0).tolist() == [[0, 0, 0, 0]]


def test_five_by_four_map_of_the_reference() -> None:
    rows = [[0, 0, 0, 0, 0], [0, 0.4, 0.4, 0.4, 0.6], [0, 0.4, 1, 0.8, 0.6], [0, 0.4, 0.4, 0.4, 0.6]]
    found = [from_map(torch.tensor(rows), tau)[0].tolist() for tau in (0, 0.2, 0.4, 0.6, 0.8)]
    assert found == [[1, 1, 4, 3], [1, 1, 4, 3], [2, 1, 4, 3], [2, 2, 4, 3], [2, 2, 3, 3]]


@settings(max_examples=150, deadline=None)
@given(levels=random_maps(), tau=st.sampled_from([0.0, 0.1, 0.35, 0.5, 0.9, 0.999]))
def test_all_contours_largest_first(levels: np.ndarray, tau: float) -> None:
    expected = contours_at(levels, int(tau * int(levels.max())))
    expected.sort(key=lambda item: -item[1])  # stable: ties keep OpenCV's order
    boxes = from_map(as_scores(levels), tau, rule="all").tolist()
    assert boxes == ([list(box) for box, _ in expected] or [[0, 0, 0, 0]])
    assert from_map(as_scores(levels), tau).tolist() == boxes[:1]
    large = [list(box) for box, area in expected if area >= 2]
    assert from_map(as_scores(levels), tau, rule="all", min_area=2).tolist() == (
        large if expected else [[0, 0, 0, 0]]
    )


def test_exact_convention_counts_pixels() -> None:
    line_and_square = torch.zeros(8, 12)
    line_and_square[1, :] = 1  # 12 pixels, no polygon area
    line_and_square[4:7, 2:5] = 1  # 9 pixels, polygon area 4
    assert from_map(line_and_square, 0.0).tolist() == [[2, 4, 5, 7]]
    assert from_map(line_and_square, 0.0, convention="exact").tolist() == [[0, 1, 11, 1]]
    assert from_map(line_and_square, 0.0, "all", "exact").tolist() == [[0, 1, 11, 1], [2, 4, 4, 6]]
    assert from_map(line_and_square, 0.0, "all", "exact", min_area=10).tolist() == [[0, 1, 11, 1]]
    line_and_square[5, 3] = 0
    assert len(from_map(line_and_square, 0.0, "all")) == 3  # the hole is a contour
    assert len(from_map(line_and_square, 0.0, "all", "exact")) == 2


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_types_and_arrays(kind: torch.dtype) -> None:
    map = torch.zeros(1, 1, dtype=kind)
    map[0, 0] = 1
    assert from_map(map, 0.5).tolist() == [[0, 0, 0, 0]]
    assert from_map(map, 0.5).dtype == torch.int64
    if kind != torch.bfloat16:
        assert from_map(map.numpy(), 0.5).tolist() == [[0, 0, 0, 0]]


def test_product_is_not_rounded_up_in_half_precision() -> None:
    values = np.arange(0, 0x3C01, dtype=np.uint16).view(np.float16)  # every half-precision number in [0, 1]
    expected = np.floor(values.astype(np.float64) * 255).astype(np.uint8)
    assert (expected != np.floor(values * np.float16(255)).astype(np.uint8)).any()
    np.testing.assert_array_equal(quantize(values[None, None])[0, 0], expected)


def test_hundreds_of_boxes_on_a_map_of_photo_size() -> None:
    y, x = np.mgrid[:3000, :4000].astype(np.float32)
    photo = (0.5 + 0.25 * np.sin(x / 40) + 0.25 * np.cos(y / 30)).clip(0, 1)
    assert len(from_map(photo, 0.7, "all")) > 100


@pytest.mark.parametrize(
    ("map", "options", "message"),
    [
        (torch.zeros(2, 3, 3), {}, r"got shape \(2, 3, 3\)"),
        (torch.zeros(0, 3), {}, r"\(1, 0, 3\)"),
        (torch.zeros(3, 3, dtype=torch.uint8), {}, "uint8"),
        (torch.full((3, 3), float("nan")), {}, "nan"),
        (torch.full((3, 3), 1.5), {}, "1.5"),
        (torch.full((3, 3), -0.5), {}, "-0.5"),
        (torch.zeros(3, 3), {"threshold": 1.0}, "threshold"),
        (torch.zeros(3, 3), {"threshold": float("nan")}, "threshold"),
        (torch.zeros(3, 3), {"threshold": None}, "threshold must lie in .* got None"),
        (torch.zeros(3, 3), {"threshold": "half"}, "threshold must lie in .* got 'half'"),
        (torch.zeros(3, 3), {"threshold": torch.zeros(2)}, "threshold must lie in .* got tensor"),
        (torch.zeros(3, 3), {"rule": "some"}, "rule must be one of largest, all"),
        (torch.zeros(3, 3), {"convention": "mine"}, "convention must be one of reference, exact"),
    ],
)
def test_mistakes_are_named(map: torch.Tensor, options: dict, message: str) -> None:
    with pytest.raises(FcamError, match=message):
        from_map(map, **{"threshold": 0.5, **options})
