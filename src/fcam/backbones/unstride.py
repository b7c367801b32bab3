"""Removing the deepest strides of a network, without dilation, as the WSOL backbones do."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from timm.layers.blur_pool import BlurPool2d
from timm.layers.conv2d_same import Conv2dSame
from timm.layers.pool2d_same import AvgPool2dSame, MaxPool2dSame
from torch import Tensor, nn

from fcam.cams.forward import evaluating
from fcam.errors import FcamError

PROBE_SIDE = 256
STRIDED = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d, BlurPool2d)

Features = Callable[[Tensor], list[Tensor]]


@dataclass(frozen=True)
class Step:
    """One down-sampling layer met on the way: its name, and the strides of its input and output."""

    name: str
    before: int
    after: int


def nominal_strides(maps: list[Tensor], side: int) -> tuple[int, ...]:
    """The powers of two nearest to input side over map side (unpadded convolutions lose a few pixels)."""
    return tuple(2 ** round(math.log2(side / m.shape[-1])) for m in maps)


def unstride(name: str, net: nn.Module, features: Features, output_stride: int) -> list[Tensor]:
    """Set the deepest strides of `net` to 1 until the last map of `features` has `output_stride`.

    All layers that go from one resolution to the next (main path, shortcut, pooling, blur) change together,
    their weights are kept and nothing is dilated. Returns the maps of a blank image of PROBE_SIDE pixels.
    Raises `FcamError` naming the strides that can be reached.
    """
    maps, steps = _probe(net, features)
    native = current = nominal_strides(maps, PROBE_SIDE)[-1]
    if output_stride < 1 or output_stride & (output_stride - 1) or output_stride > native:
        raise FcamError(
            f"{name} cannot have output stride {output_stride}; choose a power of two up to {native}, its own"
        )
    while current > output_stride:
        deepest = [s for s in steps if s.after == current and s.before * 2 == current]
        undo = [_remove_stride(net, step.name) for step in deepest]
        try:
            maps, steps = _probe(net, features)
            reached = nominal_strides(maps, PROBE_SIDE)[-1]
        except Exception:  # branches that no longer agree in size fail in whatever way the network likes
            reached = current
        if reached >= current:
            for restore in undo:
                restore()
            possible = [str(2**i) for i in range(int(math.log2(native)) + 1) if 2**i >= current]
            raise FcamError(
                f"{name} cannot go below output stride {current}: its next stride is in no layer that can be "
                f"changed; choose output_stride {' or '.join(possible)}, or another network"
            )
        current = reached
    return maps


def _probe(net: nn.Module, features: Features) -> tuple[list[Tensor], list[Step]]:
    """Run a blank image through `features`; return its maps and the strided layers in order of execution."""
    steps: list[Step] = []

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            before, after = nominal_strides([inputs[0], output], PROBE_SIDE)
            steps.append(Step(name, before, after))

        return hook

    layers = [(n, m) for n, m in net.named_modules() if isinstance(m, STRIDED) and _is_strided(m)]
    hooks = [layer.register_forward_hook(watch(name)) for name, layer in layers]
    try:
        with torch.no_grad(), evaluating(net):
            return features(torch.zeros(1, 3, PROBE_SIDE, PROBE_SIDE)), steps
    finally:
        for hook in hooks:
            hook.remove()


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _is_strided(layer: Any) -> bool:
    vertical, horizontal = _pair(layer.stride)
    return vertical == horizontal > 1


def _remove_stride(net: nn.Module, name: str) -> Callable[[], None]:
    """Take the stride out of one layer; return a function that puts the old layer back."""
    parent = net.get_submodule(name.rpartition(".")[0])
    attribute = name.rpartition(".")[2]
    layer: Any = net.get_submodule(name)
    old = layer.stride
    if (replacement := _same_size(layer)) is None:
        layer.stride = (1, 1) if isinstance(old, tuple) else 1
    else:
        setattr(parent, attribute, replacement)

    def restore() -> None:
        layer.stride = old
        setattr(parent, attribute, layer)

    return restore


def _same_size(layer: Any) -> nn.Module | None:
    """What must replace `layer` for stride 1 to keep the size; None when the layer itself will do."""
    if isinstance(layer, (BlurPool2d, Conv2dSame, MaxPool2dSame, AvgPool2dSame)):
        return None
    kernel = _pair(layer.kernel_size)
    if isinstance(layer, nn.Conv2d):
        # An odd kernel is padded alike on both sides or not at all, which stride 1 does not change; an even
        # one needs a pixel more on one side.
        return None if kernel[0] % 2 else _padded_copy(layer)
    if kernel == _pair(layer.stride) and _pair(layer.padding) == (0, 0):
        return (
            nn.Identity()
        )  # windows that do not overlap: nothing is left of the pooling, as in WSOL's VGG16
    return None


def _padded_copy(conv: nn.Conv2d) -> nn.Conv2d:
    """A convolution with `conv`'s own weights that pads as much as its kernel needs at stride 1."""
    shape: Any = {"kernel_size": conv.kernel_size, "dilation": conv.dilation, "groups": conv.groups}
    with torch.device("meta"):
        copy: Any = Conv2dSame(conv.in_channels, conv.out_channels, bias=conv.bias is not None, **shape)
    copy.weight = conv.weight
    copy.bias = conv.bias
    return copy
