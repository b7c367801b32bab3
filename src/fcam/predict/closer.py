"""A second look, closer, at what the first one found: windows of the photo around it, shown to the network one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fcam.boxes import Rule, from_map
from fcam.predict.prediction import to_size

MARGIN = 1.4
"""Side of a window, in longer sides of the box that it shows; chosen on `val` among 1.2, 1.4 and 1.7."""
WHOLE = 0.64
"""Windows of this share of the photo or more would show the photo once again."""
SMALLEST = 0.15
"""Least side of a window as a share of the photo's shorter side: around one bright pixel nothing can be seen."""
SPECK = 0.002
"""Components below this share of the map are not looked at, unless they are the largest."""


class Window(NamedTuple):
    """A part of the photo in its pixels; x1 and y1 are one past the last."""

    x0: int
    y0: int
    x1: int
    y1: int


class Closer(NamedTuple):
    """What the network saw in a window: a map (h, w) in [0, 1] on the CPU."""

    window: Window
    map: Tensor


def windows(map: Tensor, size: tuple[int, int], threshold: float, rule: Rule) -> list[Window]:
    """Where to look again: a square around each box of a map, as far as the photo reaches; none where it is nearly all of it.

    Args:
        map: (h, w) in [0, 1], any resolution, of the whole photo.
        size: (width, height) of the photo.
        threshold: share of the map's maximum that makes its components.
        rule: "largest" for one window at most, "all" for one per component, largest first, leaving out what lies in
            an earlier window.
    """
    if not bool(map.isfinite().all()):
        return []
    height, width = map.shape
    found: list[Window] = []
    boxes = from_map(map, threshold, rule="largest", convention="exact")
    if rule == "all":
        others = from_map(map, threshold, "all", "exact", min_area=SPECK * width * height)
        boxes = torch.cat([boxes, others[~(others[:, None] == boxes).all(2).any(1)]])
    for x0, y0, x1, y1 in boxes.tolist():
        box = (
            x0 * size[0] / width,
            y0 * size[1] / height,
            (x1 + 1) * size[0] / width,
            (y1 + 1) * size[1] / height,
        )
        if any(_within(box, window) for window in found):
            continue
        window = _around(box, size)
        if (window.x1 - window.x0) * (window.y1 - window.y0) < WHOLE * size[0] * size[1]:
            found.append(window)
    return found


def _within(box: tuple[float, float, float, float], window: Window) -> bool:
    return window.x0 <= box[0] and window.y0 <= box[1] and box[2] <= window.x1 and box[3] <= window.y1


def _around(box: tuple[float, float, float, float], size: tuple[int, int]) -> Window:
    """The square window of a box, shifted into the photo where it would stand out, and no larger than the photo."""
    side = max(MARGIN * max(box[2] - box[0], box[3] - box[1]), SMALLEST * min(size), 1)
    edges: list[tuple[int, int]] = []
    for low, high, limit in ((box[0], box[2], size[0]), (box[1], box[3], size[1])):
        length = min(round(side), limit)
        start = min(max(round((low + high) / 2 - length / 2), 0), limit - length)
        edges.append((start, start + length))
    (x0, x1), (y0, y1) = edges
    return Window(x0, y0, x1, y1)


def look_into(
    photos: Sequence[Image.Image],
    places: Sequence[Sequence[Window]],
    prepare: Callable[[Image.Image], Tensor],
    maps_of: Callable[[Tensor, list[int]], Tensor],
    batch_size: int,
) -> list[tuple[Closer, ...]]:
    """Show the network every window of every photo, in batches of one shape.

    Args:
        places: the windows of each photo.
        prepare: from an image to what the network sees, (3, h, w).
        maps_of: from a batch of that, and the positions of the photos it comes from, to maps (B, h, w).

    Returns:
        for each photo what was seen in its windows, in their order.
    """
    seen: list[dict[int, Closer]] = [{} for _ in photos]
    shapes: defaultdict[torch.Size, list[tuple[int, int, Tensor]]] = defaultdict(list)
    for index, (photo, found) in enumerate(zip(photos, places, strict=True)):
        for number, window in enumerate(found):
            pixels = prepare(photo.crop(window))
            shapes[pixels.shape].append((index, number, pixels))
    for crops in shapes.values():
        for start in range(0, len(crops), batch_size):
            batch = crops[start : start + batch_size]
            maps = maps_of(torch.stack([pixels for _, _, pixels in batch]), [index for index, _, _ in batch])
            for (index, number, _), map in zip(batch, maps, strict=True):
                seen[index][number] = Closer(places[index][number], map)
    return [tuple(by_number[number] for number in sorted(by_number)) for by_number in seen]


def put_in(cam: NDArray[np.float32], closer: Sequence[Closer], threshold: float) -> NDArray[np.float32]:
    """Put what was seen closer into a map (H, W) of the whole photo; where windows overlap, the larger value counts.

    A window in which nothing reaches the threshold, a share of the map's maximum, stays as it was: the second look must not
    lose what the first has found.
    """
    least = threshold * float(cam.max())
    within = np.full_like(cam, -1.0)
    for (x0, y0, x1, y1), map in closer:
        if float(map.max()) > least:
            part = within[y0:y1, x0:x1]
            np.maximum(part, to_size(map, (x1 - x0, y1 - y0)), out=part)
    return np.where(within < 0, cam, within)
