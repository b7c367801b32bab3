"""Pictures of what a map says: heat, contour, box, label and colour bar on a photo.

Everything takes and returns RGB pictures of the photo's own size; nothing is shown, nothing is written. Line
widths and letters grow with the picture, so that a thumbnail and a 24 megapixel photo read alike.
"""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from matplotlib import colormaps
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from fcam.boxes import quantize
from fcam.errors import FcamError

Color = tuple[int, int, int]

COLORMAP = "inferno"  # perceptually uniform: equal steps of activation look like equal steps of colour
CONTOUR: Color = (88, 240, 255)
BOX: Color = (120, 255, 90)
INK: Color = (12, 12, 16)

# The colours of the paper's figures (Tab. prediction samples).
TRUE_POSITIVE: Color = (230, 40, 40)
FALSE_NEGATIVE: Color = (40, 200, 60)
FALSE_POSITIVE: Color = (50, 90, 255)
PREDICTED_BOX: Color = (255, 40, 40)
TRUE_BOX: Color = (60, 255, 80)


def line_width(size: tuple[int, int]) -> float:
    """Return the width in pixels (at least 1.5) of a line that suits a picture of `size` (width, height)."""
    return max(1.5, (size[0] * size[1]) ** 0.5 / 170)


def font_size(size: tuple[int, int]) -> int:
    """Return the height in pixels, 9 at least, of letters that suit a picture of `size` = (width, height)."""
    return max(9, round(min(size[0] * 1.2, (size[0] * size[1]) ** 0.5) / 24))


@lru_cache(maxsize=32)
def _font(size: int) -> Any:
    return ImageFont.load_default(size)


@lru_cache(maxsize=8)
def palette(colormap: str) -> NDArray[np.uint8]:
    """Return the 256 RGB colours of a matplotlib colour map, (256, 3) uint8."""
    if colormap not in colormaps:
        raise FcamError(f"unknown colour map {colormap!r}; take one of matplotlib's, for example 'inferno'")
    return (colormaps[colormap](np.arange(256))[:, :3] * 255 + 0.5).astype(np.uint8)


