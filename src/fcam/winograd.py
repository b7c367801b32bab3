"""Wide 3x3 convolutions on a CPU in a quarter of the multiplications (Lavin and Gray, CVPR 2016; F(4x4, 3x3)).

Each 4x4 patch of the output is a product, taken element by element, of a transformed 6x6 patch of the input and the
transformed kernel; summed over channels that is one matrix product for each of the 36 places. It pays most where direct
kernels do worst: on the decoder's first layer (3072 channels on ResNet50), a third of the training step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

PATCH, REACH = 4, 6
"""Sides of an output patch, and of the input patch that it depends on."""
PLACES = REACH * REACH
WIDTH = 96
"""Least harmonic width in·out / (in + out) that gains: the transforms cost per channel, the products per pair of them."""
PATCHES_EACH = 36
"""Least patches of one map: patches beyond the edge of a small one are in vain."""
PATCHES = 128
"""Least patches in a batch: with fewer, transforming the kernel costs more than it saves."""
CHUNK_BYTES = 1 << 27
"""Room for the transformed patches of the images that are done at once."""


def _squared(rows: list[list[float]]) -> Tensor:
    """A transform along one axis as the matrix that does it along two."""
    matrix = torch.tensor(rows, dtype=torch.float64)
    return torch.kron(matrix, matrix).float()


# Polynomials that are evaluated at 0, 1, -1, 2, -2 and infinity.
_INPUT = _squared(
    [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ]
)
_KERNEL = _squared(
    [
        [1 / 4, 0, 0],
        [-1 / 6, -1 / 6, -1 / 6],
        [-1 / 6, 1 / 6, -1 / 6],
        [1 / 24, 1 / 12, 1 / 6],
        [1 / 24, -1 / 12, 1 / 6],
        [0, 0, 1],
    ]
)
_OUTPUT = _squared([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]])


def quick_convolutions(images: Tensor) -> AbstractContextManager[Any]:
    """A context in which `torch.conv2d` takes this way where it gains; nothing off the CPU, under autocast or in graphs.

    Results differ from the direct way by rounding: 3e-6 of their size against 1e-6. Which layers take it depends on shapes
    alone, so a run gives the same numbers every time.

    Args:
        images: the batch that will go through the network.
    """
    if (
        not isinstance(images, Tensor)  # which the network will refuse in its own words
        or torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or images.device.type != "cpu"
        or images.dtype != torch.float32
        or not torch.backends.mkl.is_available()  # with another library this has not been measured
    ):
        return nullcontext()
    return _Mode()


class _Mode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return _conv2d(*args, **kwargs) if func is F.conv2d else func(*args, **kwargs)


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    plain = groups == 1 and all(
        value in (one, (one, one), [one, one]) for value, one in ((stride, 1), (padding, 1), (dilation, 1))
    )
    if not (plain and gains(input, weight)) or torch.is_autocast_enabled("cpu"):
        return F.conv2d(input, weight, bias, stride, padding, dilation, groups)
    return cast(Tensor, _Convolution.apply(input, weight, bias))


def gains(images: Tensor, weight: Tensor) -> bool:
    """Whether maps (B, C, H, W) and a kernel are of a kind and size for which this way is quicker."""
    if weight.shape[2:] != (3, 3) or not images.dtype == weight.dtype == torch.float32 or images.dim() != 4:
        return False
    height, width = _patches(images.shape)
    return (
        is_wide(weight)
        and height * width >= PATCHES_EACH
        and len(images) * height * width >= PATCHES
        and images.is_contiguous(memory_format=torch.channels_last)
    )


def is_wide(weight: Tensor) -> bool:
    """Whether a kernel (K, C, 3, 3) has enough channels on both sides."""
    out, into = weight.shape[:2]
    return out * into >= WIDTH * (out + into)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(images, weight)
        return convolve(images, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        images, weight = ctx.saved_tensors
        gradient = grads[0].contiguous(memory_format=torch.channels_last)
        for_images = for_weight = for_bias = None
        if ctx.needs_input_grad[0]:
            for_images = convolve(gradient, weight.flip(2, 3).transpose(0, 1))
        if ctx.needs_input_grad[1]:
            for_weight = weight_gradient(images, gradient)
        if ctx.needs_input_grad[2]:
            for_bias = gradient.sum((0, 2, 3))
        return for_images, for_weight, for_bias


def convolve(images: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.conv2d(images, weight, bias, padding=1)`.

    Args:
        images: (B, C, H, W), channels_last.
        weight: (K, C, 3, 3).
        bias: (K,).

    Returns:
        (B, K, H, W), channels_last.
    """
    batch, _, height, width = images.shape
    out, into = weight.shape[:2]
    rows, columns = _patches(images.shape)
    kernel = (_KERNEL @ weight.permute(2, 3, 0, 1).reshape(9, -1)).view(PLACES, out, into).mT
    result = images.new_empty(batch, rows, PATCH, columns, PATCH, out)
    for some in _chunks(images.shape, out):
        patches = _transformed(images[some])
        found = torch.bmm(patches, kernel).view(PLACES, -1)
        placed = (_OUTPUT @ found).view(PATCH, PATCH, -1, rows, columns, out)
        placed = placed.permute(2, 3, 0, 4, 1, 5)
        if bias is None:
            result[some] = placed
        else:
            torch.add(placed, bias, out=result[some])
    whole = result.view(batch, rows * PATCH, columns * PATCH, out)[:, :height, :width]
    return whole.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)


