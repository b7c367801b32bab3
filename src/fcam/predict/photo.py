"""What is taken for a photo in Python: paths, PIL images, uint8 arrays and tensors."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fcam.data.images import to_rgb
from fcam.errors import FcamError

Photo = str | os.PathLike[str] | Image.Image | NDArray[np.uint8] | Tensor


def is_one(photos: object) -> bool:
    """Whether this is one photo, or what was taken for one, and not several: the bytes of a file are no list of numbers."""
    if isinstance(photos, np.ndarray):
        return photos.ndim < 4 and photos.dtype.kind not in "OU"  # a table's column of paths is several
    if isinstance(photos, Tensor):
        return photos.ndim < 4
    return isinstance(
        photos, str | os.PathLike | Image.Image | bytes | bytearray | memoryview | io.IOBase | dict
    )


def as_image(photo: Image.Image | NDArray[Any] | Tensor) -> Image.Image:
    """Turn a PIL image, uint8 array (H, W[, 1|3|4]) or uint8 tensor ([1|3|4,] H, W) into an RGB image.

    Alpha goes over white. A PIL image is taken as it is, whatever its EXIF tag says: boxes refer to the
    pixels that were passed. Raises `FcamError` for another dtype or shape.
    """
    if isinstance(photo, Image.Image):
        if 0 in photo.size:
            raise FcamError(
                f"this {type(photo).__name__} has no pixels, its size is {photo.size}; pass a photo"
            )
        try:
            return to_rgb(photo)
        except (OSError, SyntaxError, ValueError) as error:  # files are decoded late
            raise FcamError(
                f"this {type(photo).__name__} cannot be decoded ({error}); open it again"
            ) from error
    if not isinstance(photo, np.ndarray | Tensor):
        raise FcamError(
            f"a photo is a path, a PIL image, a uint8 array or a uint8 tensor, got {type(photo).__name__}; "
            "open bytes and files with PIL.Image.open"
        )
    kind = "tensor (channels, H, W)" if isinstance(photo, Tensor) else "array (H, W, channels)"
    array = photo.detach().cpu().numpy() if isinstance(photo, Tensor) else np.asarray(photo)
    if isinstance(photo, Tensor) and array.ndim == 3:
        array = array.transpose(1, 2, 0)
    if array.dtype != np.uint8:
        raise FcamError(f"a photo as {kind} must be uint8, 0 to 255, got {array.dtype}; scale and convert it")
    channels = array.shape[2] if array.ndim == 3 else 1
    if array.ndim not in (2, 3) or channels not in (1, 3, 4) or 0 in array.shape:
        raise FcamError(f"a photo as {kind} needs 1, 3 or 4 channels, got shape {tuple(photo.shape)}")
    array = array.reshape(array.shape[:2]) if channels == 1 else array
    return to_rgb(Image.fromarray(np.ascontiguousarray(array)))
