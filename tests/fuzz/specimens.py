"""Good image files of every format and mode, and files whose header alone claims a huge picture."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib
from functools import cache

import numpy as np
from PIL import Image

SIDE = (23, 17)


def _picture(mode: str) -> Image.Image:
    values = np.random.default_rng(7).integers(0, 256, (SIDE[1], SIDE[0], 4), dtype=np.uint8)
    values[: SIDE[1] // 2] = 200  # flat parts, so that run lengths and back references occur
    match mode:
        case "I;16":
            return Image.fromarray(values[..., 0].astype(np.uint16) * 257)
        case "I":
            return Image.fromarray(values[..., 0].astype(np.int32) * 9)
        case "F":
            return Image.fromarray(values[..., 0].astype(np.float32) / 255)
        case "LA":
            return Image.fromarray(values[..., :2].copy(), "LA")
        case "RGBA" | "CMYK":
            return Image.fromarray(values, mode)
        case _:
            return Image.fromarray(values[..., :3].copy()).convert(mode)


_KINDS: tuple[tuple[str, str, dict], ...] = (
    *(("PNG", mode, {}) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I")),
    ("PNG", "P", {"transparency": 3}),
    ("PNG", "RGB", {"transparency": (1, 2, 3), "dpi": (72, 72), "icc_profile": b"x" * 200}),
    *(("JPEG", mode, {}) for mode in ("L", "RGB", "CMYK")),
    ("JPEG", "RGB", {"progressive": True, "comment": "a"}),
    *(("GIF", mode, {}) for mode in ("L", "P", "RGB")),
    ("GIF", "P", {"transparency": 0}),
    *(("TIFF", mode, {}) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F", "LAB")),
    # Pillow 12.3 cannot read back the uncompressed ones that it writes.
    ("TIFF", "YCbCr", {"compression": "tiff_lzw"}),
    *(("TIFF", "RGB", {"compression": c}) for c in ("tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits")),
    *(("TIFF", "1", {"compression": c}) for c in ("group3", "group4", "tiff_ccitt")),
    ("TIFF", "I;16", {"compression": "tiff_lzw"}),
    *(("BMP", mode, {}) for mode in ("1", "L", "P", "RGB", "RGBA")),
    *(("WEBP", mode, {}) for mode in ("RGB", "RGBA")),
    ("WEBP", "RGBA", {"lossless": True}),
    *(("PPM", mode, {}) for mode in ("1", "L", "RGB", "I;16")),
    # A name says nothing: whatever Pillow recognises by content can stand in photo.jpg.
    ("AVIF", "RGB", {}),
    ("JPEG2000", "RGB", {}),
    ("ICO", "RGBA", {}),
    ("TGA", "RGB", {"compression": "tga_rle"}),
    ("PCX", "P", {}),
    ("SGI", "RGB", {}),
    ("DDS", "RGB", {}),
    ("IM", "RGB", {}),
    ("EPS", "RGB", {}),
)


@cache
def images() -> tuple[tuple[str, bytes], ...]:
    """(name, bytes) of good files; formats that this Pillow cannot write are left out."""
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "camera"
    made = []
    for kind, mode, options in _KINDS:
        with contextlib.suppress(OSError, KeyError):  # not with this Pillow
            made.append((f"{kind}-{mode}", _saved(_picture(mode), kind, **options)))
    for kind in ("JPEG", "PNG", "WEBP", "TIFF"):
        made.append((f"{kind}-exif", _saved(_picture("RGB"), kind, exif=exif)))
    frames = [_picture("P").rotate(angle) for angle in (90, 180)]
    for kind in ("GIF", "WEBP", "TIFF", "PNG"):
        made.append((f"{kind}-frames", _saved(_picture("P"), kind, save_all=True, append_images=frames)))
    return tuple(made)


def _saved(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


@cache
def bombs() -> tuple[tuple[str, bytes], ...]:
    """(name, bytes) of small files whose headers claim more pixels than any memory holds."""
    Image.init()
    png, gif, jpeg = (bytearray(_saved(_picture("RGB"), kind)) for kind in ("PNG", "GIF", "JPEG"))
    header = b"IHDR" + struct.pack(">II", 2**31 - 1, 2**31 - 1) + bytes(png[24:29])
    png[12:33] = header + struct.pack(">I", zlib.crc32(header))
    gif[6:10] = struct.pack("<HH", 65535, 65535)
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = struct.pack(">HH", 65500, 65500)
    bmp = bytearray(_saved(_picture("RGB"), "BMP"))
    bmp[18:26] = struct.pack("<ii", 2**30, 2**30)
    tiff = bytearray(_saved(_picture("RGB"), "TIFF"))
    for tag in (256, 257):
        at = tiff.index(struct.pack("<HH", tag, 4)) if struct.pack("<HH", tag, 4) in tiff else -1
        at = at if at >= 0 else tiff.index(struct.pack("<HH", tag, 3))
        tiff[at : at + 12] = struct.pack("<HHII", tag, 4, 1, 2**31 - 1)
    webp = bytearray(_saved(_picture("RGBA"), "WEBP", lossless=True))
    at = webp.index(b"VP8L") + 9
    webp[at : at + 4] = struct.pack("<I", (16382 << 14 | 16382) & 0x0FFF_FFFF)
    return (
        ("PNG", bytes(png)),
        ("GIF", bytes(gif)),
        ("JPEG", bytes(jpeg)),
        ("BMP", bytes(bmp)),
        ("TIFF", bytes(tiff)),
        ("WEBP", bytes(webp)),
        ("PPM", b"P6 999999999 999999999 255\n" + bytes(60)),
    )
