"""What is drawn on screen: a photo small enough for a page, with the mask and the boxes of the full one."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from fcam import draw
from fcam.predict.prediction import BoxRule, Prediction, to_size

LONGEST = 1024
"""Pixels of the longer side on screen; numbers and saved files are always of the full photo."""


@dataclass(frozen=True, eq=False)
class View:
    """A prediction at the photo's own size, and the same for the screen."""

    full: Prediction
    small: Prediction

    def at(self, threshold: float, rule: BoxRule) -> View:
        """Cut mask and boxes anew, on the full photo, at a share of the map's maximum in [0, 1)."""
        full = dataclasses.replace(self.full, box_rule=rule).at(threshold)
        return View(full, _with_cut_of(full, self.small))


def view(prediction: Prediction, longest: int = LONGEST) -> View:
    """Make a prediction's view; photos up to `longest` pixels are shown as they are."""
    scale = longest / max(prediction.size)
    if scale >= 1:
        return View(prediction, prediction)
    width, height = (max(1, round(side * scale)) for side in prediction.size)
    size = (width, height)
    small = dataclasses.replace(
        prediction,
        photo=prediction.photo.resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0),
        cam=to_size(torch.from_numpy(np.require(prediction.cam, requirements="W")), size),
        size=size,
    )
    return View(prediction, _with_cut_of(prediction, small))


def _with_cut_of(full: Prediction, small: Prediction) -> Prediction:
    """Give `small` the mask and the boxes of the full prediction, scaled: what is counted is what is seen."""
    mask, boxes = full.mask, full.boxes
    if small.size != full.size:
        levels = Image.fromarray(full.mask.astype(np.uint8)).resize(small.size, Image.Resampling.NEAREST)
        mask = np.asarray(levels) > 0
        scale = np.tile(np.asarray(small.size) / np.asarray(full.size), 2)
        boxes = np.rint(full.boxes * scale).astype(np.int64)
    return dataclasses.replace(
        small, mask=mask, boxes=boxes, threshold=full.threshold, box_rule=full.box_rule
    )


def contour(shown: Prediction) -> Image.Image:
    """Return the photo with contour, boxes and label, RGB, without heat."""
    picture = draw.rectangles(draw.outline(shown.photo, shown.mask), shown.boxes)
    at = (0, 0) if len(shown.boxes) == 0 else (int(shown.boxes[0][0]), int(shown.boxes[0][1]))
    return draw.tag(picture, shown.caption, at)
