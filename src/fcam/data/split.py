"""What the readers of all layouts hand over: the images of one split with the localization asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fcam.errors import FcamError

SPLITS = ("train", "val", "test")

OnProblem = Callable[[str], None]
"""Called with one sentence for each fault found while reading lists; the default raises it, `check` collects
it.
"""


def refuse(sentence: str) -> None:
    """Raise `FcamError(sentence)`."""
    raise FcamError(sentence)


LONGEST_SIDE = 2**31
"""No image has more pixels a side, and none of the numbers in a list is worth more."""


def checked_size(width: int, height: int) -> tuple[int, int]:
    """Return the size of an image as it is; raises `ValueError` unless an image can have it."""
    if not (1 <= width < LONGEST_SIDE and 1 <= height < LONGEST_SIDE):
        raise ValueError("no image has this size")
    return width, height


def checked_box(*box: float) -> tuple[float, ...]:
    """Return x0, y0, x1, y1 as they are; raises `ValueError` for numbers that lie in no image's range."""
    if not all(abs(number) < LONGEST_SIDE for number in box):  # NaN fails too
        raise ValueError("no image has these pixels")
    return box


def check_pixels(source: str, boxes: Mapping[str, np.ndarray], on_problem: OnProblem) -> None:
    """Call `on_problem` where the boxes (n, 4) of all images are shares of the image, which no pixels are."""
    rows = np.concatenate([np.zeros((0, 4)), *boxes.values()])
    shares = (rows != np.floor(rows)).any(axis=1)
    if shares.any() and rows.max() <= 1:
        example = ", ".join(f"{number:g}" for number in rows[shares][0])
        on_problem(
            f"{source} gives boxes as shares of the image, such as x0, y0, x1, y1 = {example}; multiply them by its width and "
            "height, since boxes are in pixels"
        )


class MaskFiles(NamedTuple):
    """The mask of one object and, where there is one, the mask of pixels that do not count."""

    mask: Path
    ignore: Path | None


@dataclass
class Split:
    """The images of one split in list order.

    `image_ids` are paths relative to `root`; `labels` index `classes`; `sizes` maps ids to the (width,
    height) their boxes refer to; `boxes` maps ids to (n, 4) float64 x0, y0, x1, y1 in those pixels; `masks`
    maps ids to their mask files. `boxes` and `masks` are None where there are none or none were asked for.
    `exif`: photos are turned upright.
    """

    root: Path
    name: str
    layout: str
    classes: list[str]
    image_ids: list[str]
    labels: list[int]
    exif: bool
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    boxes: dict[str, np.ndarray] | None = None
    masks: dict[str, list[MaskFiles]] | None = None

    def classes_without_images(self) -> list[str]:
        """Return the names of the classes that none of these images belongs to."""
        there = set(self.labels)
        return [name for label, name in enumerate(self.classes) if label not in there]

    def with_boxes(self) -> list[str]:
        """Return the images that have a box, which are those that box metrics count."""
        return [image_id for image_id in self.image_ids if len((self.boxes or {}).get(image_id, ()))]

    def with_masks(self) -> list[str]:
        """Return the images that have a mask, which are those that pixel metrics count."""
        return [image_id for image_id in self.image_ids if (self.masks or {}).get(image_id)]
