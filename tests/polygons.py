"""Filling polygons without a label library."""

from __future__ import annotations

import cv2
import numpy as np


def filled(polygon: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Pixels of (h, w) whose centre is inside (n, 2) points, by the even-odd rule.

    On a grid of eighths, since OpenCV paints the pixels under the line as well.
    """
    large = np.zeros((shape[0] * 8 + 1, shape[1] * 8 + 1), np.uint8)
    cv2.fillPoly(large, [np.round(polygon * 8).astype(np.int32)], 1)
    return large[4::8, 4::8][: shape[0], : shape[1]] > 0
