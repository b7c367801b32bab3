"""The slow, obvious evaluation: one OpenCV contour search per threshold. Test maps of every awkward kind."""

from __future__ import annotations

import cv2
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

KINDS = ("noise", "coarse", "plateaus", "rings", "diagonals", "lines", "dots", "border", "constant", "smooth")


def contours_at(levels: np.ndarray, threshold: int) -> list[tuple[tuple[int, int, int, int], float]]:
    """Boxes (reference convention) and areas of all contours of `levels > threshold`, in OpenCV's order."""
    height, width = levels.shape
    binary = (levels > threshold).astype(np.uint8)
    found = cv2.findContours(binary, cv2.RETR_TREE, cv2.CHAIN_APPROX_SIMPLE)[-2]
    out = []
    for contour in found:
        x, y, w, h = cv2.boundingRect(contour)
        out.append(((x, y, min(x + w, width - 1), min(y + h, height - 1)), cv2.contourArea(contour)))
    return out


def largest_at(levels: np.ndarray, threshold: int) -> tuple[int, int, int, int]:
    found = contours_at(levels, threshold)
    return max(found, key=lambda item: item[1])[0] if found else (0, 0, 0, 0)


def iou(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    w = min(a[2], b[2]) - max(a[0], b[0]) + 1
    h = min(a[3], b[3]) - max(a[1], b[1]) + 1
    intersection = max(w, 0) * max(h, 0)
    areas = [(box[2] - box[0] + 1) * (box[3] - box[1] + 1) for box in (a, b)]
    return intersection / (sum(areas) - intersection)


def best_iou_at(levels: np.ndarray, threshold: int, truth: list[tuple[int, ...]]) -> tuple[float, int]:
    boxes = [box for box, _ in contours_at(levels, threshold)] or [(0, 0, 0, 0)]
    return max(iou(box, true) for box in boxes for true in truth), len(boxes)


def make_map(kind: str, height: int, width: int, seed: int) -> np.ndarray:
    """A uint8 map (H, W) of the given kind."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    levels = rng.integers(0, 256, (height, width))
    if kind == "coarse":
        levels = rng.choice([0, 1, 100, 254, 255], (height, width))
    elif kind == "plateaus":
        block = rng.integers(1, 5)
        levels = np.kron(rng.integers(0, 8, (height, width)) * 30, np.ones((block, block), int))[
            :height, :width
        ]
    elif kind == "rings":
        cy, cx, period = rng.uniform(0, height), rng.uniform(0, width), rng.uniform(1, 4)
        levels = 127 + 120 * np.cos(np.hypot(y - cy, x - cx) * period) + rng.integers(0, 8, (height, width))
    elif kind == "diagonals":
        levels = np.where((x + rng.choice([-1, 1]) * y) % rng.integers(2, 5) == 0, levels, levels // 8)
    elif kind == "lines":
        levels = np.zeros((height, width), int)
        for _ in range(rng.integers(1, 6)):
            value = rng.integers(1, 256)
            if rng.random() < 0.5:
                levels[rng.integers(height), :] = value
            else:
                levels[rng.integers(height) :, rng.integers(width)] = value
    elif kind == "dots":
        levels = np.where(rng.random((height, width)) < 0.1, levels, 0)
    elif kind == "border":
        levels = np.where(
            (x == 0) | (y == 0) | (x == width - 1) | (y == height - 1), levels | 64, levels // 4
        )
    elif kind == "constant":
        levels = np.full((height, width), rng.choice([0, 1, 17, 254, 255]))
    elif kind == "smooth":
        fy, fx, phase = rng.uniform(0.1, 1.5, 3)
        levels = 127 + 60 * np.sin(y * fy + phase) + 60 * np.cos(x * fx - phase)
    return np.clip(levels, 0, 255).astype(np.uint8)


def random_maps() -> st.SearchStrategy[np.ndarray]:
    """Tiny arrays that shrink well, and structured maps up to 24x24."""
    tiny = npst.arrays(
        np.uint8, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.sampled_from([0, 1, 2, 3, 255])
    )
    made = st.builds(
        make_map, st.sampled_from(KINDS), st.integers(1, 24), st.integers(1, 24), st.integers(0, 2**32 - 1)
    )
    return st.one_of(tiny, made)


def as_scores(levels: np.ndarray) -> np.ndarray:
    """A float64 map that quantises to `levels`."""
    return np.minimum((levels + 0.5) / 255, 1.0)
