"""Where height and width are in a feature tensor: channels first, channels last, or a grid of tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

_MOST_PREFIX_TOKENS = 8  # class token, distillation token, registers
_FIRST = {
    "conv2d",
    "conv_transpose2d",
    "batch_norm",
    "group_norm",
    "instance_norm",
    "interpolate",
    "max_pool2d",
}
_FIRST |= {"avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d", "pixel_shuffle", "pixel_unshuffle"}
_LAST = {"layer_norm", "rms_norm", "linear"}
_MOVED = {"movedim", "moveaxis", "swapaxes", "swapdims"}


@dataclass(frozen=True)
class Layout:
    """`kind` is "NCHW", "NHWC" or "tokens" (B, prefix + h w, C)."""

    kind: str
    height: int
    width: int
    prefix: int = 0

    def to_map(self, tensor: Tensor) -> Tensor:
        """Return `tensor` as (B, C, h, w)."""
        if self.kind == "NCHW":
            return tensor
        if self.kind == "NHWC":
            return tensor.permute(0, 3, 1, 2)
        return tensor[:, self.prefix :].transpose(1, 2).unflatten(2, (self.height, self.width))


def find_layout(
    shape: tuple[int, ...], image_size: tuple[int, int], grids: Iterable[tuple[int, ...]], channels: int = 0
) -> Layout | None:
    """Return the layout of a feature tensor of an image (height, width), None where it has no spatial extent.

    Two dimensions are height and width when one stride explains both. Where that leaves two readings, as of
    (B, 32, 32, 32), `channels` decides, the axis found by `channels_axis`. Tokens have as many positions as one
    of the `grids` (h, w) that went before them, the patch embedding's, plus a few prefix tokens.
    """
    if len(shape) == 4:
        first, last = _is_grid(shape[2:], image_size), _is_grid(shape[1:3], image_size)
        if first and not (last and channels == 3):
            return Layout("NCHW", shape[2], shape[3])
        if last:
            return Layout("NHWC", shape[1], shape[2])
    if len(shape) == 3:
        fits = [
            (shape[1] - height * width, height, width)
            for height, width in grids
            if _is_grid((height, width), image_size) and height * width != shape[2]
        ]
        for prefix, height, width in sorted(fits):
            if 0 <= prefix <= _MOST_PREFIX_TOKENS:
                return Layout("tokens", height, width, prefix)
    return None


def channels_axis(
    function: str, args: tuple[Any, ...], shape: tuple[int, ...], parents: list[tuple[tuple[int, ...], int]]
) -> int:
    """Return which axis of a result (B, ., ., .) holds channels, 1 or 3, by the torch call that made it; 0 if unknown.

    `parents` are shape and axis of the tensors that it was made of.
    """
    if len(shape) != 4 or function in _MOVED:
        return 0
    if function in _FIRST:
        return 1
    known = [axis for own, axis in parents if len(own) == 4 and axis]
    if function in _LAST:
        return known[0] if known else 3
    if function in ("permute", "transpose"):
        order = _order(function, args[1:])
        return order.index(known[0]) if known and known[0] in order else 0
    if not known and function in ("reshape", "view", "unflatten"):
        a, b, c = shape[1:]
        if any(own[1:] == (a * b, c) for own, _ in parents):
            return 3
        return 1 if any(own[1:] == (a, b * c) for own, _ in parents) else 0
    return known[0] if known and any(own == shape for own, _ in parents) else 0


def _order(function: str, dims: tuple[Any, ...]) -> list[int]:
    """Where the four axes of a permuted or transposed tensor come from; empty where that is not said by position."""
    dims = tuple(dims[0]) if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
    if len(dims) != (4 if function == "permute" else 2):
        return []
    axes = [int(dim) % 4 for dim in dims]
    if function == "permute":
        return axes
    order = [0, 1, 2, 3]
    order[axes[0]], order[axes[1]] = axes[1], axes[0]
    return order


def _is_grid(grid: tuple[int, ...], image_size: tuple[int, int]) -> bool:
    height, width = grid
    stride = (image_size[0] * image_size[1] / max(1, height * width)) ** 0.5
    if height * width < 2 or stride < 0.99:
        return False
    # Unpadded layers lose a few border positions on either axis, whatever the stride.
    off = max(abs(height - image_size[0] / stride), abs(width - image_size[1] / stride))
    return off <= 1.5 and min(grid) >= 1