def weight_gradient(images: Tensor, gradient: Tensor) -> Tensor:
    """Gradient (K, C, 3, 3) for the kernel, from that of the result (B, K, H, W); both tensors channels_last."""
    into, out = images.shape[1], gradient.shape[1]
    height, width = gradient.shape[2:]
    rows, columns = _patches(gradient.shape)
    total = images.new_zeros(PLACES, out, into)
    for some in _chunks(images.shape, out):
        beyond = (0, 0, 0, columns * PATCH - width, 0, rows * PATCH - height)
        padded = F.pad(gradient[some].permute(0, 2, 3, 1), beyond)
        split = padded.reshape(-1, rows, PATCH, columns, PATCH, out).permute(2, 4, 0, 1, 3, 5)
        spread = (_OUTPUT.mT @ split.reshape(PATCH * PATCH, -1)).view(PLACES, -1, out)
        total.baddbmm_(spread.mT, _transformed(images[some]))
    kernel = (_KERNEL.mT @ total.view(PLACES, -1)).view(3, 3, out, into)
    return kernel.permute(2, 3, 0, 1).contiguous(memory_format=torch.channels_last)


def _transformed(images: Tensor) -> Tensor:
    """The transformed 6x6 patches of maps, 4 apart: (36, B · patches, C)."""
    batch, channels, height, width = images.shape
    rows, columns = _patches(images.shape)
    padding = (0, 0, 1, columns * PATCH + 1 - width, 1, rows * PATCH + 1 - height)
    padded = F.pad(images.permute(0, 2, 3, 1), padding)
    image, row, column, channel = padded.stride()
    windows = padded.as_strided(
        (REACH, REACH, batch, rows, columns, channels),
        (row, column, image, PATCH * row, PATCH * column, channel),
    )
    return (_INPUT @ windows.reshape(PLACES, -1)).view(PLACES, -1, channels)


def _patches(shape: torch.Size) -> tuple[int, int]:
    return -(-shape[2] // PATCH), -(-shape[3] // PATCH)


def _chunks(shape: torch.Size, out: int) -> Iterator[slice]:
    """Images to do at once, the batch in equal parts."""
    rows, columns = _patches(shape)
    at_most = max(1, CHUNK_BYTES // (4 * PLACES * rows * columns * max(shape[1], out)))
    count = -(-shape[0] // -(-shape[0] // at_most))
    return (slice(start, start + count) for start in range(0, shape[0], count))
