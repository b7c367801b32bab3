from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from torch._utils import ExceptionWrapper

from fcam.data import find_images, open_image
from fcam.data.images import ImageError, image_size, open_mask
from fcam.errors import FcamError

RAMP = np.arange(0, 240, dtype=np.uint8).reshape(12, 20)


def test_grey_palette_and_bilevel_become_rgb(tmp_path: Path) -> None:
    grey = Image.fromarray(RAMP)
    for name, image in (("l.png", grey), ("p.png", grey.convert("P")), ("one.png", grey.convert("1"))):
        image.save(tmp_path / name)
        opened = open_image(tmp_path / name)
        assert (opened.mode, opened.size) == ("RGB", (20, 12))
        assert (np.asarray(opened) == np.asarray(image.convert("RGB"))).all()


def test_deep_grey_is_scaled_by_its_bit_depth(tmp_path: Path) -> None:
    for bits in (10, 12, 16):
        top = 2**bits - 1
        values = np.linspace(0, top, 240).reshape(12, 20).round().astype(np.uint16)
        Image.fromarray(values).save(tmp_path / f"{bits}.png")
        opened = np.asarray(open_image(tmp_path / f"{bits}.png"))
        assert np.abs(opened[..., 0] - values * 255.0 / top).max() <= 0.5
        assert (opened[..., 0] == opened[..., 2]).all()


def test_float_and_signed_grey(tmp_path: Path) -> None:
    unit = np.linspace(0, 1, 240, dtype=np.float32).reshape(12, 20)
    for name, values in (("unit.tif", unit), ("byte.tif", unit * 255), ("signed.tif", unit * 8 - 4)):
        Image.fromarray(values).save(tmp_path / name)
        assert np.abs(np.asarray(open_image(tmp_path / name))[..., 0] - unit * 255).max() <= 0.51
    broken = unit.copy()
    broken[0, 0] = np.nan
    Image.fromarray(broken).save(tmp_path / "nan.tif")
    assert np.asarray(open_image(tmp_path / "nan.tif"))[0, 0, 0] == 0


def test_transparency_lies_over_white(tmp_path: Path) -> None:
    pixels = np.zeros((4, 4, 4), dtype=np.uint8)
    pixels[:2] = (255, 0, 0, 255)
    pixels[2, :] = (0, 0, 255, 128)
    Image.fromarray(pixels).save(tmp_path / "rgba.png")
    opened = np.asarray(open_image(tmp_path / "rgba.png"))
    assert tuple(opened[0, 0]) == (255, 0, 0)
    assert tuple(opened[3, 0]) == (255, 255, 255)
    assert np.abs(opened[2, 0].astype(int) - (127, 127, 255)).max() <= 1
    palette = Image.fromarray(RAMP).convert("P")
    palette.save(tmp_path / "p.png", transparency=int(np.asarray(palette)[5, 5]))
    assert tuple(np.asarray(open_image(tmp_path / "p.png"))[5, 5]) == (255, 255, 255)
    Image.fromarray(np.dstack([RAMP, np.zeros_like(RAMP)]), "LA").save(tmp_path / "la.png")
    assert (np.asarray(open_image(tmp_path / "la.png")) == 255).all()


def test_cmyk(tmp_path: Path) -> None:
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "c.jpg")
    red, green, blue = np.asarray(open_image(tmp_path / "c.jpg"))[8, 8].astype(int)
    assert red > 200
    assert green < 60
    assert blue < 60


