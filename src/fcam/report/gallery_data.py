"""What the page's gallery needs of each image: a small photo, small maps and mask, true boxes, overlaps."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from fcam.boxes import quantize
from fcam.draw import COLORMAP, palette
from fcam.report.curves import Survey

SIDE = 112
"""Side of photos and maps; five thousand images stay below 60 MB with it."""
STEPS = 100
"""Positions of the slider."""
STEP = 6
"""Distance between the levels of small maps."""
CHUNK = 24
"""Images that are decoded together."""


class Collector:
    """Takes in batches during a pass over the split and keeps small copies of the images asked for.

    Args:
        wanted: positions in the split, in the order in which the page shows them.
    """

    def __init__(self, wanted: Sequence[int]) -> None:
        self.wanted = list(wanted)
        self._kept: dict[int, dict[str, Any]] = {}
        self._set = set(self.wanted)

    def __call__(self, batch: dict[str, Any], maps: dict[str, Tensor], places: Tensor) -> None:
        """Take in a collated batch, its maps (B, H, W) by kind and the positions of its images."""
        for i, place in enumerate(places.tolist()):
            if place not in self._set:
                continue
            height, width = batch["image"].shape[-2:]
            scale = np.array([width, height, width, height])
            boxes = batch["boxes"][i].numpy() if "boxes" in batch else np.zeros((0, 4))
            far = boxes + np.array([0, 0, 1, 1])  # drawn from edge to edge
            self._kept[place] = {
                "boxes": np.round(1000 * far / scale).astype(int).clip(0, 1000).tolist(),
                "photo": _photo(batch["image"][i]),
                "mask": _exact(_small_mask(batch["mask"][i].numpy())) if "mask" in batch else "",
                "maps": {kind: _exact(_small(own[i].cpu().numpy())) for kind, own in maps.items()},
            }

    def gallery(self, name: str, found: Survey) -> tuple[dict[str, Any], list[list[Any]]]:
        """Return the index of the gallery, and its pictures in chunks of `CHUNK`; JSON values."""
        shown = [place for place in self.wanted if place in self._kept]
        dataset = found.dataset
        every = len(found.grid) // STEPS
        index = {
            "name": name,
            "measure": found.measure,
            "kinds": list(found.maps),
            "thresholds": {kind: round(own, 3) for kind, own in found.thresholds.items()},
            "classes": list(dataset.classes),
            "labels": [dataset.labels[i] for i in shown],
            "predicted": [int(found.predicted[i]) for i in shown],
            "ids": [dataset.image_ids[i] for i in shown],
            "boxes": [self._kept[i]["boxes"] for i in shown],
            "counted": [bool(found.counted[i]) for i in shown],
            "overlap": {kind: _packed(own.overlap[shown][:, ::every]) for kind, own in found.maps.items()},
            "images": len(dataset),
        }
        pictures = [
            [self._kept[i]["photo"], self._kept[i]["mask"], *(self._kept[i]["maps"][k] for k in found.maps)]
            for i in shown
        ]
        return index, [pictures[first : first + CHUNK] for first in range(0, len(pictures), CHUNK)]


def colors() -> str:
    """The 256 colours of heat maps, RGB bytes in base64."""
    return _packed(palette(COLORMAP))


def _packed(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array, np.uint8).tobytes()).decode("ascii")


def _encode(image: Image.Image, **options: Any) -> str:
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "WEBP", method=4, **options)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _photo(image: Tensor) -> str:
    """A photo (3, H, W) uint8, small and lossy."""
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    return _encode(picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS), quality=50)


def _small(cam: np.ndarray) -> Image.Image:
    """A map (H, W) in [0, 1] as 8-bit levels of a small square, in steps of `STEP`, which packs well."""
    level = Image.fromarray(quantize(np.require(cam, requirements="W")[None])[0])
    array = np.asarray(level.resize((SIDE, SIDE), Image.Resampling.BOX), np.int64)
    return Image.fromarray(((array + STEP // 2) // STEP * STEP).clip(0, 255).astype(np.uint8))


def _small_mask(mask: np.ndarray) -> Image.Image:
    """A mask (H, W) of 0, 1, 255 (not counted) as grey levels 0, 255, 128."""
    levels = np.where(mask == 1, 255, np.where(mask == 0, 0, 128)).astype(np.uint8)
    return Image.fromarray(levels).resize((SIDE, SIDE), Image.Resampling.NEAREST)


def _exact(image: Image.Image) -> str:
    """Grey levels without loss; a quarter smaller than as PNG."""
    return _encode(image, lossless=True, quality=75)
