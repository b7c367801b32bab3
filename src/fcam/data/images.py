"""Opening photographs as they come: in any mode, orientation or damage, as one RGB image or one sentence."""

from __future__ import annotations

import glob
import math
import os
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

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

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".avif"}
    | {".ppm", ".pgm", ".pbm", ".pnm"}
)
"""Suffixes, in lower case, by which a file found in a folder counts as an image."""

RESULTS = "predictions.json"
"""What `fcam predict` leaves in its folder, beside ..."""
RESULT_FOLDERS = ("overlays", "masks", "heatmaps", "maps", "panels", "SegmentationClass")
"""... folders of files that look like photos or masks of somebody else's; the last is made by --export."""

_UNREAD = {".heic", ".heif", ".jxl", ".jp2", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf"}
"""What cameras and phones write and Pillow does not read, or not without more packages."""

_DEPTHS = (8, 10, 12, 14, 16, 24, 32)
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


class Problem(NamedTuple):
    """A path that was asked for and cannot be used, and why."""

    path: str
    reason: str


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


def find_images(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> tuple[list[Path], list[Problem]]:
    """List the image files that files, folders and glob patterns stand for, and what could not be followed.

    A named file is taken whatever its suffix, and so are the files a pattern with a suffix finds (`*.dat`).
    Folders are searched recursively for `SUFFIXES` in any case; hidden files and the pictures that a prediction
    left there (`RESULT_FOLDERS` beside a `RESULTS`) are passed over, and photos in a camera's format that cannot be
    read are a problem each, unless one that can lies beside them under the same name. Order is that
    of the arguments, sorted by path within each; a file is listed once.
    """
    found: dict[Path, None] = {}
    problems: list[Problem] = []
    for item in [paths] if isinstance(paths, str | os.PathLike) else paths:
        path = Path(item)
        if os.path.isdir(path):
            found.update(dict.fromkeys(_search(path, problems)))
        elif os.path.lexists(path):
            found[path] = None
        elif glob.has_magic(str(path)):
            found.update(dict.fromkeys(_matches(path, problems)))
        else:
            problems.append(Problem(str(item), _absence(path)))
    return list(found), problems


def _absence(path: str | os.PathLike[str]) -> str:
    """Return why there seems to be nothing at `path`: nothing, or a folder that may not be looked into."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        return (error.strerror or str(error)).lower()
    web = os.fspath(path).startswith(("http:/", "https:/"))
    return "it is a web address; download the file first" if web else "it does not exist"


def files_below(folder: Path, problems: list[Problem] | None = None) -> list[Path]:
    """List the image files below `folder`, sorted by path; folders that cannot be read go to `problems`.

    Links to folders are followed, each target once, and none that leads back to a folder above it.
    """

    def refused(error: OSError) -> None:
        if problems is not None:
            problems.append(Problem(str(error.filename), (error.strerror or str(error)).lower()))

    found: list[Path] = []
    linked: set[str] = set()

    def entered(parent: str, name: str) -> bool:
        path = os.path.join(parent, name)
        if not os.path.islink(path):
            return True
        target = os.path.realpath(path)
        above = f"{os.path.realpath(parent)}{os.sep}".startswith(f"{target.rstrip(os.sep)}{os.sep}")
        new = not above and target not in linked
        linked.add(target)
        return new

    for parent, folders, names in os.walk(folder, onerror=refused, followlinks=True):
        drawn = RESULT_FOLDERS if RESULTS in names else ()
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and name not in drawn and entered(parent, name)
        )
        found += [
            Path(parent, name)
            for name in names
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES
        ]
    return sorted(found, key=lambda path: path.as_posix())


def unread_below(folder: Path, read: Iterable[Path]) -> list[Path]:
    """Return the photos below a folder, sorted, that no library here opens, such as HEIC and raw files.

    A raw file beside its JPEG is the same photo: those named like one of the images `read` are not listed.
    """
    stems = {path.with_suffix("") for path in read}
    found = (path for path in folder.rglob("[!.]*") if path.suffix.lower() in _UNREAD)
    return sorted(path for path in found if path.with_suffix("") not in stems)


def _matches(pattern: Path, problems: list[Problem]) -> list[Path]:
    matches = [Path(match) for match in sorted(glob.glob(str(pattern), recursive=True))]
    found = []
    for match in matches:
        if not match.is_dir():
            if pattern.suffix or match.suffix.lower() in SUFFIXES:
                found.append(match)
        elif "**" not in pattern.parts:
            found += files_below(match, problems)
    if not found:
        problems.append(Problem(str(pattern), "no image file matches this pattern"))
    return found


def _search(folder: Path, problems: list[Problem]) -> list[Path]:
    before = len(problems)
    found = files_below(folder, problems)
    unread = unread_below(folder, found)
    if found:
        problems += [
            Problem(str(path), f"{path.suffix[1:].upper()} files cannot be read; convert it to JPEG or PNG")
            for path in unread
        ]
    elif len(problems) == before:
        such = (
            f" that can be read, only such as {unread[0].name}; convert them to JPEG or PNG" if unread else ""
        )
        problems.append(Problem(str(folder), f"the folder holds no image file{such}"))
    return found


@contextmanager
def _reasons(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn whatever reading `path` raises into an `ImageError` with the reason in plain words."""
    try:
        yield
    except ImageError:
        raise
    except FileNotFoundError as error:
        raise _refusal(path, _absence(path)) from error
    except IsADirectoryError as error:
        raise _refusal(path, "it is a folder, not an image file") from error
    except PermissionError as error:
        raise _refusal(path, "there is no permission to read it") from error
    except UnidentifiedImageError as error:
        raise _refusal(path, "it is not an image of a known format") from error
    except MemoryError as error:
        raise _refusal(path, "there is not enough memory to decode it") from error
    # Decoders raise SyntaxError, struct.error, zlib.error and more on damaged files; all mean the same to a
    # user.
    except Exception as error:
        raise _refusal(path, _damage(error)) from error


def _damage(error: Exception) -> str:
    if (
        isinstance(error, OSError) and error.strerror
    ):  # of the system, such as a loop of links, and not of a decoder
        return error.strerror.lower()
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
            pixels = image.width * image.height
            if max_pixels is not None and pixels > max_pixels:
                raise _refusal(
                    path,
                    f"it is {image.width}x{image.height} = {pixels} pixels, above the limit of {max_pixels}; "
                    f"raise --max-megapixels (in Python max_pixels; for data sets {LIMIT} in the environment) "
                    "if you trust the file",
                )
            yield image


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
