"""What an exported file computes, written so that sizes stay free in its graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import padding
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fcam.model import FCAM, foreground


class Network(nn.Module):
    """The whole network with plain tensors as results.

    Args:
        pixels: read uint8 (B, H, W, 3), 0 to 255, instead of float (B, 3, H, W) in [0, 1].
    """

    def __init__(self, model: FCAM, pixels: bool = False) -> None:
        super().__init__()
        self.model = model
        self.pixels = pixels

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits and probabilities (B, K), and the foreground map S² (B, H, W), all float32."""
        if self.pixels:
            images = images.permute(0, 3, 1, 2).float() / 255
        with _FreePooling(), _free_padding():
            logits, features = self.model.classifier(images)
            maps = self.model.decoder(features, images.shape[-2:])
        logits = logits.float()
        return logits, self.model.classifier.probabilities(logits), foreground(maps)


class _FreePooling(TorchFunctionMode):
    """Write adaptive average pooling to more than one pixel as two matrix products.

    Neither ONNX nor torch's own decomposition has it for sizes that are not known beforehand.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func is F.adaptive_avg_pool2d and not (kwargs or {}):
            images, size = args
            sides = (size, size) if isinstance(size, int) else tuple(size)
            fixed = all(isinstance(side, int) for side in images.shape[-2:])
            if not fixed and None not in sides and sides != (1, 1):
                return pool(images, sides)
        return func(*args, **(kwargs or {}))


def pool(images: Tensor, size: tuple[int, int]) -> Tensor:
    """`F.adaptive_avg_pool2d` of images (B, C, H, W) to (B, C, *size), for any kind of H and W."""
    rows, columns = (_shares(s, n, images) for s, n in zip(images.shape[-2:], size, strict=True))
    return rows @ images @ columns.T


def _shares(length: int, bins: int, like: Tensor) -> Tensor:
    """Weights (bins, length) of the mean in each bin, which spans floor(k length / bins) to ceil((k+1) length / bins)."""
    place = torch.arange(length, device=like.device)
    k = torch.arange(bins, device=like.device)[:, None]
    first = torch.div(k * length, bins, rounding_mode="floor")
    end = torch.div((k + 1) * length + bins - 1, bins, rounding_mode="floor")
    inside = ((place >= first) & (place < end)).to(like.dtype)
    return inside / inside.sum(1, keepdim=True)


@contextmanager
def _free_padding() -> Iterator[None]:
    """Let timm's "same" padding compute with whole numbers: its quotient and maximum would make sizes conditions."""
    original = padding.get_same_padding

    def total(x: Any, kernel_size: int, stride: int, dilation: int) -> Any:
        if not isinstance(x, torch.SymInt):
            return original(x, kernel_size, stride, dilation)
        reach = (kernel_size - 1) * dilation + 1
        return ((x + stride - 1) // stride - 1) * stride + reach - x if reach >= stride else 0

    padding.get_same_padding = total
    try:
        yield
    finally:
        padding.get_same_padding = original
