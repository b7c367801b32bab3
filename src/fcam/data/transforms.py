"""Geometry that moves an image, its boxes and its masks together: resize, crop, flip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fcam.errors import FcamError


class Geometry(NamedTuple):
    """Resize to `size` (w, h), cut `crop` (x, y, w, h) out of that, then mirror left and right if `flip`."""

    size: tuple[int, int]
    crop: tuple[int, int, int, int]
    flip: bool = False

    def image(self, image: Image.Image) -> Tensor:
        """Move a PIL RGB image; returns uint8 (3, h, w). Resizing is Pillow's antialiased bilinear filter."""
        if image.size != self.size:
            image = image.resize(self.size, Image.Resampling.BILINEAR)
        pixels = self._cut(np.asarray(image)).transpose(2, 0, 1)
        return torch.from_numpy(np.array(pixels, order="C"))

    def mask(self, mask: np.ndarray) -> np.ndarray:
        """Move a mask (h, w) of any dtype by nearest neighbour: output pixel i reads input pixel floor(i *
        scale).
        """
        height, width = mask.shape
        rows, columns = nearest_indices(height, self.size[1]), nearest_indices(width, self.size[0])
        x, y, w, h = self.crop
        moved = mask[rows[y : y + h, None], columns[None, x : x + w]]
        return moved[:, ::-1] if self.flip else moved

    def boxes(self, boxes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Move boxes (n, 4) x0, y0, x1, y1 given in pixels of an image of `size` (w, h); returns int64 (m,
        4).

        Each coordinate is scaled and truncated, as the WSOL benchmark does. Cropping shifts and clips them
        and leaves out boxes that lie outside the crop, mirroring maps x to w - x.
        """
        scale = np.array(self.size * 2, dtype=np.float64), np.array(size * 2, dtype=np.float64)
        moved = np.trunc(boxes.reshape(-1, 4) * scale[0] / scale[1]).astype(np.int64)
        x, y, w, h = self.crop
        if (x, y, w, h) != (0, 0, *self.size):
            moved = moved - np.array([x, y, x, y])
            inside = (moved[:, :2] < [w, h]).all(1) & (moved[:, 2:] > 0).all(1)
            moved = np.clip(moved[inside], 0, [w, h, w, h])
        if self.flip:
            moved = np.stack([w - moved[:, 2], moved[:, 1], w - moved[:, 0], moved[:, 3]], axis=1)
        return moved

    def _cut(self, pixels: np.ndarray) -> np.ndarray:
        x, y, w, h = self.crop
        pixels = pixels[y : y + h, x : x + w]
        return pixels[:, ::-1] if self.flip else pixels


class Transform(Protocol):
    """Anything that chooses a `Geometry` for an image of `size` (w, h) with the given random numbers."""

    def geometry(self, size: tuple[int, int], rng: np.random.Generator) -> Geometry: ...


@dataclass(frozen=True)
class TrainTransform:
    """Resize to `resize` x `resize` whatever the shape, cut a random `crop` x `crop`, mirror half of the
    images.

    The training geometry of the paper's experiments (256, 224). Raises `FcamError` when the crop does not
    fit.
    """

    resize: int = 256
    crop: int = 224
    flip: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.crop <= self.resize:
            raise FcamError(
                f"a crop of {self.crop} does not fit into images resized to {self.resize}; "
                "choose 1 <= crop <= resize"
            )

    def geometry(self, size: tuple[int, int], rng: np.random.Generator) -> Geometry:
        """Draw row, column and mirroring from `rng`; `size` does not matter."""
        y, x = (int(offset) for offset in rng.integers(0, self.resize - self.crop + 1, size=2))
        flip = bool(rng.random() < 0.5)
        return Geometry((self.resize, self.resize), (x, y, self.crop, self.crop), flip and self.flip)


@dataclass(frozen=True)
class EvalTransform:
    """Resize to `size` x `size` whatever the shape: no crop, nothing random."""

    size: int = 224

    def __post_init__(self) -> None:
        if self.size < 1:
            raise FcamError(f"images cannot be resized to {self.size} pixels; choose a size of at least 1")

    def geometry(self, size: tuple[int, int], rng: np.random.Generator) -> Geometry:
        """Return the one geometry of this transform."""
        return Geometry((self.size, self.size), (0, 0, self.size, self.size))


def identity(size: tuple[int, int]) -> Geometry:
    """Return the geometry that leaves an image of `size` (w, h) as it is."""
    return Geometry(size, (0, 0, *size))


def nearest_indices(source: int, target: int) -> np.ndarray:
    """Return for each of `target` output pixels the index of the input pixel, of `source`, that it reads.

    floor(i * scale) with the scale rounded twice as OpenCV's INTER_NEAREST does: the benchmark's masks are
    resized by it, and exact division differs for some sizes.
    """
    scale = 1.0 / (target / source)
    return np.minimum(np.floor(np.arange(target) * scale).astype(np.int64), source - 1)
