"""The network behind a `Localizer`: what it says about photos that were made ready for it, looked at in one way or another."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fcam import cams
from fcam.cams.interpolate import enlarged
from fcam.errors import FcamError
from fcam.errors import cut as shortened
from fcam.grabcut import grabcut
from fcam.model import FCAM, FCAMOutput, foreground
from fcam.predict.closer import Closer
from fcam.predict.ways import Ways, filled, product, undecided
from fcam.refine import refine

SMALLEST = 32
"""Least side of an image that a network is shown."""


SIZES = "take the size it was trained on, without keep_aspect"
"""What helps where a network takes images of one size alone."""


class NetworkOutput(NamedTuple):
    """What the network says about one photo, on the CPU, at the network's own resolution (h, w)."""

    class_idx: int
    score: float
    map: Tensor
    baseline: Tensor | None
    closer: tuple[Closer, ...] = ()
    """What a second look saw, in windows of the photo."""


class Seen(NamedTuple):
    """What the network says about a batch, on its device: logits (B, K), maps (B, h, w), the head's features (B, C, h', w')."""

    logits: Tensor
    maps: Tensor
    top: Tensor


class Network:
    """A model as it is run for prediction.

    Args:
        model: what knows the classes and the head.
        module: what is run in its place, such as the same with its batch normalisation folded.
        device: where both are.
        dtype: torch.float32, or the type of autocast.
        cam_method: closed-form method of the class maps, `cam_variant` its formula.
    """

    def __init__(
        self,
        model: FCAM,
        module: nn.Module,
        device: torch.device,
        dtype: torch.dtype,
        cam_method: str,
        cam_variant: str,
    ) -> None:
        self.classifier, self.module = model.classifier, module
        self.device, self.dtype = device, dtype
        self.cam_method, self.cam_variant = cam_method, cam_variant

    @torch.inference_mode()
    def see(self, images: Tensor, ways: Ways, threshold: float, classes: Tensor | None = None) -> Seen:
        """Look at a batch, uint8 (B, 3, h, w), in these ways; a closer look is the caller's, who has the photos.

        `threshold` is where maps are cut; `classes` (B,) those whose CAM `product` and `fill` take, None the most
        probable ones.
        """
        batch = images.to(self.device, non_blocking=True).contiguous(memory_format=torch.channels_last)
        views = [batch, batch.flip(-1)] if ways.flip else [batch]
        looks = [self._forward(view) for view in views]
        logits = torch.stack([look.logits.float() for look in looks]).mean(0)
        maps = _mean([foreground(look.maps) for look in looks])
        if ways.coarse:
            smaller = [foreground(self._forward(halved(view), "leave coarse out").maps) for view in views]
            maps = undecided(maps, enlarged(_mean(smaller), maps.shape[-2:]), threshold)
        if ways.of_class:
            if classes is None:
                classes = self.classifier.probabilities(logits).argmax(1)
            own = [
                self.class_maps(view, look.features[-1], classes)
                for view, look in zip(views, looks, strict=True)
            ]
            whole = enlarged(_mean(own), maps.shape[-2:])
            maps = filled(maps, whole) if ways.fill else maps
            maps = product(maps, whole) if ways.product else maps
        if ways.refine:
            maps = refine(batch.float() / 255, maps, threshold)
        if ways.grabcut:
            maps = grabcut(images, maps, threshold)
        return Seen(logits, maps, looks[0].features[-1])

    def _forward(self, batch: Tensor, remedy: str = SIZES) -> FCAMOutput:
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            try:
                return self.module(batch.float() / 255)
            except RuntimeError as error:  # a head for one size of images, or more memory than there is
                reason = shortened(str(error).strip().partition("\n")[0])
                raise FcamError(
                    f"the network cannot be run on {len(batch)} images of {batch.shape[-1]}x{batch.shape[-2]} ({reason}); "
                    f"{remedy}, or take a smaller batch_size"
                ) from error

    def class_maps(self, images: Tensor, top: Tensor, classes: Tensor, method: str | None = None) -> Tensor:
        """Return the classifier's own CAMs (B, h, w) in [0, 1] from features it has made, noise the same at every call.

        `images` uint8 (B, 3, H, W) as the network saw them, `top` (B, C, h, w) their features, `classes` int64 (B,);
        `method` is a closed form, None the model's own. Raises `FcamError` for another method.
        """
        raw = cams.from_top(
            self.classifier,
            images.to(self.device).float() / 255,
            top.float(),  # heads are in float32, outside of autocast
            classes.to(self.device),
            method or self.cam_method,
            variant=self.cam_variant,
            generator=torch.Generator().manual_seed(0),
        )
        return cams.normalize(raw)


def halved(images: Tensor) -> Tensor:
    """Images (B, 3, h, w) at half the side, but no side below the 32 pixels that a network needs; float, in the same range."""
    size = [max(side // 2, SMALLEST) for side in images.shape[-2:]]
    return F.interpolate(images.float(), size=size, mode="bilinear", antialias=True, align_corners=False)


def _mean(maps: list[Tensor]) -> Tensor:
    """The mean of maps (B, h, w) of the photo and, where there are two, of its mirror image."""
    return maps[0] if len(maps) == 1 else (maps[0] + maps[1].flip(-1)) / 2
