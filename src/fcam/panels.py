"""Panels: pictures side by side and below each other, with titles and captions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from fcam.draw import INK, Color, fit, heat, outline, rectangles
from fcam.errors import FcamError

ROW_TITLES = ("photo", "CAM", "F-CAM", "mask and box")
"""Of the row that `side_by_side` returns."""


def panel(
    rows: Sequence[Sequence[Image.Image | None]],
    titles: Sequence[str] = (),
    captions: Sequence[str] = (),
    height: int = 240,
    gap: int = 8,
    background: Color = (255, 255, 255),
) -> Image.Image:
    """Arrange pictures in a grid, every row `height` pixels high, and return it; None leaves a place empty.

    Columns are as wide as their widest picture, `titles` stand above them, `captions` below the rows.
    Raises `FcamError` when there is no picture.
    """
    scaled = [[None if p is None else _to_height(p, height) for p in row] for row in rows]
    columns = max((len(row) for row in scaled), default=0)
    if not any(p is not None for row in scaled for p in row):
        raise FcamError("a panel needs at least one picture, got none")
    cells = [[row[c] if c < len(row) else None for row in scaled] for c in range(columns)]
    widths = [max((p.width for p in column if p is not None), default=height) for column in cells]
    size = max(11, height // 15)
    line = round(size * 1.6)
    head = line if titles else 0
    foot = line if captions else 0
    total = (sum(widths) + gap * (columns + 1), head + (height + foot + gap) * len(scaled) + gap)
    sheet = Image.new("RGB", total, background)
    draw = ImageDraw.Draw(sheet)
    ink = INK if sum(background) > 380 else (240, 240, 240)
    x = gap
    for column, width in enumerate(widths):
        if column < len(titles):
            text, font = fit(draw, titles[column], size, width)
            draw.text((x + width / 2, gap / 2 + line / 2), text, font=font, fill=ink, anchor="mm")
        for row, picture in enumerate(cells[column]):
            if picture is not None:
                top = head + gap + row * (height + foot + gap)
                sheet.paste(picture, (x + (width - picture.width) // 2, top))
        x += width + gap
    for row, caption in enumerate(captions[: len(scaled)]):
        text, font = fit(draw, caption, size, total[0] - 2 * gap)
        y = head + gap + row * (height + foot + gap) + height + line / 2
        draw.text((gap, y), text, font=font, fill=ink, anchor="lm")
    return sheet


def _to_height(picture: Image.Image, height: int) -> Image.Image:
    width = max(1, min(round(picture.width * height / picture.height), height * 4))
    return picture.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)


def side_by_side(
    photo: Image.Image,
    baseline: NDArray[np.floating] | None,
    cam: NDArray[np.floating],
    mask: NDArray[np.bool_],
    boxes: NDArray[np.integer],
) -> list[Image.Image | None]:
    """Return one row for `panel`: the photo, the classifier's CAM (or nothing), F-CAM, mask with box."""
    return [
        photo,
        None if baseline is None else heat(photo, baseline),
        heat(photo, cam),
        rectangles(outline(photo, mask), boxes),
    ]
