"""The object of the synthetic pictures: a body that is silent about the class, a head whose pattern is it."""

from __future__ import annotations

import colorsys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

from fcam.errors import FcamError

_ANGLES = np.linspace(0, 2 * np.pi, 1024, endpoint=False)
_HEAD_SHARE = 0.36  # radius of the head by the radius of a disc of the body's area

Pattern = Callable[[np.ndarray, np.ndarray], np.ndarray]

# Patterns over head coordinates in -1..1, True where the first colour lies; all but turned copies of each
# other differ.
_PATTERNS: dict[str, Pattern] = {
    "ring": lambda x, y: (np.hypot(x, y) * 2.6 + 0.55).astype(int) % 2 == 0,
    "stripe": lambda x, y: np.sin(x * 7.5) > 0,
    "checker": lambda x, y: (np.sin(x * 5.2) > 0) == (np.sin(y * 5.2) > 0),
    "cross": lambda x, y: np.minimum(np.abs(x), np.abs(y)) < 0.22,
    "half": lambda x, y: y > 0,
    "dot": lambda x, y: (np.sin(x * 5.0 + 1.57) + np.sin(y * 5.0 + 1.57)) > 0.75,
}

# Two colours per class; six classes use each pattern once, twelve use each twice.
HEAD_COLOURS = np.array(
    [
        [(226, 40, 44), (250, 246, 238)],
        [(250, 206, 30), (30, 28, 32)],
        [(34, 92, 214), (246, 246, 248)],
        [(252, 250, 240), (196, 32, 140)],
        [(250, 128, 20), (74, 36, 140)],
        [(26, 30, 36), (52, 206, 206)],
        [(30, 120, 70), (246, 226, 70)],
        [(236, 110, 160), (60, 60, 160)],
        [(240, 130, 30), (40, 40, 44)],
        [(240, 220, 60), (40, 80, 190)],
        [(220, 40, 60), (40, 160, 90)],
        [(150, 40, 170), (240, 230, 200)],
    ],
    dtype=np.float32,
)
MAX_CLASSES = len(HEAD_COLOURS)


def class_names(classes: int) -> list[str]:
    """Return the names of the first `classes` classes: the patterns, the second time round with a number."""
    names = list(_PATTERNS)
    return [names[k % len(names)] + ("" if k < len(names) else "-2") for k in range(classes)]


@dataclass
class Creature:
    """A creature in its place, without its class: where it covers the picture and how its body is coloured.

    All maps cover the `window` (rows, columns) of a `size` x `size` picture: `cover` and `head_cover` float32
    in 0..1, the share of each pixel that the object and its head cover; `head_xy`, coordinates on the head,
    -1..1; `body`, colours (h, w, 3) in 0..255.
    """

    size: int
    window: tuple[slice, slice]
    cover: np.ndarray
    head_cover: np.ndarray
    head_xy: tuple[np.ndarray, np.ndarray]
    body: np.ndarray

    @property
    def mask(self) -> np.ndarray:
        """Bool (size, size): the pixels that the object covers by half or more."""
        return self._whole(self.cover >= 0.5)

    @property
    def part(self) -> np.ndarray:
        """Bool (size, size): the pixels of the head."""
        return self._whole(self.head_cover >= 0.5)

    @classmethod
    def draw(cls, size: int, ground: np.ndarray, rng: np.random.Generator) -> Creature:
        """Choose shape, pose and colours of a creature that covers 12 to 45 % of the picture `ground`."""
        pose = Pose.draw(size, rng)
        window, x, y = pose.window(size)
        u, v = (
            x * _f(np.cos(pose.turn)) + y * _f(np.sin(pose.turn)),
            y * _f(np.cos(pose.turn)) - x * _f(np.sin(pose.turn)),
        )
        around = np.arctan2(v, u) * _f(len(_ANGLES) / (2 * np.pi))
        edge = pose.outline.astype(np.float32)[np.rint(around).astype(np.int32) % len(_ANGLES)]
        radius = np.hypot(u, v)
        body_cover = np.clip((edge - radius) * _f(pose.scale) + _f(0.5), 0, 1)
        head_x, head_y = (u - _f(pose.reach)) / _f(pose.head), v / _f(pose.head)
        head_cover = np.clip((1 - np.hypot(head_x, head_y)) * _f(pose.head * pose.scale) + _f(0.5), 0, 1)
        turn = rng.uniform(-0.4, 0.4)
        c, s = _f(np.cos(turn)), _f(np.sin(turn))
        head_xy = head_x * c - head_y * s, head_x * s + head_y * c
        light = (x * _f(-0.55) + y * _f(-0.83)) / _f(pose.radius)
        colour = _body_colour(ground[window][body_cover > 0.5], rng)
        body = colour * _shading(u, v, radius / edge, light, rng)[..., None]
        return cls(size, window, np.maximum(body_cover, head_cover), head_cover, head_xy, body)

    def paint(self, ground: np.ndarray, label: int) -> np.ndarray:
        """Paint the creature as class `label` over its shadow: returns `ground` changed in place.

        Raises `FcamError` for a label without a pattern.
        """
        if not 0 <= label < MAX_CLASSES:
            raise FcamError(f"a synthetic class is a number from 0 to {MAX_CLASSES - 1}, got {label}")
        x, y = self.head_xy
        pattern = list(_PATTERNS.values())[label % len(_PATTERNS)](x, y)
        head = np.where(pattern[..., None], HEAD_COLOURS[label, 0], HEAD_COLOURS[label, 1])
        rim = np.clip((np.hypot(x, y) - _f(0.88)) / _f(0.06), 0, 1)[..., None]
        head += (self.body * _f(0.45) - head) * rim
        image = ground[self.window]
        image *= 1 - _f(0.45) * _shadow(self.cover)[..., None]
        image += (self.body - image) * self.cover[..., None]
        image += (head - image) * self.head_cover[..., None]
        return ground

    def _whole(self, window: np.ndarray) -> np.ndarray:
        whole = np.zeros((self.size, self.size), dtype=window.dtype)
        whole[self.window] = window
        return whole