def test_animation_gives_its_first_picture(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (10, 8), colour) for colour in ("red", "lime", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert tuple(np.asarray(open_image(tmp_path / "a.gif"))[4, 4]) == (255, 0, 0)


def test_exif_orientation_is_applied_only_when_asked(tmp_path: Path) -> None:
    pixels = np.zeros((10, 20, 3), dtype=np.uint8)
    pixels[:, :10] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show rotated clockwise
    Image.fromarray(pixels).save(tmp_path / "e.png", exif=exif)
    upright = open_image(tmp_path / "e.png")
    assert upright.size == image_size(tmp_path / "e.png", exif=True) == (10, 20)
    assert np.asarray(upright)[2, 5, 0] == 255
    assert np.asarray(upright)[17, 5, 0] == 0
    assert open_image(tmp_path / "e.png", exif=False).size == image_size(tmp_path / "e.png") == (20, 10)


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("kind", ["png", "jpg", "tif"])
def test_every_orientation_as_pillow_has_it(orientation: int, kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{kind}"
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.dstack([RAMP] * 3)).save(path, exif=exif)
    with Image.open(path) as stored:
        expected = ImageOps.exif_transpose(stored)
    assert (np.asarray(open_image(path)) == np.asarray(expected)).all()
    assert image_size(path, exif=True) == expected.size
    assert image_size(path) == open_image(path, exif=False).size


def _write_bad_files(folder: Path) -> dict[str, str]:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "good.jpg")
    Image.fromarray(noise).save(folder / "good.png")
    (folder / "truncated.jpg").write_bytes((folder / "good.jpg").read_bytes()[:1500])
    (folder / "truncated.png").write_bytes((folder / "good.png").read_bytes()[:1500])
    (folder / "empty.jpg").touch()
    (folder / "text.jpg").write_text("this is no picture")
    (folder / "folder.jpg").mkdir()
    damaged = bytearray((folder / "good.png").read_bytes())
    damaged[60:90] = bytes(30)
    (folder / "damaged.png").write_bytes(damaged)
    return {
        "truncated.jpg": "truncated",
        "truncated.png": "truncated",
        "empty.jpg": "empty",
        "text.jpg": "not an image",
        "folder.jpg": "folder",
        "damaged.png": "damaged",
        "missing.jpg": "does not exist",
    }


def test_bad_files_are_refused_with_path_and_reason(tmp_path: Path) -> None:
    for name, reason in _write_bad_files(tmp_path).items():
        with pytest.raises(ImageError, match=reason) as caught:
            open_image(tmp_path / name)
        assert isinstance(caught.value, FcamError)
        assert caught.value.path == str(tmp_path / name)
        assert caught.value.path in str(caught.value)
        assert reason in caught.value.reason
        assert "\n" not in str(caught.value)


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "a.png").write_bytes(b"x")
    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(ImageError, match="no permission to read it"):
        open_image(tmp_path / "a.png")


def test_huge_images_are_refused_before_decoding(tmp_path: Path) -> None:
    Image.new("RGB", (30, 20)).save(tmp_path / "small.png")
    small = (tmp_path / "small.png").read_bytes()
    header = b"IHDR" + struct.pack(">II", 20_000, 20_000) + small[24:29]
    (tmp_path / "bomb.png").write_bytes(
        small[:12] + header + struct.pack(">I", zlib.crc32(header)) + small[33:]
    )
    refused = r"20000x20000.*limit of 100000000.*raise --max-megapixels .in Python max_pixels; .*FCAM_MAX_MEGAPIXELS"
    with pytest.raises(ImageError, match=refused):
        open_image(tmp_path / "bomb.png")
    with pytest.raises(ImageError, match="600 pixels"):
        open_image(tmp_path / "small.png", max_pixels=599)
    assert open_image(tmp_path / "small.png", max_pixels=600).size == (30, 20)
    assert Image.MAX_IMAGE_PIXELS is not None


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("0.0005", "600 pixels, above the limit of 500"),
        ("1", None),
        ("-3", "FCAM_MAX_MEGAPIXELS is '-3'"),
        ("many", "is 'many'"),
    ],
)
def test_the_environment_sets_the_limit_of_data_sets(tmp_path: Path, value: str, says: str | None) -> None:
    for split in ("train", "val", "test"):
        for k, name in enumerate(("a", "b")):
            (tmp_path / split / name).mkdir(parents=True)
            grey = (40 * k, 10 * len(split), 90)
            Image.new("RGB", (30, 20), grey).save(tmp_path / split / name / "photo.png")
    command = [sys.executable, "-m", "fcam", "data", "check", str(tmp_path)]
    environment = os.environ | {"FCAM_MAX_MEGAPIXELS": value}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == (0 if says is None else 1 if says.startswith("600") else 2)
    assert "Traceback" not in done.stderr
    assert says is None or says in " ".join((done.stdout + done.stderr).split())


def test_raised_limit_outgrows_pillows_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    Image.new("RGB", (30, 20)).save(tmp_path / "small.png")
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(open_image(tmp_path / "small.png").size))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [(30, 20)] * 8
    assert Image.MAX_IMAGE_PIXELS == 50


def test_opened_image_outlives_its_file(tmp_path: Path) -> None:
    Image.fromarray(np.dstack([RAMP] * 3)).save(tmp_path / "a.png")
    opened = open_image(tmp_path / "a.png")
    (tmp_path / "a.png").unlink()
    assert (np.asarray(opened)[..., 0] == RAMP).all()


