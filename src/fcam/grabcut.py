"""A map cut out of its photo by GrabCut: what object and background look like decides about the pixels between them."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fcam import threads
from fcam.boxes import cut_level, quantize
from fcam.errors import FcamError

SURE_OBJECT = 2 / 3
"""Share of the object's pixels, those with the highest values, that stay object whatever they look like."""
UNSURE_BACKGROUND = 0.5
"""Most of the background's pixels, as a share of them, that may become object; no more either than the object has."""
ITERATIONS = 1
"""Times that colours are learned and the border is drawn; two and three gained nothing on `val`."""
FEWEST = 25
"""Least pixels of either side; its five colours cannot be told from fewer."""


def has_opencv() -> bool:
    """Whether OpenCV is installed."""
    return importlib.util.find_spec("cv2") is not None


def load_opencv() -> ModuleType:
    """OpenCV, which has the graph cut; raises `FcamError` where it is not installed."""
    try:
        import cv2
    except ImportError as error:
        raise FcamError(
            'GrabCut needs OpenCV, which is not installed; pip install "fcam[grabcut]"'
        ) from error
    return cv2


def grabcut(images: Tensor, maps: Tensor, threshold: float) -> Tensor:
    """Cut each image's object out anew, so that its border lies where colours change, starting from maps cut at `threshold`.

    Each side gets five colours (a Gaussian mixture) and each unsure pixel goes where it fits better, at a price for borders
    between like neighbours; a graph cut finds the border that costs least. The surest two thirds of the object cannot change
    sides, nor can the surest of the background: all but as many pixels as the object has, half of them where it has more.
    Nothing else is learned, and it is no part of the paper: Rother, Kolmogorov and Blake, SIGGRAPH 2004, as OpenCV has it,
    with the map in place of the user's rectangle.

    Args:
        images: uint8 (B, 3, H, W), RGB, as the network saw them.
        maps: (B, H, W) in [0, 1].
        threshold: share of a map's maximum, [0, 1), at which it is cut, here and later.

    Returns:
        maps (B, H, W) float32 on their device: their maximum in the object, so that this threshold and any higher one cut
        along its border, and in the background what they were, kept below the threshold. A map with fewer than 25 pixels of
        object or of background comes back as it is. The same photo always gives the same map
        (OpenCV's random numbers begin anew with each).

    Raises:
        FcamError: maps of another shape than the images, images that are not uint8, or no OpenCV.
    """
    cv2 = load_opencv()
    if maps.shape != (len(images), *images.shape[-2:]) or images.dtype != torch.uint8:
        raise FcamError(
            f"maps have shape {tuple(maps.shape)} and images {tuple(images.shape)} of {images.dtype}; "
            "pass (B, H, W) and uint8 (B, 3, H, W)"
        )
    photos = images.permute(0, 2, 3, 1).contiguous().cpu().numpy()
    before = maps.float().cpu()
    pairs = zip(photos, before.numpy(), strict=True)
    cuts = threads.run(lambda pair: _cut_out(cv2, *pair, threshold), pairs)
    return torch.from_numpy(np.stack(cuts)).to(maps.device) if cuts else before.to(maps.device)


def _cut_out(
    cv2: ModuleType, photo: NDArray[np.uint8], map: NDArray[np.float32], threshold: float
) -> NDArray[np.float32]:
    """One photo (H, W, 3) and its map (H, W)."""
    if not np.isfinite(map).all():
        return map
    highest, levels = map.max(), quantize(map[None])[0]
    level = cut_level(levels, threshold)
    object = levels > level
    if min(object.sum(), (~object).sum()) < FEWEST:
        return map
    sides = np.where(object, cv2.GC_PR_FGD, cv2.GC_PR_BGD).astype(np.uint8)
    sides[object & (map >= np.quantile(map[object], 1 - SURE_OBJECT))] = cv2.GC_FGD
    unsure = min(UNSURE_BACKGROUND, object.sum() / (~object).sum())
    sides[~object & (map <= np.quantile(map[~object], 1 - unsure))] = cv2.GC_BGD
    cv2.setRNGSeed(0)  # its colours begin with k-means++; each thread has random numbers of its own
    colours = np.zeros((2, 1, 65))
    cv2.grabCut(photo, sides, None, *colours, ITERATIONS, cv2.GC_INIT_WITH_MASK)
    object = np.isin(sides, (cv2.GC_FGD, cv2.GC_PR_FGD))
    # As far below the cut as the maximum is above it, so that the border stays between its pixels in an enlarged map.
    below = max(2 * level / 255 - highest, 0)
    return np.where(object, highest, np.minimum(map, below)).astype(np.float32)
