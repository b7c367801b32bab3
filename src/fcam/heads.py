"""Pooling heads: from the top feature map to class logits, and the class maps behind them."""

from __future__ import annotations

import math
import operator
from typing import Any, ClassVar, Literal, TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

from fcam.errors import FcamError, shown

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


class Head(nn.Module):
    """A pooling head: `forward(top (B, C, h, w))` gives logits (B, K), `class_maps(top)` (B, K, h, w).

    Attributes:
        scores: how logits become scores of classes: "softmax", "sigmoid" of each, or "given", as they are.
    """

    name: ClassVar[str]
    scores: str = "softmax"

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        if num_classes < 1:
            raise FcamError(f"a classifier needs at least 1 class, got {num_classes}; check the class list")
        self.channels = channels
        self.num_classes = operator.index(num_classes)  # counted with NumPy, it could not be stored as JSON

    def options(self) -> dict[str, Any]:
        """The keyword arguments, beyond channels and classes, that build this head again."""
        return {}

    @property
    def has_class_maps(self) -> bool:
        """Whether `class_maps` can be called; heads with hidden layers have no such maps."""
        return True

    def probabilities(self, logits: Tensor) -> Tensor:
        """Scores of classes (B, K) in [0, 1] from logits (B, K); a single one, which says yes or no, has no softmax."""
        if self.scores == "given":
            return logits
        return logits.sigmoid() if self.scores == "sigmoid" or logits.shape[1] == 1 else logits.softmax(1)

    def linear_weight(self) -> Tensor | None:
        """The weight (K, C) where the head is average pooling and one linear layer, else None."""
        return None

    def class_maps(self, top: Tensor) -> Tensor:
        """One map per class (B, K, h, w) from the top features (B, C, h, w)."""
        raise NotImplementedError


class LinearHead(Head):
    """Global average pooling and one linear layer, "WGAP" in the authors' code (Zhou et al., CVPR 2016).

    Args:
        scale: positive factor on the logits. An ImageNet layer on a network whose strides were removed ranks classes as
            before, but is far less sure of them; a factor repairs its probabilities.
    """

    name = "wgap"

    def __init__(self, channels: int, num_classes: int, scale: float = 1.0) -> None:
        super().__init__(channels, num_classes)
        if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < math.inf:
            raise FcamError(f"the scale of a head is {shown(scale)}; take a positive number")
        self.fc = _initialized(nn.Linear(channels, num_classes))
        self.scale = float(scale)

    def options(self) -> dict[str, Any]:
        return {} if self.scale == 1 else {"scale": self.scale}

    def forward(self, top: Tensor) -> Tensor:
        return self.scale * self.fc(top.mean((2, 3)))

    def linear_weight(self) -> Tensor:
        return self.fc.weight if self.scale == 1 else self.scale * self.fc.weight

    def class_maps(self, top: Tensor) -> Tensor:
        """The CAM of every class, without the bias: sum over k of weight[c, k] top[:, k]."""
        return F.conv2d(top, self.linear_weight()[:, :, None, None])


class MapHead(Head):
    """A head that pools class maps M, the output of a 1x1 convolution.

    With `background` there is one more map, at index 0, whose logit and map are left out of the results.
    """

    maps_per_class = 1

    def __init__(self, channels: int, num_classes: int, background: bool = False) -> None:
        super().__init__(channels, num_classes)
        self.background = background
        maps = (num_classes + background) * self.maps_per_class
        self.conv = _initialized(nn.Conv2d(channels, maps, kernel_size=1))

    def options(self) -> dict[str, Any]:
        return {"background": self.background}

    def class_maps(self, top: Tensor) -> Tensor:
        maps = self.conv(top)
        if self.maps_per_class > 1:
            maps = maps.unflatten(1, (-1, self.maps_per_class)).mean(2)
        return maps[:, 1:] if self.background else maps

    def forward(self, top: Tensor) -> Tensor:
        return self.pool(self.class_maps(top).flatten(2))

    def pool(self, maps: Tensor) -> Tensor:
        """Pool flattened maps (B, K, h*w) to logits (B, K)."""
        raise NotImplementedError


class GAPHead(MapHead):
    """Average pooling of class maps."""

    name = "gap"

    def linear_weight(self) -> Tensor:
        return self.conv.weight[int(self.background) :].flatten(1)

    def pool(self, maps: Tensor) -> Tensor:
        return maps.mean(2)