def test_error_survives_a_loader_worker(tmp_path: Path) -> None:
    """What `DataLoader` does with a worker's exception, without the five seconds a worker takes to end."""
    try:
        open_image(tmp_path / "missing.jpg")
    except ImageError:
        carried = pickle.loads(pickle.dumps(ExceptionWrapper(where="in DataLoader worker process 0")))
    with pytest.raises(ImageError) as caught:
        carried.reraise()
    assert str(caught.value) == f"cannot read image {tmp_path / 'missing.jpg'}: it does not exist"


def test_what_the_system_refuses_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    for path, reason in (
        (tmp_path / "loop.jpg", "too many levels of symbolic links"),
        (tmp_path / ("long" * 100), "file name too long"),
        ("https://example.org/a.jpg", "it is a web address; download the file first"),
    ):
        with pytest.raises(ImageError) as caught:
            open_image(path)
        assert caught.value.reason == reason


def test_masks_of_any_mode(tmp_path: Path) -> None:
    mask = np.zeros((6, 9), dtype=bool)
    mask[2:4, 3:7] = True
    Image.fromarray(mask).save(tmp_path / "one.png")
    Image.fromarray(mask.astype(np.uint8)).save(tmp_path / "low.png")
    Image.fromarray(mask.astype(np.uint16) * 300).save(tmp_path / "deep.png")
    Image.fromarray(np.dstack([mask * np.uint8(255)] * 3)).save(tmp_path / "rgb.png")
    for name in ("one", "low", "deep", "rgb"):
        assert (open_mask(tmp_path / f"{name}.png") == mask).all()


def test_find_images(tmp_path: Path) -> None:
    for name in ("b/2.JPG", "b/1.png", "b/deep/3.jpeg", "b/notes.txt", "b/.hidden.png", "odd.dat", "c/x.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    def names(*arguments: str) -> tuple[list[str], list[str]]:
        found, problems = find_images([tmp_path / argument for argument in arguments])
        relative = [path.relative_to(tmp_path).as_posix() for path in found]
        return relative, [Path(p.path).name + ": " + p.reason for p in problems]

    assert names("b") == (["b/1.png", "b/2.JPG", "b/deep/3.jpeg"], [])
    assert names("odd.dat", "b/2.JPG", "b") == (["odd.dat", "b/2.JPG", "b/1.png", "b/deep/3.jpeg"], [])
    assert names("b/*.png", "*.dat") == (["b/1.png", "odd.dat"], [])
    assert names("b/*") == (["b/1.png", "b/2.JPG", "b/deep/3.jpeg"], [])
    assert names("**/*.jpeg") == (["b/deep/3.jpeg"], [])
    (tmp_path / "[2024] b").mkdir()
    (tmp_path / "[2024] b" / "1.png").touch()
    assert names("[2024] b/*.png", "[2024]?b/*") == (
        ["[2024] b/1.png"],
        ["*: no image file matches this pattern"],
    )
    (tmp_path / "scans").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "scans" / "1.JP2")
    assert names("scans") == (["scans/1.JP2"], [])
    (tmp_path / "phone").mkdir()
    (tmp_path / "phone" / "IMG_1.HEIC").touch()
    assert names("phone")[1] == [
        "phone: the folder holds no image file that can be read, only such as IMG_1.HEIC; convert them to JPEG or PNG"
    ]
    for name in ("IMG_1.jpg", "IMG_2.HEIC"):  # the first of which is there in both formats
        (tmp_path / "phone" / name).touch()
    assert names("phone") == (
        ["phone/IMG_1.jpg"],
        ["IMG_2.HEIC: HEIC files cannot be read; convert it to JPEG or PNG"],
    )
    assert find_images("https://example.org/a.jpg")[1][0].reason == (
        "it is a web address; download the file first"
    )
    assert names("nothing*", "gone.jpg", "c") == (
        [],
        [
            "nothing*: no image file matches this pattern",
            "gone.jpg: it does not exist",
            "c: the folder holds no image file",
        ],
    )
    assert find_images(str(tmp_path / "b"))[0] == find_images(tmp_path / "b")[0]


def test_a_file_is_listed_once_however_it_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "1.png").touch()
    monkeypatch.chdir(tmp_path)
    assert find_images(["b/../b/1.png", "b", tmp_path / "b" / "*.png"]) == ([Path("b/../b/1.png")], [])


def test_a_name_with_brackets_is_a_file_before_it_is_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "a[1].jpg").touch()
    assert find_images([tmp_path / "a[1].jpg"]) == ([tmp_path / "a[1].jpg"], [])