def levels(cam: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Quantise a map (H, W) in [0, 1] to the 8-bit levels floor(255 v) that the benchmark thresholds."""
    return quantize(np.require(cam, requirements="W")[None])[0]


def _check(photo: Image.Image, array: NDArray[Any], what: str) -> None:
    if array.shape != (photo.height, photo.width):
        raise FcamError(
            f"the {what} has shape {array.shape} but the photo is {photo.height} high and "
            f"{photo.width} wide; resize it to the photo first"
        )


def heat(
    photo: Image.Image, cam: NDArray[np.floating], strength: float = 0.52, colormap: str = COLORMAP
) -> Image.Image:
    """Lay the map over the photo in colour, the more opaque the higher the activation.

    `photo` RGB, `cam` (H, W) in [0, 1], `strength` the opacity at activation 1. Returns RGB of the same size.
    Raises `FcamError` when the shapes differ or the colour map is unknown.
    """
    _check(photo, cam, "map")
    level = Image.fromarray(levels(cam))
    # A fast rise: an activation of a quarter is already seen, the lowest tenth leaves the photo untouched.
    ramp = np.clip((np.arange(256) / 255 - 0.06) / 0.94, 0, 1) ** 0.7
    opacity = level.point((ramp * 255 * strength).astype(int).tolist())
    picture = photo.convert("RGB")
    picture.paste(_in_color(level, colormap), (0, 0), opacity)
    return picture


def _in_color(level: Image.Image, colormap: str) -> Image.Image:
    """Give each grey level, mode "L", its colour; through a palette, which needs no array of colours."""
    indexed = level.copy()
    indexed.putpalette(palette(colormap).tobytes())
    return indexed.convert("RGB")


def _band(stencil: Image.Image, width: float, strength: float = 1.0) -> Image.Image:
    """Return the opacity, mode "L", of a soft-edged line of `width` pixels along the edge of a mask (0, 255).

    A blurred step has the value Phi(d / sigma) at distance d of the edge, so a band of distances is a band of
    values; this costs one blur whatever the length of the contour, and the picture's border draws no line.
    """
    sigma = max(0.8, width * 0.6)
    # A wide line is smooth: it is blurred on a coarser grid, which makes a 24 megapixel photo bearable.
    step = max(1, int(width // 4))
    blurred = stencil.reduce(step).filter(ImageFilter.GaussianBlur(sigma / step))
    if step > 1:
        box = (0, 0, stencil.width / step, stencil.height / step)
        blurred = blurred.resize(stencil.size, Image.Resampling.BILINEAR, box)
    distance = sigma * np.array([abs(NormalDist().inv_cdf((v + 0.5) / 256)) for v in range(256)])
    opacity = np.clip(width / 2 + 0.5 - distance, 0, 1) * 255 * strength
    return blurred.point([round(v) for v in opacity])


def outline(
    photo: Image.Image, mask: NDArray[np.bool_], color: Color = CONTOUR, width: float | None = None
) -> Image.Image:
    """Draw the contour of a mask (H, W), antialiased, with a thin dark rim that keeps it visible on white.

    `width` in pixels, by the picture's size when None. Returns RGB; raises `FcamError` for another shape.
    """
    _check(photo, mask, "mask")
    width = line_width(photo.size) if width is None else width
    picture = photo.convert("RGB")  # a copy, also of what is RGB already
    stencil = Image.fromarray(mask.astype(np.uint8) * np.uint8(255))
    around = stencil.getbbox()
    if around is None:
        return picture
    margin = round(width * 4) + 4
    left, top = max(around[0] - margin, 0), max(around[1] - margin, 0)
    place = (left, top, min(around[2] + margin, photo.width), min(around[3] + margin, photo.height))
    stencil = stencil.crop(place)
    picture.paste(INK, place, _band(stencil, width * 1.9, 0.55))
    picture.paste(color, place, _band(stencil, width))
    return picture


def rectangles(
    photo: Image.Image, boxes: NDArray[np.integer], color: Color = BOX, width: float | None = None
) -> Image.Image:
    """Draw boxes (n, 4), x0, y0, x1, y1 in pixels, x1, y1 one past the last, with a dark rim; returns RGB."""
    photo = photo.convert("RGB")
    if min(photo.size) < 8:  # a line would be all there is to see
        return photo
    draw = ImageDraw.Draw(photo)
    line = max(1, round(line_width(photo.size) if width is None else width))
    rim = max(1, round(line * 0.4))
    for x0, y0, x1, y1 in np.asarray(boxes, dtype=int).reshape(-1, 4).tolist():
        x1, y1 = max(x1 - 1, x0), max(y1 - 1, y0)
        draw.rectangle((x0 - rim, y0 - rim, x1 + rim, y1 + rim), outline=INK, width=line + 2 * rim)
        draw.rectangle((x0, y0, x1, y1), outline=color, width=line)
    return photo


def tag(photo: Image.Image, text: str, at: tuple[int, int], color: Color = BOX) -> Image.Image:
    """Write `text` on a plate of `color` standing on the point `at` (x, y), within the picture; returns RGB.

    Letters shrink and the text is cut where the picture is too narrow; below 48 pixels nothing is written.
    """
    photo = photo.convert("RGB")
    if min(photo.size) < 48 or not text:
        return photo
    draw = ImageDraw.Draw(photo)
    size = font_size(photo.size)
    pad = max(2, size // 3)
    text, font = fit(draw, text, size, photo.width - 2 * pad)
    left, _, right, _ = draw.textbbox((0, 0), text, font=font)
    ascent, descent = font.getmetrics()
    width, height = round(right - left) + 2 * pad, ascent + descent + pad
    x = min(max(at[0], 0), max(photo.width - width, 0))
    y = at[1] - height if at[1] >= height else at[1]
    y = min(max(y, 0), max(photo.height - height, 0))
    draw.rounded_rectangle((x, y, x + width - 1, y + height - 1), radius=pad, fill=color)
    bright = color[0] * 0.299 + color[1] * 0.587 + color[2] * 0.114 > 120
    draw.text((x + pad - left, y + pad // 2), text, font=font, fill=INK if bright else (255, 255, 255))
    return photo


def fit(draw: ImageDraw.ImageDraw, text: str, size: int, room: int) -> tuple[str, Any]:
    """Shrink the letters to two thirds, then cut the text, until it is at most `room` pixels wide."""
    smallest = max(9, size * 2 // 3)
    while size > smallest and draw.textlength(text, font=_font(size)) > room:
        size -= 1
    font = _font(size)
    if draw.textlength(text, font=font) > room:
        while text and draw.textlength(text + "…", font=font) > room:
            text = text[:-1]
        text = text.rstrip() + "…"
    return text, font


def color_bar(photo: Image.Image, threshold: float | None = None, colormap: str = COLORMAP) -> Image.Image:
    """Put a small colour bar, 0 to 1, into the lower right corner, with a tick at `threshold`; returns RGB.

    Pictures with a side below 160 pixels are returned without one.
    """
    photo = photo.convert("RGB")
    if min(photo.size) < 160:
        return photo
    size = max(9, round(font_size(photo.size) * 0.75))
    length, thick, pad = size * 7, max(5, size * 2 // 3), max(3, size // 3)
    font = _font(size)
    width = thick + round(ImageDraw.Draw(photo).textlength("0.00", font=font)) + 4 * pad
    plate = Image.new("RGB", (width, length + size + 2 * pad), INK)
    bar = Image.fromarray(palette(colormap)[::-1, None]).resize((thick, length), Image.Resampling.BILINEAR)
    top = pad + size // 2
    plate.paste(bar, (pad, top))
    draw = ImageDraw.Draw(plate)
    marks = [(1.0, "1", (235, 235, 235)), (0.0, "0", (235, 235, 235))]
    if threshold is not None:
        marks = [m for m in marks if abs(m[0] - threshold) > 0.12]
        marks.append((threshold, f"{threshold:.2f}", CONTOUR))
    for value, text, color in marks:
        y = top + round((1 - value) * (length - 1))
        draw.line((pad + thick, y, pad + thick + pad, y), fill=color, width=max(1, size // 8))
        draw.text((pad + thick + 2 * pad, y), text, font=font, fill=color, anchor="lm")
    corner = (photo.width - plate.width - pad, photo.height - plate.height - pad)
    shape = Image.new("L", plate.size, 0)
    ImageDraw.Draw(shape).rounded_rectangle((0, 0, plate.width - 1, plate.height - 1), pad, fill=205)
    ImageDraw.Draw(shape).rectangle((pad, top, pad + thick - 1, top + length - 1), fill=255)
    photo.paste(plate, corner, shape)
    return photo


def overlay(
    photo: Image.Image,
    cam: NDArray[np.floating],
    mask: NDArray[np.bool_],
    boxes: NDArray[np.integer],
    *,
    text: str = "",
    threshold: float | None = None,
    colormap: str = COLORMAP,
    legend: bool = True,
) -> Image.Image:
    """Draw heat, contour, boxes, `text` and a colour bar on the photo; shapes as in the single functions."""
    picture = rectangles(outline(heat(photo, cam, colormap=colormap), mask), boxes)
    if legend:
        picture = color_bar(picture, _shown(cam, threshold), colormap)
    at = (0, 0) if len(boxes) == 0 else (int(boxes[0][0]), int(boxes[0][1]))
    return tag(picture, text, at)


def _shown(cam: NDArray[np.floating], threshold: float | None) -> float | None:
    """Return where on the colour bar the cut lies: the threshold is a share of the map's maximum."""
    return None if threshold is None else float(threshold * cam.max(initial=0))


def comparison(
    photo: Image.Image,
    predicted_mask: NDArray[np.bool_] | None = None,
    true_mask: NDArray[np.bool_] | None = None,
    predicted_boxes: NDArray[np.integer] | None = None,
    true_boxes: NDArray[np.integer] | None = None,
    strength: float = 0.5,
) -> Image.Image:
    """Draw prediction against truth in the paper's colours.

    Masks (H, W): true positive red, false negative green, false positive blue; a predicted mask alone is red.
    Boxes (n, 4): predicted red, true green. Returns RGB; raises `FcamError` when a mask has another shape.
    """
    picture = photo.convert("RGB")
    if predicted_mask is not None:
        _check(photo, predicted_mask, "predicted mask")
        truth = predicted_mask if true_mask is None else true_mask
        _check(photo, truth, "true mask")
        parts = (
            (predicted_mask & truth, TRUE_POSITIVE),
            (~predicted_mask & truth, FALSE_NEGATIVE),
            (predicted_mask & ~truth, FALSE_POSITIVE),
        )
        for part, color in parts:
            picture.paste(color, None, Image.fromarray(part.astype(np.uint8) * np.uint8(255 * strength)))
    for boxes, color in ((true_boxes, TRUE_BOX), (predicted_boxes, PREDICTED_BOX)):
        if boxes is not None:
            picture = rectangles(picture, boxes, color)
    return picture