class MaxPoolHead(MapHead):
    """Maximum of class maps (Oquab et al., CVPR 2015)."""

    name = "maxpool"

    def pool(self, maps: Tensor) -> Tensor:
        return maps.amax(2)


class LogSumExpHead(MapHead):
    """Log-sum-exp of class maps, (1/r) log mean exp(r M), between mean and maximum (Pinheiro, CVPR 2015)."""

    name = "logsumexp"

    def __init__(self, channels: int, num_classes: int, background: bool = False, r: float = 10.0) -> None:
        super().__init__(channels, num_classes, background)
        if not r > 0:
            raise FcamError(f"log-sum-exp pooling needs r > 0, got {r}; the reference value is 10")
        self.r = r

    def options(self) -> dict[str, Any]:
        return {**super().options(), "r": self.r}

    def pool(self, maps: Tensor) -> Tensor:
        top = maps.amax(2, keepdim=True)
        return (top + ((maps - top) * self.r).exp().mean(2, keepdim=True).log() / self.r).squeeze(2)


class WildCatHead(MapHead):
    """Mean of the highest activations plus alpha times that of the lowest, halved (Durand et al., CVPR 2017).

    Each class has `modalities` maps, averaged first. `kmax` and `kmin` are shares of the map below 1 (1.0 is
    the whole map), or numbers of pixels. `variant="reference"` is what the authors' code computes: its lowest
    activations are added to a tensor that is thrown away, so the logit is the mean of the highest alone.
    `dropout` acts on the sorted activations.
    """

    name = "wildcat"

    def __init__(
        self,
        channels: int,
        num_classes: int,
        background: bool = False,
        modalities: int = 5,
        kmax: float = 0.5,
        kmin: float = 0.1,
        alpha: float = 0.6,
        dropout: float = 0.0,
        variant: Literal["published", "reference"] = "published",
    ) -> None:
        if variant not in ("published", "reference"):
            raise FcamError(f"the WILDCAT variant is 'published' or 'reference', got {variant!r}")
        if modalities < 1 or kmax <= 0 or not 0 <= dropout < 1:
            raise FcamError(
                f"WILDCAT needs modalities >= 1, kmax > 0 and 0 <= dropout < 1, got modalities={modalities}, "
                f"kmax={kmax}, dropout={dropout}"
            )
        self.maps_per_class = modalities
        super().__init__(channels, num_classes, background)
        self.kmax, self.kmin, self.alpha = kmax, kmin, alpha
        self.dropout, self.variant = dropout, variant

    def options(self) -> dict[str, Any]:
        names = ("kmax", "kmin", "alpha", "dropout", "variant")
        own = {name: getattr(self, name) for name in names}
        return {**super().options(), "modalities": self.maps_per_class, **own}

    def pool(self, maps: Tensor) -> Tensor:
        ordered = F.dropout(maps.sort(2, descending=True).values, self.dropout, self.training)
        high = ordered[:, :, : max(count(self.kmax, maps.shape[2]), 1)].mean(2)
        lowest = count(self.kmin, maps.shape[2])
        if self.variant == "reference" or lowest == 0 or self.alpha == 0:
            return high
        return (high + self.alpha * ordered[:, :, -lowest:].mean(2)) / 2


HEADS: dict[str, type[Head]] = {
    head.name: head for head in (LinearHead, GAPHead, MaxPoolHead, LogSumExpHead, WildCatHead)
}


def build_head(name: str, channels: int, num_classes: int, **options: Any) -> Head:
    """Build the head "wgap", "gap", "maxpool", "logsumexp" or "wildcat" for top features of `channels`.

    Raises `FcamError` for an unknown name or option.
    """
    if name not in HEADS:
        raise FcamError(f"no pooling head is named {name!r}; use {', '.join(HEADS)}")
    try:
        return HEADS[name](channels, num_classes, **options)
    except TypeError as error:
        raise FcamError(f"the head {name!r} has other options than {options} ({error})") from error


def count(k: float, n: int) -> int:
    """Number of pixels that `k` means in a map of `n`: a share below 1 (half rounds to even), or a number."""
    if k <= 0:
        return 0
    if k < 1:
        return round(k * n)
    if k == 1 and isinstance(k, float):
        return n
    return min(int(k), n)


def _initialized(layer: Layer) -> Layer:
    nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
