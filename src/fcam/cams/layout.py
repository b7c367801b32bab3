"""Where height and width are in a feature tensor: channels first, channels last, or a grid of tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

_MOST_PREFIX_TOKENS = 8  # class token, distillation token, registers


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
    shape: tuple[int, ...], image_size: tuple[int, int], grids: Iterable[tuple[int, ...]]
) -> Layout | None:
    """Return the layout of a feature tensor of an image (height, width), None where it has no spatial extent.

    Two dimensions are height and width when one stride explains both. Tokens have as many positions as one
    of the `grids` (h, w) that went before them, the patch embedding's, plus a few prefix tokens.
    """
    if len(shape) == 4:
        if _is_grid(shape[2:], image_size):
            return Layout("NCHW", shape[2], shape[3])
        if _is_grid(shape[1:3], image_size):
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


def _is_grid(grid: tuple[int, ...], image_size: tuple[int, int]) -> bool:
    height, width = grid
    stride = (image_size[0] * image_size[1] / max(1, height * width)) ** 0.5
    if height * width < 2 or stride < 0.99:
        return False
    # Unpadded layers lose a few border positions on either axis, whatever the stride.
    off = max(abs(height - image_size[0] / stride), abs(width - image_size[1] / stride))
    return off <= 1.5 and min(grid) >= 1
