from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fcam.data import EvalTransform, TrainTransform
from fcam.data.transforms import Geometry, identity, nearest_indices
from fcam.errors import FcamError

RNG = np.random.default_rng(0)


def whole(width: int, height: int) -> Geometry:
    return Geometry((width, height), (0, 0, width, height))


@given(st.integers(1, 2000), st.integers(1, 600))
def test_nearest_indices_are_opencvs(source: int, target: int) -> None:
    line = np.arange(source, dtype=np.float32)[None]
    expected = cv2.resize(line, (target, 1), interpolation=cv2.INTER_NEAREST)[0].astype(int)
    assert (nearest_indices(source, target) == expected).all()


def test_masks_are_resized_as_opencv_does() -> None:
    mask = RNG.random((301, 500)) > 0.5
    moved = whole(224, 224).mask(mask)
    expected = cv2.resize(mask.astype(np.uint8), (224, 224), interpolation=cv2.INTER_NEAREST)
    assert (moved == expected.astype(bool)).all()


def test_boxes_are_scaled_and_truncated() -> None:
    boxes = np.array([[176, 136, 459, 291]], dtype=float)
    assert whole(224, 224).boxes(boxes, (560, 419)).tolist() == [[70, 72, 183, 155]]
    assert whole(35, 10).boxes(np.array([[1, 2, 4, 3.0]]), (10, 20)).tolist() == [[3, 1, 14, 1]]
    assert whole(9, 9).boxes(np.zeros((0, 4)), (10, 20)).shape == (0, 4)


def test_boxes_match_the_official_evaluator(shared) -> None:
    golden = np.load(shared / "golden" / "eval.npz")
    for size, n, original, scaled in zip(
        golden["image_sizes_wh"],
        golden["n_gt_boxes"],
        golden["gt_boxes_original"],
        golden["gt_boxes_224"],
        strict=True,
    ):
        moved = whole(224, 224).boxes(original[:n], (int(size[0]), int(size[1])))
        assert (moved == scaled[:n]).all()


def test_eval_geometry_is_pillows_bilinear() -> None:
    image = Image.fromarray(RNG.integers(0, 255, (50, 90, 3), dtype=np.uint8))
    moved = EvalTransform(32).geometry(image.size, RNG).image(image)
    assert moved.dtype == torch.uint8
    expected = np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert (moved.numpy() == expected).all()


def test_crop_and_flip_move_image_mask_and_box_together() -> None:
    pixels = np.zeros((60, 80, 3), dtype=np.uint8)
    pixels[20:32, 40:52] = 255
    mask = pixels[..., 0] > 0
    for flip in (False, True):
        geometry = Geometry((80, 60), (25, 10, 40, 30), flip)
        image = geometry.image(Image.fromarray(pixels))
        assert tuple(image.shape) == (3, 30, 40)
        assert (geometry.mask(mask) == (image[0].numpy() > 0)).all()
        ((x0, y0, x1, y1),) = geometry.boxes(np.array([[40, 20, 52, 32.0]]), (80, 60)).tolist()
        rows, columns = np.nonzero(image[0].numpy())
        assert (x0, y0, x1, y1) == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)


def test_boxes_are_clipped_to_the_crop_or_left_out() -> None:
    geometry = Geometry((100, 100), (40, 40, 20, 20))
    boxes = np.array([[0, 0, 50, 50], [0, 0, 40, 99], [60, 0, 99, 99], [45, 45, 90, 90]], dtype=float)
    assert geometry.boxes(boxes, (100, 100)).tolist() == [[0, 0, 10, 10], [5, 5, 20, 20]]


def test_train_geometry_uses_every_offset_and_both_sides() -> None:
    transform = TrainTransform(resize=8, crop=6)
    rng = np.random.default_rng(0)
    drawn = {transform.geometry((99, 50), rng) for _ in range(400)}
    assert {g.size for g in drawn} == {(8, 8)}
    assert {(g.crop[0], g.crop[1], g.flip) for g in drawn} == {
        (x, y, flip) for x in range(3) for y in range(3) for flip in (False, True)
    }
    unflipped = TrainTransform(8, 6, flip=False)
    assert not any(unflipped.geometry((9, 9), rng).flip for _ in range(50))


def test_identity_leaves_everything() -> None:
    pixels = RNG.integers(0, 255, (5, 7, 3), dtype=np.uint8)
    assert (identity((7, 5)).image(Image.fromarray(pixels)).numpy() == pixels.transpose(2, 0, 1)).all()
    assert identity((7, 5)).boxes(np.array([[1, 2, 7, 5.0]]), (7, 5)).tolist() == [[1, 2, 7, 5]]


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(FcamError, match="crop of 300"):
        TrainTransform(256, 300)
    with pytest.raises(FcamError, match="0 pixels"):
        EvalTransform(0)
