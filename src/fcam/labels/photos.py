"""What is labelled in a photo: boxes, and the regions of the written mask that belong to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fcam.contours import components
from fcam.data.images import ImageError, open_mask
from fcam.errors import FcamError
from fcam.labels.outlines import outline

Box = tuple[int, int, int, int]
_AGAIN = "delete it and repeat fcam predict with --resume"


class Region(NamedTuple):
    """The 8-connected component of a mask that a box encloses."""

    box: Box
    """x0, y0, x1, y1 in pixels of the photo, x1 and y1 one past the last pixel."""
    pixels: NDArray[np.bool_]
    """(y1 - y0, x1 - x0) True where a pixel of the box belongs to the component."""

    def polygon(self) -> NDArray[np.float64]:
        """Return the outline as points (n, 2), x and y in pixels of the photo, whose box is `box`."""
        return outline(self.pixels) + np.array(self.box[:2])


@dataclass(frozen=True)
class LabelledPhoto:
    """One photo with the boxes that passed the filters."""

    file: str
    """Path of the photo below the photos' common folder, with forward slashes."""
    name: str
    """The same without suffix, made unique: the name of a label file."""
    width: int
    height: int
    boxes: tuple[Box, ...]
    """x0, y0, x1, y1 in pixels of the upright photo, x1 and y1 one past the last pixel."""
    category: int
    """Index into the list of class names."""
    score: float
    mask: Path | None = None
    """The mask that `fcam predict` wrote for the photo; None where it wrote none."""
    kept: bool = False
    """Whether its label files are somebody else's, or corrected by hand, and stay as they are."""

    def regions(self) -> Iterator[Region]:
        """Read the mask and yield the region of each box, in their order.

        Raises `FcamError` when there is no mask, or it is damaged or of another run than the boxes.
        """
        if self.mask is None:
            raise FcamError(
                f"{self.file} has no mask to outline; run fcam predict again without --no-masks, "
                "or export coco, yolo or voc"
            )
        mask = self._read(self.mask)
        found = components(mask)
        numbers = {(x0, y0, x1 + 1, y1 + 1): i for i, (x0, y0, x1, y1) in enumerate(found.boxes.tolist(), 1)}
        for box in self.boxes:
            if box not in numbers:
                raise FcamError(
                    f"the mask of {self.file}, {self.mask}, has no region with the box {list(box)}: "
                    f"it is not the mask of this prediction; {_AGAIN}"
                )
            x0, y0, x1, y1 = box
            yield Region(box, found.numbers[y0:y1, x0:x1] == numbers[box])

    def _read(self, path: Path) -> NDArray[np.bool_]:
        try:
            mask = open_mask(path, max_pixels=self.width * self.height)
        except ImageError as error:
            again = _AGAIN if path.exists() else "repeat fcam predict with --resume"
            raise FcamError(
                f"cannot read the mask of {self.file}, {path}: {error.reason}; {again}"
            ) from error
        if mask.shape != (self.height, self.width):
            raise FcamError(
                f"the mask of {self.file}, {path}, has {mask.shape[1]}x{mask.shape[0]} pixels, "
                f"but the photo has {self.width}x{self.height}; {_AGAIN}"
            )
        return mask
