"""Ways to a better map than one look at the photo; none of them is part of the paper, and all are off unless asked for."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Ways:
    """How a photo is looked at; `fcam predict`, `fcam evaluate` and the app have these as options."""

    product: bool = False
    """Multiply the map by the CAM of the predicted class: what belongs to something else drops out."""
    flip: bool = False
    """Also look at the mirrored photo and take the mean of both maps: twice the work."""
    refine: bool = False
    """Refine the map along the photo's edges: sharper masks, about three times the work on a CPU."""
    zoom: bool = False
    """Look again, closer, at what the first look has found: for objects that are small in the photo, up to twice the work."""

    @property
    def on(self) -> tuple[str, ...]:
        """Names of those that are taken."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name))

    @property
    def base(self) -> str:
        """The kind of map of one look, whose best threshold on `val` holds for all looks."""
        return "product" if self.product else "fcam"

    @property
    def further(self) -> tuple[str, ...]:
        """Those that look at the photo again, or at its colours; the product needs nothing that one look has not seen."""
        return tuple(name for name in self.on if name != "product")

    @property
    def kind(self) -> str:
        """The kind of map, as `metrics.json` calls it: "fcam", "product", or either and how it was looked at."""
        return "+".join([self.base, *self.further])


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
