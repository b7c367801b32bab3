"""Damaged image files, and files that are none."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import specimens
from judge import Violation, judge
from mutations import damage

from fcam.data import images

FEW_PIXELS = 2_000_000
"""Limit for damaged images: many claim more pixels than they hold, and decoding those proves nothing."""


def image(folder: Path, rng: Random) -> str:
    """A damaged image file, read as photo, as mask and for its size."""
    name, data = rng.choice(specimens.images())
    path = folder / f"{name}{rng.choice(('.jpg', '.png', '.tif', ''))}"
    path.write_bytes(data if rng.random() < 0.02 else damage(data, rng))

    def photo() -> None:
        opened = images.open_image(path, max_pixels=FEW_PIXELS)
        if opened.mode != "RGB" or 0 in opened.size:
            raise Violation(f"opened as {opened.mode} {opened.size}")
        if (size := images.image_size(path, exif=True)) != opened.size:
            raise Violation(f"opened at {opened.size}, measured at {size}")
        np.asarray(opened)

    def mask() -> None:
        opened = images.open_mask(path, max_pixels=FEW_PIXELS)
        if opened.dtype != bool or opened.ndim != 2 or not opened.size:
            raise Violation(f"a mask of {opened.dtype} {opened.shape}")

    def size() -> None:
        images.image_size(path, exif=True, max_pixels=FEW_PIXELS)

    return judge(rng.choice((photo, photo, photo, mask, size)), str(path))


def no_image(folder: Path, rng: Random) -> str:
    """Files that never were an image: text, zeros, nothing, noise, and headers that claim too much."""
    path = folder / "photo.jpg"
    name, data = rng.choice(specimens.bombs())
    kind = rng.randrange(6)
    magic = rng.choice(
        (b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"II*\x00", b"BM", b"RIFF", b"%!PS")
    )
    noise = bytes(rng.randrange(256) for _ in range(rng.choice((1, 10, 100, 3000))))
    text = rng.choice(
        ("not a picture", "<html>404</html>", "P6", "P6 1 1", "#define x_width 9", "\x00" * 5000)
    )
    path.write_bytes((data, data, magic + noise, noise, text.encode(), damage(data, rng))[kind])
    if kind == 5:  # damage may have mended it
        return judge(lambda: images.open_image(path, max_pixels=FEW_PIXELS), str(path))
    outcome = judge(lambda: images.open_image(path), str(path))
    if kind < 2 and outcome != "refused":
        raise Violation(f"a {name} that claims too many pixels was opened")
    return outcome
