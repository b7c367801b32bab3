"""What the model says about one photo: label, map, mask and boxes at the photo's own size."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from numbers import Integral
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from fcam import draw, panels
from fcam.boxes import as_share, cut_level, from_map, quantize
from fcam.errors import FcamError

BoxRule = Literal["largest", "all"]


@dataclass(frozen=True, eq=False)
class Prediction:
    """What the model says about one photo of width W and height H."""

    label: str
    """Name of the most probable class, or of the one that was asked for; its number as text when the model has no names."""
    class_idx: int
    score: float
    """Softmax probability of that class, 0 to 1."""
    cam: NDArray[np.float32] = field(repr=False)
    """(H, W) foreground map S² in [0, 1]; class-agnostic, one foreground per photo (paper, section 3), unless changed by
    the CAM of `class_idx` (`Localizer(product=True)`, `fill=True`)."""
    mask: NDArray[np.bool_] = field(repr=False)
    """(H, W) True where floor(255 cam) exceeds int(threshold * its maximum): the benchmark's rule."""
    boxes: NDArray[np.int64]
    """(n, 4) x0, y0, x1, y1 in pixels of the photo, x1, y1 one past the last; n = 0 for an empty map."""
    threshold: float
    """Share of the map's maximum at which mask and boxes were cut."""
    size: tuple[int, int]
    """(width, height) of the photo, upright."""
    photo: Image.Image = field(repr=False)
    """The photo, RGB."""
    box_rule: BoxRule = "largest"
    baseline: NDArray[np.float32] | None = field(default=None, repr=False)
    """(H, W) the classifier's own CAM of that class, in [0, 1]; None unless asked for."""
    source: str | None = None
    """Path of the photo where it came from a file."""

    def at(self, threshold: float) -> Prediction:
        """Return the same prediction with mask and boxes cut at another share of the maximum, 0 to 1.

        A map that was refined or looked at closer was so for the threshold of its `Localizer`, and stays.
        """
        threshold = as_share(threshold)
        mask, boxes = cut(self.cam, threshold, self.box_rule)
        return dataclasses.replace(self, mask=mask, boxes=boxes, threshold=threshold)

    @property
    def caption(self) -> str:
        """Label and score in a line, as the pictures carry it."""
        return f"{self.label} {100 * self.score:.0f} %"

    def overlay(self, colormap: str = draw.COLORMAP, legend: bool = True) -> Image.Image:
        """Return the photo with heat, contour, boxes, label and colour bar, RGB, of the photo's size."""
        return draw.overlay(
            self.photo,
            self.cam,
            self.mask,
            self.boxes,
            text=self.caption,
            threshold=self.threshold,
            colormap=colormap,
            legend=legend,
        )

    def panel(self, height: int = 320) -> Image.Image:
        """Return photo, the classifier's CAM where there is one, F-CAM, and mask with boxes, side by side.

        Raises `FcamError` for a height that is no whole number of pixels.
        """
        if not isinstance(height, Integral) or height < 1:
            raise FcamError(f"height is {height!r}; take 1 pixel or more")
        row = panels.side_by_side(self.photo, self.baseline, self.cam, self.mask, self.boxes)
        shown = [(p, t) for p, t in zip(row, panels.ROW_TITLES, strict=True) if p is not None]
        return panels.panel([[p for p, _ in shown]], [t for _, t in shown], [self.caption], height)


def cut(
    cam: NDArray[np.float32], threshold: float, rule: BoxRule = "largest"
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Cut a map (H, W) in [0, 1] at a share of its maximum; return the mask (H, W) and its boxes (n, 4).

    `rule` "largest" boxes the one 8-connected component with most pixels, "all" every one, largest first;
    holes give no boxes. Raises `FcamError` when `threshold` is not in [0, 1).
    """
    boxes = from_map(cam, threshold, rule=rule, convention="exact").numpy()
    levels = quantize(cam[None])[0]
    # from_map's boxes end at the last pixel; what users slice and draw with ends one past it.
    return levels > cut_level(levels, threshold), boxes + np.array([0, 0, 1, 1])


def to_size(map: Tensor, size: tuple[int, int]) -> NDArray[np.float32]:
    """Resize a map (h, w) bilinearly to (width, height), antialiased where it shrinks; float32 (H, W)."""
    width, height = size
    resized = F.interpolate(map.float()[None, None], size=(height, width), mode="bilinear", antialias=True)
    return resized[0, 0].clamp_(0, 1).numpy()