@pytest.mark.parametrize("read", [open_image, open_mask, image_size])
def test_pipes_and_devices_are_refused_without_waiting(read, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    for path in (tmp_path / "pipe.jpg", Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(ImageError, match=f"{path}: it is not a regular file"):
            read(path)


def test_a_page_description_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ghostscript(*_: object, **__: object) -> None:
        raise AssertionError("a program was started")

    monkeypatch.setattr("subprocess.check_call", ghostscript)
    Image.new("RGB", (9, 9)).save(tmp_path / "a.jpg", "EPS")
    with pytest.raises(ImageError, match="EPS is a page description"):
        open_image(tmp_path / "a.jpg")


@pytest.mark.parametrize("planes", [False, True])
def test_tiffs_that_pillow_misreads_are_refused(tmp_path: Path, planes: bool) -> None:
    pixels = np.zeros((4, 6, 3), np.uint16)
    pixels[1:3, 2:5] = 255 * 257
    samples = (pixels.transpose(2, 0, 1) if planes else pixels).astype("<u2").tobytes()
    entries: list[tuple[int, int, Sequence[int]]] = [
        (256, 3, (6,)),
        (257, 3, (4,)),
        (258, 3, (16,) * 3),
        (259, 3, (1,)),
        (262, 3, (2,)),
    ]
    strips = [8 + len(samples) // 3 * i for i in range(3)] if planes else [8]
    counts = [len(samples) // len(strips)] * len(strips)
    entries += [(273, 4, strips), (277, 3, (3,)), (278, 3, (4,)), (279, 4, counts), (284, 3, (1 + planes,))]
    place, rest = 8 + len(samples) + 2 + 12 * len(entries) + 4, b""
    directory = struct.pack("<H", len(entries))
    for tag, kind, values in entries:
        value = struct.pack(f"<{len(values)}{'H' if kind == 3 else 'I'}", *values)
        if len(value) > 4:
            value, rest = struct.pack("<I", place + len(rest)), rest + value
        directory += struct.pack("<HHI", tag, kind, len(values)) + value.ljust(4, b"\0")
    header = struct.pack("<2sHI", b"II", 42, 8 + len(samples))
    (tmp_path / "a.tif").write_bytes(header + samples + directory + bytes(4) + rest)
    if planes:
        with pytest.raises(
            ImageError, match="colours are stored apart in more than 8 bits, uncompressed; convert"
        ):
            open_image(tmp_path / "a.tif")
    else:
        assert (np.asarray(open_image(tmp_path / "a.tif")) == pixels // 257).all()


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIC files cannot be read, .* convert it to JPEG or PNG"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a", "git lfs pull"),
        (b"%PDF-1.4", "not an image of a known format"),
    ],
)
def test_what_a_file_is_although_it_is_called_a_photo(tmp_path: Path, head: bytes, words: str) -> None:
    (tmp_path / "a.jpg").write_bytes(head + bytes(100))
    with pytest.raises(ImageError, match=words):
        open_image(tmp_path / "a.jpg")


def test_one_pixel(tmp_path: Path) -> None:
    for mode in ("1", "L", "RGB", "RGBA", "P", "LA", "I;16"):
        Image.new(mode, (1, 1), 1).save(tmp_path / "a.png")
        assert open_image(tmp_path / "a.png").size == (1, 1)


SPAM = """
import sys
from fcam.quiet import quiet_decoders
from fcam.data.images import open_image
if sys.argv[1] == "quiet":
    quiet_decoders()
for path in sys.argv[2:]:
    try:
        open_image(path)
    except ValueError:
        pass
"""


def test_decoders_are_kept_quiet(tmp_path: Path) -> None:
    """libtiff prints from C and Pillow logs and warns, each of which is silenced in another way."""
    Image.fromarray(RAMP).save(tmp_path / "a.tif", compression="tiff_lzw")
    with Image.open(tmp_path / "a.tif") as stored:
        at = stored.tag_v2[273][0] + 3  # type: ignore[attr-defined] # in the only strip
    data = bytearray((tmp_path / "a.tif").read_bytes())
    data[at : at + 9] = b"\xff" * 9
    (tmp_path / "a.tif").write_bytes(data)
    Image.new("RGB", (9, 9)).save(tmp_path / "b.jpg", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\0broken")

    def printed(mode: str) -> str:
        command = [sys.executable, "-c", SPAM, mode, str(tmp_path / "a.tif"), str(tmp_path / "b.jpg")]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr

    assert printed("loud"), "this file no longer shows what is to be silenced"
    assert printed("quiet") == ""
