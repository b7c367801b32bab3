"""Sharpening: a trained decoder goes on with its own maps as teacher, made better by all that training knows; ours.

The label says which CAM tells the object from whatever else stands out in a photo, and `fcam.refine` and `fcam.grabcut`, which
take longer than the network, find its edges. A decoder that learns the outcome gives it in the one pass that it takes anyway,
and without a label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from fcam.config import ALWAYS, SeedConfig, Sharpener, TrainConfig
from fcam.grabcut import grabcut
from fcam.losses.total import TERMS
from fcam.predict.ways import filled
from fcam.refine import refine
from fcam.seeds import SeedMaps, quantize

SEEDS = SeedConfig(
    n_minus=0.05, foreground_pixels=50, background_pixels=50, erosion=1, erosion_iterations=0, dilation=1
)
"""Where both sides are known up to their border, seeds come from anywhere, and many of them. The background of a map of zeros
and ones is one tie; an image with less of it than `n_minus` would lend it some of its object (`_but_for_whole_photos`)."""


def sharpening(config: TrainConfig) -> TrainConfig:
    """The settings with which the decoder goes on: those of stage 2, but for its seeds, its epochs, and windows of them."""
    loss = replace(config.loss, **{f"{name}_epochs": ALWAYS for name in TERMS.values()})
    return replace(config, seeds=SEEDS, loss=loss, stage2=replace(config.stage2, epochs=config.sharpen))


def sharp_maps(
    maps_of: SeedMaps, class_maps: SeedMaps, threshold: float, by: Sharpener = "refine"
) -> SeedMaps:
    """Maps of zeros and ones to sample seeds in: a teacher's maps along the edges of their photos, cut at `threshold`.

    Args:
        maps_of: gives the teacher's maps.
        class_maps: gives the maps of the photos' classes, such as CAMs; where they are high a teacher's map is raised
            (`fcam.predict.ways.filled`), so that of the things that stand out in a photo the one of its class is cut out.
        threshold: share of a map's maximum, [0, 1), at which the teacher's object begins.
        by: "refine" for `fcam.refine`, "grabcut" for that and `fcam.grabcut` after it, which needs OpenCV.
    """

    def seed_maps(images: Tensor, features: Sequence[Tensor], labels: Tensor) -> Tensor:
        maps = filled(maps_of(images, features, labels), class_maps(images, features, labels))
        maps = refine(images, maps, threshold)
        if by == "grabcut":
            maps = grabcut((images * 255).round().byte(), maps, threshold)
        return _but_for_whole_photos(cut_maps(maps, threshold))

    return seed_maps


def _but_for_whole_photos(masks: Tensor) -> Tensor:
    """Zeros for photos whose mask leaves less than n⁻ of background: such a map gives no seeds, so they are passed over."""
    background = (masks == 0).float().mean((1, 2), keepdim=True)
    return masks * (background >= SEEDS.n_minus)


def cut_maps(maps: Tensor, threshold: float) -> Tensor:
    """Zeros and ones, (B, H, W) float: the masks that prediction would cut at a share `threshold` of each map's maximum."""
    levels = quantize(maps)
    return (levels > (threshold * levels.amax((1, 2), keepdim=True)).long()).float()
