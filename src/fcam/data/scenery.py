"""The ground of the synthetic pictures: earth, leaves, fruits and petals, in many colours and sizes."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from fcam.data.creature import HEAD_COLOURS

# Each ground runs through four colours, dark to light.
_GROUNDS = np.array(
    [
        [(38, 56, 34), (58, 92, 44), (104, 136, 62), (164, 172, 98)],  # meadow
        [(52, 42, 32), (92, 70, 48), (128, 102, 70), (172, 148, 112)],  # forest floor
        [(128, 108, 80), (164, 142, 106), (198, 176, 138), (224, 208, 176)],  # sand
        [(16, 44, 64), (30, 80, 98), (62, 124, 132), (128, 176, 168)],  # pond
        [(78, 42, 28), (134, 74, 34), (178, 112, 48), (206, 158, 88)],  # autumn
        [(62, 66, 72), (96, 100, 104), (134, 136, 136), (178, 178, 172)],  # rock
        [(54, 46, 74), (88, 76, 110), (128, 112, 146), (176, 160, 184)],  # heather
        [(26, 52, 46), (46, 88, 76), (92, 130, 104), (150, 178, 146)],  # fern
    ],
    dtype=np.float32,
)
_OVERSAMPLING = 2
_TURN = np.linspace(0, 2 * np.pi, 12, endpoint=False)
_LEAF = np.stack(
    [np.cos(_TURN), np.sin(_TURN) * np.abs(np.sin(_TURN)) ** 0.5], axis=1
)  # pointed at both ends


def draw(size: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the ground without a creature: float32 (size, size, 3) in 0..255."""
    palette = _GROUNDS[rng.integers(len(_GROUNDS))]
    # What is drawn at half the size and enlarged comes out soft, as if out of focus.
    canvas = _earth((size + 1) // 2, palette, rng)
    _leaves(ImageDraw.Draw(canvas), canvas.width, palette, rng, count=26, lengths=(0.10, 0.26))
    canvas = canvas.resize((size, size), Image.Resampling.BILINEAR)
    fine = size * _OVERSAMPLING
    canvas = canvas.resize((fine, fine), Image.Resampling.NEAREST)
    pen = ImageDraw.Draw(canvas)
    _leaves(pen, canvas.width, palette, rng, count=44, lengths=(0.05, 0.15))
    for _ in range(rng.integers(5, 10)):
        _fruit(pen, canvas.width, rng)
    for _ in range(rng.integers(2, 5)):
        _blossom(pen, canvas.width, rng)
    return np.array(canvas.reduce(_OVERSAMPLING), dtype=np.float32)


def add_grain(image: np.ndarray, rng: np.random.Generator, strength: float = 4.0) -> np.ndarray:
    """Add the grain of a sensor to a float picture (h, w, 3) in 0..255; returns uint8."""
    grain = rng.standard_normal(image.shape[:2], dtype=np.float32)[..., None]
    return np.clip(image + grain * np.float32(strength), 0, 255).astype(np.uint8)


def smooth_noise(size: int, cells: int, rng: np.random.Generator) -> np.ndarray:
    """Return smooth noise (size, size) float32, about 0..1, with `cells` random values along each side."""
    coarse = Image.fromarray(rng.random((cells, cells), dtype=np.float32))
    return np.asarray(coarse.resize((size, size), Image.Resampling.BICUBIC))


def _earth(size: int, palette: np.ndarray, rng: np.random.Generator) -> Image.Image:
    height = (
        0.50 * smooth_noise(size, 4, rng)
        + 0.30 * smooth_noise(size, 11, rng)
        + 0.20 * smooth_noise(size, size // 2, rng)
    )
    stops = np.linspace(0, 255, len(palette))
    table = np.stack([np.interp(np.arange(256), stops, palette[:, c]) for c in range(3)], axis=1)
    shades = table.astype(np.uint8)[np.clip((height - 0.15) / 0.7 * 255, 0, 255).astype(np.uint8)]
    return Image.fromarray(shades)


def _leaves(
    pen: ImageDraw.ImageDraw,
    width: int,
    palette: np.ndarray,
    rng: np.random.Generator,
    count: int,
    lengths: tuple[float, float],
) -> None:
    """Draw lens-shaped leaves with a mid-rib, lying in all directions."""
    centres = rng.random((count, 1, 2)) * width
    long = rng.uniform(*lengths, size=(count, 1)) * width / 2
    wide = long * rng.uniform(0.18, 0.5, size=(count, 1))
    angle = rng.uniform(0, 2 * np.pi, size=(count, 1))
    a, b = _LEAF[:, 0] * long, _LEAF[:, 1] * wide
    turned = np.stack([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], -1)
    outlines = (turned + centres).reshape(count, -1).tolist()
    colours = palette[rng.integers(len(palette), size=count)] * rng.uniform(0.75, 1.2, size=(count, 1))
    colours = colours + rng.normal(0, 12, size=(count, 3))
    for outline, colour, rib in zip(outlines, _fills(colours), _fills(colours * 0.75), strict=True):
        pen.polygon(outline, fill=colour)
        pen.line(outline[:2] + outline[len(outline) // 2 :][:2], fill=rib, width=max(1, width // 250))


def _fruit(pen: ImageDraw.ImageDraw, width: int, rng: np.random.Generator) -> None:
    """Draw a plain ball in one of the colours of the heads."""
    x, y = rng.random(2) * width
    radius = rng.uniform(0.014, 0.034) * width
    tones = _fills(_head_colour(rng) * [[0.65], [1.0], [1.35]] + [[0], [0], [30]])
    for scale, shift, tone in zip((1.0, 0.86, 0.30), (0.0, -0.08, -0.38), tones, strict=True):
        _disc(pen, x + radius * shift, y + radius * shift, radius * scale, tone)


def _blossom(pen: ImageDraw.ImageDraw, width: int, rng: np.random.Generator) -> None:
    """Draw petals of one head colour around a centre of another."""
    x, y = rng.random(2) * width
    radius, petals = rng.uniform(0.018, 0.032) * width, int(rng.integers(4, 7))
    tones = _fills(_head_colour(rng) * rng.uniform(0.8, 1.0, size=(petals, 1)))
    angles = rng.uniform(0, 2 * np.pi) + np.arange(petals) * 2 * np.pi / petals
    for angle, tone in zip(angles.tolist(), tones, strict=True):
        _disc(pen, x + radius * np.cos(angle), y + radius * np.sin(angle), 0.7 * radius, tone)
    _disc(pen, x, y, radius / 2, _fills(_head_colour(rng)[None])[0])


def _disc(pen: ImageDraw.ImageDraw, x: float, y: float, radius: float, fill: tuple[int, ...]) -> None:
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)


def _fills(colours: np.ndarray) -> list[tuple[int, ...]]:
    """Turn colours (n, 3) into the tuples that Pillow draws with."""
    return [tuple(colour) for colour in np.clip(colours, 0, 255).astype(int).tolist()]


def _head_colour(rng: np.random.Generator) -> np.ndarray:
    return HEAD_COLOURS.reshape(-1, 3)[rng.integers(HEAD_COLOURS.size // 3)].astype(np.float64)
