"""Opening photographs as they come: in any mode, orientation or damage, as one RGB image or one sentence."""

from __future__ import annotations

import math
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from fcam.errors import FcamError, cut, shown

LIMIT = "FCAM_MAX_MEGAPIXELS"
"""Environment variable with the limit of one process and all its workers."""


def _max_pixels() -> int:
    text = os.environ.get(LIMIT, "100")
    try:
        pixels = 1e6 * float(text)
    except ValueError:
        pixels = math.nan
    if not 0 < pixels < math.inf:
        raise FcamError(
            f"the environment variable {LIMIT} is {shown(text)}; set it to a number of megapixels, or unset it"
        )
    return math.floor(pixels)


MAX_PIXELS = _max_pixels()
"""Images above this many pixels are refused before they are decoded (300 MB as RGB at the 100 megapixels of the default)."""

_DEPTHS = (8, 10, 12, 14, 16, 24, 32)
_HEIF = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
"""What the photos of phones begin with, which programs are known to call `.jpg`."""
_PROGRAMS = ("EPS", "WMF")
"""Formats that Pillow has other programs draw (Ghostscript): whoever wrote the file writes what they run."""
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_PILLOW_LIMIT = threading.Lock()


class ImageError(FcamError):
    """One file that cannot be used: `path` names it, `reason` says why, the message says both."""

    def __init__(self, message: str, path: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.path = path
        self.reason = reason or str(self)


def open_image(
    path: str | os.PathLike[str], exif: bool = True, max_pixels: int | None = MAX_PIXELS
) -> Image.Image:
    """Open one image file as 8-bit RGB, whatever it is stored as.

    Grey, palette, CMYK and 16-bit images are converted, transparency is laid over white, of an animation or a
    multi-page file the first picture is taken. `exif` turns the picture the way its camera was held; leave it
    off for benchmarks whose boxes were drawn on the stored pixels (TIFF is turned either way). Grey images
    deeper than 8 bits are scaled from the smallest of 8, 10, 12, 14, 16, 24 and 32 bits that holds their
    brightest pixel. Images above `max_pixels` (None: no limit) are refused before decoding. Raises
    `ImageError`, an `FcamError` with `path` and `reason`.
    """
    with _reasons(path), _opened(path, max_pixels) as stored:
        stored.load()
        return to_rgb(_upright(stored) if exif else stored)


def open_mask(path: str | os.PathLike[str], max_pixels: int | None = MAX_PIXELS) -> np.ndarray:
    """Open a mask file as a bool array (h, w): True where the stored grey value is above zero; raises
    `ImageError`.
    """
    with _reasons(path), _opened(path, max_pixels) as stored:
        stored.load()
        grey = stored if stored.mode.startswith(("I", "F")) else stored.convert("L")
        return np.asarray(grey) > 0


def image_size(
    path: str | os.PathLike[str], exif: bool = False, max_pixels: int | None = MAX_PIXELS
) -> tuple[int, int]:
    """Read (width, height) from the header, as `open_image` would return it; raises `ImageError`."""
    with _reasons(path), _opened(path, max_pixels) as stored:
        width, height = stored.size
        if stored.format == "TIFF":  # Pillow turns these itself, some versions before and some while decoding
            (width, height), exif = _listed_size(stored), True
        turned = exif and _orientation(stored) >= 5
        return (height, width) if turned else (width, height)


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image of any mode to 8-bit RGB, by the rules of `open_image`; returns a copy."""
    if image.mode.startswith(("I", "F")):
        return Image.fromarray(_to_eight_bits(np.asarray(image))).convert("RGB")
    if "transparency" in image.info or image.mode in ("RGBA", "RGBa", "LA", "La", "PA"):
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(white, layer).convert("RGB")
    # copy(): the result must outlive the file it was read from
    return image.copy() if image.mode == "RGB" else image.convert("RGB")


def absence(path: str | os.PathLike[str]) -> str:
    """Return why there seems to be nothing at `path`: nothing, or a folder that may not be looked into."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        return (error.strerror or str(error)).lower()
    web = os.fspath(path).startswith(("http:/", "https:/"))
    return "it is a web address; download the file first" if web else "it does not exist"


@contextmanager
def _reasons(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn whatever reading `path` raises into an `ImageError` with the reason in plain words."""
    try:
        yield
    except ImageError:
        raise
    except FileNotFoundError as error:
        raise _refusal(path, absence(path)) from error
    except IsADirectoryError as error:
        raise _refusal(path, "it is a folder, not an image file") from error
    except PermissionError as error:
        raise _refusal(path, "there is no permission to read it") from error
    except UnidentifiedImageError as error:
        raise _refusal(path, _unknown(path)) from error
    except MemoryError as error:
        raise _refusal(path, "there is not enough memory to decode it") from error
    # Decoders raise SyntaxError, struct.error, zlib.error and more on damaged files; all mean the same to a
    # user.
    except Exception as error:
        raise _refusal(path, _damage(error)) from error


def _unknown(path: str | os.PathLike[str]) -> str:
    """Say what a file is that Pillow does not know, where its first bytes tell, since its name may not."""
    with open(path, "rb") as file:
        head = file.read(64)
    if head[4:8] == b"ftyp" and head[8:12] in _HEIF:
        return "HEIC files cannot be read, whatever they are called; convert it to JPEG or PNG"
    if head.startswith(b"version https://git-lfs"):
        return "it is a pointer to a file that Git LFS keeps; fetch the file with git lfs pull"
    return "it is not an image of a known format"


def _damage(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return (
            error.strerror.lower()
        )  # the system's word, on a loop of links for one; decoders have no such number
    detail = cut(str(error).strip().split("\n")[0]) or type(error).__name__
    return "it is truncated" if "truncated" in detail.lower() else f"it is damaged ({detail})"


def _refusal(path: str | os.PathLike[str], reason: str) -> ImageError:
    return ImageError(f"cannot read image {os.fspath(path)}: {reason}", os.fspath(path), reason)


@contextmanager
def _opened(path: str | os.PathLike[str], max_pixels: int | None) -> Iterator[Image.Image]:
    """Yield the image with only its header read, after the size has been judged."""
    status = os.stat(path)
    # Opening a pipe would wait for its writer, and a device has no end.
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise _refusal(path, "it is not a regular file")
    with open(path, "rb") as file:
        if status.st_size == 0:
            raise _refusal(path, "the file is empty")
        # Pillow's own limit is one global for the process and only warns at first: ours replaces it for this
        # call.
        with _PILLOW_LIMIT:
            limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
            try:
                image = Image.open(file)
            finally:
                Image.MAX_IMAGE_PIXELS = limit
        with image:
            if image.format in _PROGRAMS:
                raise _refusal(path, f"{image.format} is a page description, not a photo; convert it to PNG")
            if image.format == "TIFF" and _misread(image):
                raise _refusal(
                    path, "its colours are stored apart in more than 8 bits, uncompressed; convert it to PNG"
                )
            pixels = image.width * image.height
            if max_pixels is not None and pixels > max_pixels:
                raise _refusal(
                    path,
                    f"it is {image.width}x{image.height} = {pixels} pixels, above the limit of {max_pixels}; "
                    f"raise --max-megapixels (in Python max_pixels; for data sets {LIMIT} in the environment) "
                    "if you trust the file",
                )
            yield image


def _misread(image: Any) -> bool:
    """Whether Pillow takes each half of a TIFF's 16-bit numbers for a pixel: only where channels lie apart, uncompressed."""
    tags = image.tag_v2
    return tags.get(284) == 2 and tags.get(259, 1) == 1 and max(tags.get(258, (1,))) > 8


def _listed_size(image: Any) -> tuple[int, int]:
    """Return the width and height that a TIFF lists, whatever its orientation."""
    return image.tag_v2[256], image.tag_v2[257]


def _orientation(image: Image.Image) -> int:
    """Return the way the camera was held, 1 to 8 as EXIF counts; 1, upright, where the file does not say."""
    try:
        value = image.getexif().get(0x0112, 1)
    # A camera's broken EXIF block is no reason to lose its picture.
    except Exception:
        return 1
    return value if value in _TURNS else 1


def _upright(image: Image.Image) -> Image.Image:
    turn = _TURNS.get(_orientation(image))
    return image if turn is None else image.transpose(turn)


def _to_eight_bits(grey: np.ndarray) -> np.ndarray:
    """Scale a deep grey image (h, w) to uint8: integers from their bit depth, floats from [0, 1], [0, 255] or
    their range.
    """
    values = np.nan_to_num(grey.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(values.min()), float(values.max())
    if low < 0:
        values, top = values - low, max(high - low, 1e-12)
    elif grey.dtype.kind == "f":
        top = 1.0 if high <= 1 else 255.0 if high <= 255 else high
    else:
        top = float(next(2**bits - 1 for bits in _DEPTHS if high < 2**bits))
    return np.rint(values * (255.0 / top)).astype(np.uint8)
