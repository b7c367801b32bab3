"""Ways to a better map than one look at the photo; none of them is part of the paper, and all are off unless asked for."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from fcam.errors import FcamError
from fcam.grabcut import load_opencv

DECIDING = ("product", "fill", "refine", "grabcut")
"""Ways that decide about what `coarse` leaves open."""


@dataclass(frozen=True, kw_only=True)
class Ways:
    """How a photo is looked at; `fcam predict`, `fcam evaluate` and the app have these as options."""

    product: bool = False
    """Multiply the map by the CAM of the predicted class: what belongs to something else drops out."""
    fill: bool = False
    """Raise the map where the CAM of the predicted class is strong: gaps in an object that the decoder does not know close."""
    coarse: bool = False
    """Also look at the photo at half the side, which shows objects whole: product, fill, refine and grabcut decide about what
    only that look finds; a quarter more work."""
    flip: bool = False
    """Also look at the mirrored photo and take the mean of both maps: twice the work."""
    refine: bool = False
    """Refine the map along the photo's edges: sharper masks, about three times the work on a CPU."""
    grabcut: bool = False
    """Cut the object out anew along the photo's edges, by GrabCut: the best masks, and takes OpenCV (the extra grabcut)."""
    zoom: bool = False
    """Look again, closer, at what the first look has found: for objects that are small in the photo, up to twice the work."""

    @property
    def on(self) -> tuple[str, ...]:
        """Names of those that are taken."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name))

    @property
    def of_class(self) -> bool:
        """Whether the map depends on the class that it is asked for."""
        return self.product or self.fill

    def check(self) -> None:
        """Raise `FcamError` for what cannot be done, before any photo is looked at."""
        if self.coarse and not any(getattr(self, name) for name in DECIDING):
            raise FcamError(
                f"coarse leaves what it finds to {', '.join(DECIDING[:-1])} or {DECIDING[-1]}, and changes nothing alone; "
                "take one of them as well"
            )
        if self.grabcut:
            load_opencv()

    @property
    def base(self) -> str:
        """The kind of map of one look, whose best threshold on `val` holds for all looks."""
        return "product" if self.product else "fcam"

    @property
    def further(self) -> tuple[str, ...]:
        """Those that come on top of the base, which one plain look gives."""
        return tuple(name for name in self.on if name != "product")

    @property
    def kind(self) -> str:
        """The kind of map, as `metrics.json` calls it: "fcam", "product", or either and how it was looked at."""
        return "+".join([self.base, *self.further])


def undecided(maps: Tensor, coarse: Tensor, threshold: float) -> Tensor:
    """Return max(S, c · K): a map S raised to the cut c at threshold t where a coarser look K is sure of an object.

    Nothing crosses the cut, the 8-bit level above which masks and boxes begin, so that K alone makes no object. But where S had
    decided against a part of one, colours or a CAM now decide (`fcam.refine`, `fcam.grabcut`, `filled`, `product`).

    Args:
        maps: S, (B, H, W) in [0, 1].
        coarse: K, what the network says of the same photos made smaller, likewise.
        threshold: t, share of a map's maximum, [0, 1), at which S is cut.

    Returns:
        (B, H, W) float32 in [0, 1], nowhere below S.
    """
    maps = maps.float()
    peaks = (255 * maps.amax((1, 2)).cpu().double()).floor()
    cuts = ((threshold * peaks).floor() / 255).to(maps)  # levels, as `fcam.boxes` has them
    return torch.maximum(maps, cuts[:, None, None] * coarse.float())


FILL = 0.8
"""What the exponent of a map loses where its CAM is highest; below 1, so that what the map denies stays denied."""


def filled(maps: Tensor, cams: Tensor) -> Tensor:
    """Return S^(1 - 0.8 C): a map S that belongs to no class, raised towards 1 where the CAM C of one class is high.

    Of what the CAM leaves out nothing changes, so that an object which the CAM covers in part loses nothing; of two places that
    the CAM treats alike neither overtakes the other.

    Args:
        maps: S, (B, H, W) in [0, 1].
        cams: C of one class per image, likewise.

    Returns:
        (B, H, W) float32 in [0, 1], nowhere below S.
    """
    return maps.float() ** (1 - FILL * cams.float())


def product(maps: Tensor, cams: Tensor) -> Tensor:
    """Return √(S · C): a map S that belongs to no class, kept where the CAM C of one class is not zero.

    The root changes no order and keeps thresholds in their usual range. A CAM that is zero everywhere says nothing, and
    leaves its map as it is.

    Args:
        maps: S, (B, H, W) in [0, 1].
        cams: C of one class per image, likewise.

    Returns:
        (B, H, W) float32 in [0, 1].
    """
    says = cams.amax((1, 2), keepdim=True) > 0
    return torch.where(says, (maps.float() * cams.float()).sqrt(), maps.float())
