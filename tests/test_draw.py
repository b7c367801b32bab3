"""Pictures: what is drawn lies where it should, at every size."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from fcam import draw, panels
from fcam.errors import FcamError

GREY = (128, 128, 128)
NO_BOX = np.empty((0, 4), int)


def photo(size: tuple[int, int] = (300, 200)) -> Image.Image:
    return Image.new("RGB", size, GREY)


def square(shape: tuple[int, int] = (200, 300)) -> np.ndarray:
    mask = np.zeros(shape, bool)
    mask[50:150, 100:200] = True
    return mask


def test_heat_leaves_calm_regions_untouched_and_colours_the_rest() -> None:
    picture = np.asarray(draw.heat(photo(), square().astype(np.float32)))
    assert (picture[:40] == 128).all()
    inside = picture[60:140, 110:190].reshape(-1, 3)
    assert (inside == inside[0]).all()
    assert inside[0].tolist() != [128, 128, 128]


def test_heat_grows_with_the_activation() -> None:
    ramp = np.tile(np.linspace(0, 1, 256, dtype=np.float32), (8, 1))
    picture = np.asarray(draw.heat(photo((256, 8)), ramp, strength=1.0), dtype=int)
    change = np.abs(picture[0, :, 2] - 128) + np.abs(picture[0, :, 0] - 128)
    assert change[0] == 0
    assert change[40] < change[120] < change[255]


def test_outline_follows_the_edge_and_stops_at_the_border() -> None:
    mask = square()
    mask[:, 250:] = True  # touches three borders of the picture
    drawn = (np.asarray(draw.outline(photo(), mask, width=3)) != 128).any(2)
    assert drawn[100, 98:102].all()
    assert drawn[100, 249:251].all()
    assert not drawn[100, 110:190].any()
    assert not drawn[100, 256:].any(), "no line along the picture's border"
    assert not drawn[:44, :240].any()


def test_outline_has_the_width_that_was_asked_for_and_soft_edges() -> None:
    mask = np.zeros((120, 120), bool)
    mask[:, 60:] = True
    for width in (2.0, 4.0, 9.0):
        row = np.asarray(draw.outline(photo((120, 120)), mask, (255, 255, 255), width), dtype=float)[60, :, 1]
        bright = np.clip((row - 128) / 127, 0, 1)
        assert bright.sum() == pytest.approx(width, abs=1.3)
        assert bright[59:61].min() > 0.9


def test_lines_and_letters_grow_with_the_picture() -> None:
    assert draw.line_width((100, 100)) == 1.5
    assert draw.line_width((4000, 3000)) == pytest.approx(20, abs=2)
    assert draw.font_size((4000, 3000)) > 4 * draw.font_size((800, 600))
    assert draw.font_size((30, 30)) == 9


def test_rectangles_stand_on_the_boxs_first_and_last_pixel() -> None:
    box = np.array([[20, 30, 60, 70]])
    picture = np.asarray(draw.rectangles(photo(), box, (0, 255, 0), width=1))
    green = (picture == (0, 255, 0)).all(2)
    rows, columns = np.nonzero(green)
    assert (columns.min(), rows.min(), columns.max(), rows.max()) == (20, 30, 59, 69)
    assert not green[35:65, 25:55].any()


def test_nothing_changes_the_picture_that_is_passed() -> None:
    image = photo()
    draw.overlay(
        image, square().astype(np.float32), square(), np.array([[100, 50, 200, 150]]), text="cat 97 %"
    )
    assert image.getcolors() == [(300 * 200, GREY)]


@pytest.mark.parametrize("size", [(1, 1), (2, 500), (500, 2), (20, 20), (60, 60), (161, 161), (2000, 170)])
def test_overlay_at_every_size(size: tuple[int, int]) -> None:
    width, height = size
    cam = np.linspace(0, 1, width * height, dtype=np.float32).reshape(height, width)
    text = "Großer Münsterländer, a very long name indeed 97 %"
    picture = draw.overlay(
        photo(size), cam, cam > 0.5, np.array([[0, height // 2, width, height]]), text=text, threshold=0.5
    )
    assert picture.size == size
    assert draw.overlay(photo(size), cam * 0, cam > 2, NO_BOX, text=text, threshold=0.5).size == size


def test_color_bar_marks_the_threshold_and_spares_small_pictures() -> None:
    plain, marked = draw.color_bar(photo()), draw.color_bar(photo(), 0.4)
    assert plain.tobytes() != marked.tobytes()
    assert (np.asarray(plain)[:, :200] == 128).all()
    assert draw.color_bar(photo((100, 400))).tobytes() == photo((100, 400)).tobytes()


def test_tag_stays_within_the_picture() -> None:
    for at in ((0, 0), (290, 195), (-50, 900)):
        picture = np.asarray(draw.tag(photo(), "cat 97 %", at, (255, 255, 0)))
        plate = (picture == (255, 255, 0)).all(2)
        assert plate.sum() > 300
    assert draw.tag(photo((40, 40)), "cat", (0, 0)).tobytes() == photo((40, 40)).tobytes()


def test_comparison_has_the_papers_colours() -> None:
    predicted, truth = np.zeros((200, 300), bool), np.zeros((200, 300), bool)
    predicted[:, 100:200] = True
    truth[:, 150:250] = True
    picture = np.asarray(draw.comparison(photo(), predicted, truth, strength=1.0))
    assert tuple(picture[100, 125]) == draw.FALSE_POSITIVE
    assert tuple(picture[100, 175]) == draw.TRUE_POSITIVE
    assert tuple(picture[100, 225]) == draw.FALSE_NEGATIVE
    assert tuple(picture[100, 50]) == GREY
    boxes = draw.comparison(photo(), None, None, np.array([[10, 10, 60, 60]]), np.array([[100, 10, 160, 60]]))
    assert boxes.getpixel((10, 30)) == draw.PREDICTED_BOX
    assert boxes.getpixel((100, 30)) == draw.TRUE_BOX


def test_panel_lines_up_columns_and_leaves_gaps() -> None:
    a, b = Image.new("RGB", (100, 50), (255, 0, 0)), Image.new("RGB", (50, 100), (0, 0, 255))
    sheet = panels.panel([[a, b], [b, None, a]], height=100, gap=10)
    assert sheet.size == (200 + 50 + 200 + 4 * 10, 2 * 110 + 10)
    assert sheet.getpixel((15, 15)) == (255, 0, 0)
    assert sheet.getpixel((225, 15)) == (0, 0, 255)
    assert sheet.getpixel((110, 170)) == (0, 0, 255), "narrow pictures stand in the middle of their column"
    assert sheet.getpixel((230, 170)) == (255, 255, 255)
    labelled = panels.panel([[a]], ["a title that is much too long for it"], ["caption"], height=100, gap=10)
    assert labelled.width == 220
    assert labelled.height > 150


def test_side_by_side_fits_the_titles() -> None:
    cam = square().astype(np.float32)
    row = panels.side_by_side(photo(), None, cam, square(), NO_BOX)
    assert len(row) == len(panels.ROW_TITLES) == 4
    assert row[1] is None
    assert panels.side_by_side(photo(), cam, cam, square(), NO_BOX)[1] is not None


@pytest.mark.parametrize("function", [draw.heat, draw.outline, draw.comparison])
def test_another_shape_is_refused(function: object) -> None:
    with pytest.raises(FcamError, match=r"\(300, 200\).*200 high"):
        function(photo(), np.zeros((300, 200), bool))  # type: ignore[operator]


def test_other_mistakes_are_sentences() -> None:
    with pytest.raises(FcamError, match="rainbow-ish"):
        draw.heat(photo(), square().astype(np.float32), colormap="rainbow-ish")
    with pytest.raises(FcamError, match="at least one picture"):
        panels.panel([[None], []])
