"""Boxes from maps, the overlap of boxes and their scaling, in the conventions of the WSOL benchmark.

Boxes are x0, y0, x1, y1 in pixels and inclusive: a box of one pixel has x0 = x1. Two conventions exist for
the box of a component that ends at pixel x1: "reference" (Choe et al., CVPR 2020, their code) puts the right
and lower edge one past it, except at the border of the map, and ranks components by contour area; "exact"
ends at the pixel itself and ranks by pixel count.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from fcam.contours import contours
from fcam.errors import FcamError, shown
from fcam.kernels import kernel

Convention: TypeAlias = Literal["reference", "exact"]
Rule: TypeAlias = Literal["largest", "all"]


def from_map(
    map: Tensor | np.ndarray,
    threshold: float,
    rule: Rule = "largest",
    convention: Convention = "reference",
    min_area: float = 0.0,
) -> Tensor:
    """Return the boxes of a map's foreground, `floor(255 map) > int(threshold * max(floor(255 map)))`.

    Args:
        map: (H, W) float in [0, 1], any size from 1x1; tensor on any device or array.
        threshold: tau in [0, 1), relative to the map's own maximum, as in MaxBoxAcc.
        rule: "largest", the contour with the largest area; "all", every contour, largest first.
        convention: "reference" as the benchmark: area is that of the polygon through the border's pixel
            centres (a line one pixel wide has none), holes give boxes too under "all", right and lower edges
            lie one past the last pixel except at the border, and a map without foreground gives the box 0, 0,
            0, 0. "exact": 8-connected components, ranked by pixel count, edges at the first and last pixel; a
            map without foreground gives no box.
        min_area: contours with a smaller area (in the convention's own measure, square pixels) are left out.

    Returns:
        (n, 4) int64 on the CPU, x0 y0 x1 y1. Of equal areas the first in OpenCV's list ("reference") or the
        topmost ("exact").

    Raises:
        FcamError: the map is not (H, W) float in [0, 1], or an argument is outside its range.
    """
    check_choice("rule", rule, get_args(Rule))
    check_choice("convention", convention, get_args(Convention))
    threshold = as_share(threshold)
    if map.ndim != 2:
        raise FcamError(
            f"from_map takes one map (H, W), got shape {tuple(map.shape)}; pass the maps one by one"
        )
    levels = quantize(map[None])[0]
    height, width = levels.shape
    found = contours(levels > cut_level(levels, threshold))
    boxes, measure = found.boxes.astype(np.int64), found.areas
    if convention == "exact":
        # Listed latest start first; reversed, a stable sort resolves ties in favour of the topmost.
        boxes, measure = boxes[~found.holes][::-1], found.pixels[~found.holes][::-1]
    elif len(boxes) == 0:
        return torch.zeros(1, 4, dtype=torch.int64)
    else:
        boxes[:, 2] = np.minimum(boxes[:, 2] + 1, width - 1)
        boxes[:, 3] = np.minimum(boxes[:, 3] + 1, height - 1)
    order = np.argsort(-measure, kind="stable")
    order = order[measure[order] >= min_area]
    return torch.from_numpy(boxes[order[:1] if rule == "largest" else order])


def box_iou(boxes_a: Tensor | np.ndarray, boxes_b: Tensor | np.ndarray) -> Tensor:
    """Return the intersection over union of inclusive integer boxes, (n, 4) and (m, 4) -> (n, m) float64.

    Widths are x1 - x0 + 1, so [1, 2, 5, 6] and [3, 1, 4, 5] overlap in 8 of 27 pixels. A box that is
    turned inside out overlaps nothing (the benchmark's evaluator stops at it).
    """
    a, b = torch.as_tensor(boxes_a)[:, None, :].long(), torch.as_tensor(boxes_b)[None, :, :].long()
    lower, upper = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    intersection = (upper - lower + 1).clamp(min=0).prod(-1)
    union = (a[..., 2:] - a[..., :2] + 1).prod(-1) + (b[..., 2:] - b[..., :2] + 1).prod(-1) - intersection
    return torch.where(union > 0, intersection.double() / union.clamp(min=1).double(), 0.0)


def scale_boxes(
    boxes: Tensor | np.ndarray, from_size_wh: tuple[int, int], to_size_wh: tuple[int, int]
) -> Tensor:
    """Scale boxes (n, 4) from an image of one (width, height) to another, truncating to whole pixels.

    x and y are scaled apart from each other: (176, 136, 459, 291) in 560x419 is (70, 72, 183, 155) in
    224x224. Raises `FcamError` when a size is not positive.
    """
    if min(*from_size_wh, *to_size_wh) <= 0:
        raise FcamError(f"sizes must be positive, got {from_size_wh} and {to_size_wh} (width, height)")
    boxes = torch.as_tensor(boxes).double()
    new = torch.tensor(tuple(to_size_wh) * 2, device=boxes.device)
    old = torch.tensor(tuple(from_size_wh) * 2, device=boxes.device)
    return (boxes * new / old).trunc().long()


def quantize(maps: Tensor | np.ndarray) -> np.ndarray:
    """Return `floor(255 map)` of maps (B, H, W) in [0, 1] as uint8; the product is taken in double precision.

    Raises `FcamError` for anything that is not floating point, not (B, H, W), NaN or outside [0, 1].
    """
    values = as_array(maps)
    levels = np.empty(values.shape, np.uint8)
    if not _quantize(values.reshape(-1), levels.reshape(-1)):
        raise_for_values(values)
    return levels


def cut_level(levels: np.ndarray, threshold: float) -> int:
    """The level of a map's `quantize`d levels (H, W) above which they are foreground, at a share of their maximum."""
    return int(threshold * int(levels.max()))


def as_array(maps: Tensor | np.ndarray) -> np.ndarray:
    """Return maps (B, H, W) of any floating type and device as a contiguous float32 or float64 array."""
    values = plain_array(maps, "maps")
    if values.ndim != 3 or 0 in values.shape[1:]:
        raise FcamError(f"maps must be (B, H, W), got shape {values.shape}; add or remove dimensions")
    if values.dtype.kind != "f":
        raise FcamError(
            f"maps must be floating point in [0, 1], got {values.dtype}; divide 8-bit maps by 255, "
            "make floats of masks"
        )
    # Writable, since the kernels would be compiled once more for arrays that are not.
    return np.require(values, np.float32 if values.dtype.itemsize < 8 else np.float64, ["C", "W"])


def plain_array(given: object, name: str) -> np.ndarray:
    """Return a tensor on any device, or whatever NumPy reads, as an array; types that NumPy lacks become float32.

    Raises `FcamError` for arrays of several shapes.
    """
    if isinstance(given, Tensor):
        given = given.detach().cpu()
        return (given.float() if given.is_floating_point() and given.itemsize < 4 else given).numpy()
    try:
        return np.asarray(given)
    except ValueError as error:
        raise FcamError(f"{name} must be one tensor or array, got several shapes; resize them") from error


def raise_for_values(values: np.ndarray) -> None:
    """Name the first map (B, H, W) with a value that is NaN or outside [0, 1]."""
    bad = ~((values >= 0) & (values <= 1))
    index = int(bad.reshape(len(values), -1).any(1).argmax())
    value = values[index][bad[index]][0]
    raise FcamError(
        f"map {index} of the batch holds the value {value}, outside [0, 1]; "
        "normalise it (fcam.cams.normalize) or leave that image out"
    )


def as_share(threshold: Any) -> float:
    """Return a threshold of whatever kind of number, tensors of one included; raises `FcamError` outside [0, 1)."""
    try:
        share = np.nan if isinstance(threshold, str) else float(threshold)
    except (TypeError, ValueError, RuntimeError):
        share = np.nan
    if not 0.0 <= share < 1.0:
        raise FcamError(
            f"threshold must lie in [0, 1), got {shown(threshold)}; it is relative to the map's maximum"
        )
    return share


def check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise `FcamError` unless `value` is one of the names in `allowed`."""
    if value not in allowed:
        raise FcamError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


@kernel()
def _quantize(values, levels):
    valid = True
    for i in range(values.size):
        value = np.float64(values[i])
        valid &= (value >= 0.0) & (value <= 1.0)
        levels[i] = np.uint8(value * 255.0)
    return valid