@dataclass
class Pose:
    """Shape and place: `outline` is the distance of the body's edge from its middle at `_ANGLES` (the head
    lies at angle 0, at distance `reach`, with radius `head`), `radius` that of a disc of the body's area; a
    unit is `scale` pixels.
    """

    outline: np.ndarray
    radius: float
    reach: float
    head: float
    turn: float
    scale: float = 1.0
    centre: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def draw(cls, size: int, rng: np.random.Generator) -> Pose:
        """Choose a pose such that the whole creature is in the picture."""
        share = rng.uniform(0.12, 0.45)
        outline = _outline(share, rng)
        radius = float(np.sqrt(np.mean(outline**2)))
        pose = cls(outline, radius, 0.82 * outline[0], _HEAD_SHARE * radius, rng.uniform(0, 2 * np.pi))
        low, high = pose._extent()
        # 1.03: what the head adds to the body's area
        pose.scale = min(
            size * np.sqrt(share / (np.pi * 1.03)) / radius, 0.96 * size / float((high - low).max())
        )
        first, last = 0.02 * size - low * pose.scale, 0.98 * size - high * pose.scale
        centre = first + rng.random(2) * (last - first)
        pose.centre = float(centre[0]), float(centre[1])
        return pose

    def window(self, size: int) -> tuple[tuple[slice, slice], np.ndarray, np.ndarray]:
        """Return the rows and columns that hold the creature and its shadow, and x, y (h, w) in units."""
        low, high = self._extent()
        margin = size / 16
        x0, y0 = (max(0, int(edge)) for edge in self.centre + low * self.scale - margin)
        x1, y1 = (min(size, int(edge)) for edge in self.centre + high * self.scale + margin)
        x = (np.arange(x0, x1, dtype=np.float32) - _f(self.centre[0])) / _f(self.scale)
        y = (np.arange(y0, y1, dtype=np.float32) - _f(self.centre[1])) / _f(self.scale)
        columns, rows = np.meshgrid(x, y)
        return (slice(y0, y1), slice(x0, x1)), columns, rows

    def _extent(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the lowest and the highest x, y of the creature, in units from its middle."""
        angles = _ANGLES + self.turn
        edge = np.stack([self.outline * np.cos(angles), self.outline * np.sin(angles)])
        head = self.reach * np.array([np.cos(self.turn), np.sin(self.turn)])
        return np.minimum(edge.min(1), head - self.head), np.maximum(edge.max(1), head + self.head)


def _outline(share: float, rng: np.random.Generator) -> np.ndarray:
    """Return the distance of the body's edge from its middle at `_ANGLES`; the head looks along angle 0."""
    aspect = rng.uniform(1.15, 1.9 - 1.2 * (share - 0.12))
    edge = 1 / np.hypot(np.cos(_ANGLES) / aspect, np.sin(_ANGLES))
    for order in (2, 3, 4, 5):
        edge = edge * (1 + rng.normal(0, 0.10 / order) * np.cos(order * _ANGLES + rng.uniform(0, 2 * np.pi)))
    tail = rng.uniform(0.0, 0.45)
    away = np.abs((_ANGLES - np.pi - rng.uniform(-0.4, 0.4) + np.pi) % (2 * np.pi) - np.pi)
    return edge * (1 + tail * np.exp(-((away / rng.uniform(0.22, 0.40)) ** 2)))


def _body_colour(under: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a colour (3,) that stands off from the ground (n, 3) under the body."""
    mean = under.mean(0)
    best, distance = mean, -1.0
    for _ in range(12):
        hsv = rng.random(), rng.uniform(0.20, 0.70), rng.uniform(0.45, 0.95)
        colour = np.array(colorsys.hsv_to_rgb(*hsv), dtype=np.float32) * 255
        away = float(np.linalg.norm(colour - mean))
        if away > distance:
            best, distance = colour, away
        if away > 95:
            break
    return best


def _shading(
    u: np.ndarray, v: np.ndarray, depth: np.ndarray, light: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return brightness (h, w) about 1: a rounded form in light from above and a faint texture of its own."""
    kind, frequency, phase = rng.integers(3), _f(rng.uniform(7, 13)), _f(rng.uniform(0, 2 * np.pi))
    shade = _f(1.02) + _f(0.16) * light - _f(0.22) * np.minimum(depth, 1) ** 4
    if kind == 0:
        shade += _f(0.05) * np.sin(frequency * u + 2 * v * v + phase)
    elif kind == 1:
        shade += _f(0.05) * np.sin(frequency * u + phase) * np.sin(frequency * v)
    return shade


def _shadow(cover: np.ndarray) -> np.ndarray:
    """Return the darkness (h, w) in 0..1 of the soft shadow that falls down and to the right."""
    height, width = cover.shape
    shape = Image.fromarray((cover * 255).astype(np.uint8))
    soft = shape.resize((width // 4, height // 4), Image.Resampling.BOX)
    soft = np.asarray(soft.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32) / 255
    shift = max(1, (height + width) // 60)
    shadow = np.zeros_like(cover)
    shadow[shift:, shift:] = soft[:-shift, :-shift]
    return shadow


def _f(value: float) -> np.float32:
    """A scalar that keeps float32 arrays float32."""
    return np.float32(value)
