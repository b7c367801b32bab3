"""The convolution that reads a doubled map, worked out on the map itself: four ninths of the multiplications.

After nearest doubling, three neighbouring pixels of a row are copies of two. A 3x3 kernel on the doubled map is therefore a 2x2
kernel on the map, another one for each of the four places in a doubled pixel, whose entries are sums of the 3x3 kernel's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fcam import winograd


class UpsampledConv2d(nn.Conv2d):
    """3x3 convolution, padded by one pixel, of a map doubled by repetition with another map appended: a decoder block's first.

    Both ways of working it out give the same numbers up to rounding. The quick one is for float32 on a CPU, where it was
    measured (`benchmarks/convolutions.py`), and for exact doubling; shapes and modes alone decide which is taken.
    """

    def __init__(self, in_channels: int, out_channels: int, bias: bool = False) -> None:
        super().__init__(in_channels, out_channels, kernel_size=3, padding=1, bias=bias)

    def forward(self, x: Tensor, skip: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """Map x (B, C, h, w) and skip (B, S, H, W), of which C + S = in_channels, to (B, out_channels, H, W).

        Where H x W is not the doubled size, the doubled map is resampled to it (bilinear, align_corners); without `skip` the
        result has the doubled size.
        """
        if skip is not None and same_size(x.shape[-2:], skip.shape[-2:]):
            # Doubling each pixel and sampling back to the old size with corners aligned gives the old map:
            # sample i falls between the two copies of pixel i. So nothing is done when the sizes agree.
            return self._both(x, skip)
        if self._gains(x, skip):
            return self._on_the_map(x, skip)
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        return super().forward(x) if skip is None else self._both(fit(x, skip.shape[-2:]), skip)

    def _both(self, x: Tensor, skip: Tensor) -> Tensor:
        """The convolution of two maps of one size, the second appended to the first."""
        if not self._gains_apart(x, skip):
            return super().forward(torch.cat((x, skip), dim=1))
        own, others = self.weight.split([x.shape[1], skip.shape[1]], dim=1)
        return self._conv_forward(x, own, self.bias) + self._conv_forward(skip, others, None)

    def _gains_apart(self, x: Tensor, skip: Tensor) -> bool:
        """Whether a gradient is wanted of the decoder's map and none of the classifier's, under autocast on a CPU.

        Convolved apart, none is worked out, and the maps are not copied together and their gradients apart again. In
        float32 Winograd's way gains more, on both together.
        """
        wanted = torch.is_grad_enabled() and x.requires_grad and not skip.requires_grad
        return wanted and x.device.type == "cpu" and torch.is_autocast_enabled("cpu")

    def _gains(self, x: Tensor, skip: Tensor | None) -> bool:
        return (
            not (torch.compiler.is_compiling() or torch.jit.is_tracing())
            and x.device.type == "cpu"
            and x.dtype == self.weight.dtype == torch.float32
            and not torch.is_autocast_enabled("cpu")
            and x.is_contiguous(memory_format=torch.channels_last)
            and (skip is None or same_size(skip.shape[-2:], [2 * side for side in x.shape[-2:]]))
            # Gradients of wide kernels are quicker by Winograd's way, which wants the doubled map.
            and not (torch.is_grad_enabled() and winograd.is_wide(self.weight))
        )

    def _on_the_map(self, x: Tensor, skip: Tensor | None) -> Tensor:
        channels = x.shape[1]
        bias = None if self.bias is None else self.bias.repeat(4)
        kernels = place_kernels(self.weight[:, :channels])
        places = F.conv2d(x, kernels, bias, padding=1)
        doubled = cast(Tensor, _Interleave.apply(places)) if places.requires_grad else interleave(places)
        if skip is None:
            return doubled
        weight = self.weight[:, channels:].contiguous(memory_format=torch.channels_last)
        return F.conv2d(skip, weight, padding=1) + doubled


def place_kernels(weight: Tensor) -> Tensor:
    """The 2x2 kernels (4·K, C, 2, 2) of a 3x3 one (K, C, 3, 3), for places (0, 0), (0, 1), (1, 0), (1, 1) in a doubled pixel.

    Along one axis place 0 sees the pixel before it once and its own twice, place 1 its own twice and the next one once.
    """

    def along(axis: int, of: Tensor) -> tuple[Tensor, Tensor]:
        before, own, after = of.unbind(axis)
        return torch.stack((before, own + after), axis), torch.stack((before + own, after), axis)

    kernels = [kernel for rows in along(2, weight) for kernel in along(3, rows)]
    return torch.cat(kernels).contiguous(memory_format=torch.channels_last)


def interleave(places: Tensor) -> Tensor:
    """Put the four places of each pixel beside each other: (B, 4·K, h + 1, w + 1) to (B, K, 2h, 2w), channels_last.

    A 2x2 kernel on a map padded by one pixel gives one row and one column more than the map has: place 0 is without the last
    ones, place 1 without the first.
    """
    batch, channels, height, width = places.shape
    height, width, channels = height - 1, width - 1, channels // 4
    found = places.permute(0, 2, 3, 1).reshape(batch, height + 1, width + 1, 2, 2, channels)
    doubled = places.new_empty(batch, height, 2, width, 2, channels)
    for row in (0, 1):
        for column in (0, 1):
            doubled[:, :, row, :, column] = found[:, row : row + height, column : column + width, row, column]
    return doubled.view(batch, 2 * height, 2 * width, channels).permute(0, 3, 1, 2)


def take_apart(doubled: Tensor) -> Tensor:
    """The transpose of `interleave`: (B, K, 2h, 2w) to (B, 4·K, h + 1, w + 1), zero where nothing came from, channels_last."""
    batch, channels, height, width = doubled.shape
    height, width = height // 2, width // 2
    found = doubled.permute(0, 2, 3, 1).reshape(batch, height, 2, width, 2, channels)
    places = doubled.new_zeros(batch, height + 1, width + 1, 2, 2, channels)
    for row in (0, 1):
        for column in (0, 1):
            places[:, row : row + height, column : column + width, row, column] = found[:, :, row, :, column]
    return places.view(batch, height + 1, width + 1, 4 * channels).permute(0, 3, 1, 2)


class _Interleave(torch.autograd.Function):
    """`interleave` with a gradient in one pass instead of one for each place."""

    @staticmethod
    def forward(ctx: Any, places: Tensor) -> Tensor:
        return interleave(places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return take_apart(grads[0])


def fit(x: Tensor, size: Sequence[int]) -> Tensor:
    """Resample maps (B, C, h, w) to `size` = (H, W), bilinear with the corners aligned; as they are where the sizes agree."""
    if same_size(x.shape[-2:], size):
        return x
    return F.interpolate(x, size=tuple(size), mode="bilinear", align_corners=True)


def same_size(first: Sequence[int], second: Sequence[int]) -> bool:
    """Whether two sizes agree; symbols, in a graph of any size, only where they do for every size."""
    for a, b in zip(first, second, strict=True):
        if isinstance(a, torch.SymInt) or isinstance(b, torch.SymInt):
            from torch.fx.experimental.symbolic_shapes import statically_known_true

            if not statically_known_true(a == b):
                return False
        elif a != b:
            return False
    return True
