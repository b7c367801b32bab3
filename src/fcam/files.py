"""Writing files whole or not at all: a temporary name in the same folder, then one rename."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fcam.errors import FcamError


@contextmanager
def write_atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path that becomes `path` when the block ends well, and vanishes when it does not.

    Missing parent folders are made. The temporary name keeps the suffix, since image writers choose their
    format by it. Raises `FcamError` when the folder cannot be made or written to.
    """
    path = Path(path)
    temporary = path.with_name(f".{uuid.uuid4().hex[:12]}{path.suffix}")
    try:
        if path.is_dir():
            raise FcamError(f"cannot write {path}: it is a folder; name a file in it")
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    except (FileExistsError, NotADirectoryError) as error:
        raise FcamError(
            f"cannot write {path}: a file stands where a folder belongs; choose another path, or move that file away"
        ) from error
    except OSError as error:
        raise FcamError(
            f"cannot write {path}: {error.strerror or error}; "
            "check that the folder is writable and the disk has room, then run the same command again"
        ) from error
    finally:
        with contextlib.suppress(OSError):  # a clean-up that fails must not hide the reason
            temporary.unlink(missing_ok=True)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise the `FcamError` with which `write_atomic` would end, before the work whose result it is to hold."""
    with contextlib.suppress(_TriedError), write_atomic(path) as temporary:
        temporary.touch()
        raise _TriedError


class _TriedError(Exception):
    """Leaves a block of `write_atomic` without a file."""


def remove_leftovers(folder: str | os.PathLike[str]) -> None:
    """Remove the temporary files below `folder` that a killed process left in the middle of `write_atomic`."""
    for file in Path(folder).rglob(".*"):
        if re.fullmatch(r"\.[0-9a-f]{12}(\.\w+)?", file.name) and file.is_file():
            with contextlib.suppress(OSError):
                file.unlink()


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to `path`, whole or not at all."""
    with write_atomic(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    r"""Write `text` as UTF-8 to `path`, whole or not at all; bytes of file names that are none stand as `\udcff`."""
    write_bytes(path, utf8(text))


def utf8(text: str) -> bytes:
    r"""Encode a text that may hold names of files, whose bytes need not be UTF-8; those stand as `\udcff`."""
    return text.encode("utf-8", "backslashreplace")


def write_image(path: str | os.PathLike[str], image: Image.Image, **options: Any) -> None:
    """Write an image as `.png` or `.jpg`, whole or not at all; `options` are those of Pillow's writer."""
    stream = io.BytesIO()
    image.save(stream, {".png": "PNG", ".jpg": "JPEG"}[Path(path).suffix], **options)
    # Pillow's own writing does not notice when the disk takes only a part of a JPEG.
    write_bytes(path, stream.getvalue())


def write_array(path: str | os.PathLike[str], array: np.ndarray) -> None:
    """Write an array as `.npy`, whole or not at all."""
    stream = io.BytesIO()
    np.save(stream, array)
    # numpy's own writing does not notice when the disk refuses the last few thousand bytes.
    write_bytes(path, stream.getvalue())


def read_json_lines(path: str | os.PathLike[str]) -> list[tuple[str, dict[str, Any] | None]]:
    """Lines of a text file, each with the object on it: None on a line torn by a kill, or damaged.

    Raises `FcamError` when the file cannot be read.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise FcamError(f"cannot read {path}: {error.strerror or error}; check its permissions") from error
    return [(line, _object(line)) for line in lines]


def _object(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON to `path`, whole or not at all; NaN and infinity are refused."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")
