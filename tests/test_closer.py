"""A second, closer look at what the first one found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from fcam.boxes import from_map
from fcam.errors import FcamError
from fcam.model import FCAM
from fcam.predict.closer import MARGIN, Closer, Window, put_in, windows
from fcam.predict.folder import predict_files
from fcam.predict.localizer import Localizer
from planted import Planted

Box = tuple[int, int, int, int]


def bright(*boxes: Box, size: tuple[int, int] = (64, 64)) -> torch.Tensor:
    """A map (h, w) that is 0.9 in boxes with exclusive ends and 0.1 elsewhere."""
    map = torch.full((size[1], size[0]), 0.1)
    for x0, y0, x1, y1 in boxes:
        map[y0:y1, x0:x1] = 0.9
    return map


def discs(size: tuple[int, int], *circles: tuple[int, int, int]) -> tuple[Image.Image, np.ndarray]:
    """A grey photo with red discs (x, y, radius), and which pixels are red."""
    photo = Image.new("RGB", size, (90, 90, 90))
    draw = ImageDraw.Draw(photo)
    for x, y, radius in circles:
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=(255, 0, 0))
    return photo, np.asarray(photo)[..., 1] == 0


def localizer(**options: Any) -> Localizer:
    model = cast(FCAM, Planted(classes=["red", "green", "blue"]))
    return Localizer(model, size=64, threshold=0.5, **options)


def overlap(mask: np.ndarray, true: np.ndarray) -> float:
    return (mask & true).sum() / (mask | true).sum()


@pytest.mark.parametrize(
    "box", [(20, 24, 30, 34), (0, 0, 6, 12), (58, 50, 64, 64), (10, 30, 40, 32), (63, 0, 64, 1)]
)
@pytest.mark.parametrize("size", [(640, 640), (1000, 500), (64, 300), (77, 51)])
def test_a_window_is_a_square_around_its_box_inside_the_photo(box: Box, size: tuple[int, int]) -> None:
    found = windows(bright(box), size, 0.5, "largest")
    x0, y0, x1, y1 = (side * size[i % 2] / 64 for i, side in enumerate(box))
    side = max(MARGIN * max(x1 - x0, y1 - y0), 0.15 * min(size))
    if min(side, size[0]) * min(side, size[1]) > 0.65 * size[0] * size[1]:
        assert found == []
        return
    (window,) = found
    width, height = window.x1 - window.x0, window.y1 - window.y0
    assert 0 <= window.x0 < window.x1 <= size[0]
    assert 0 <= window.y0 < window.y1 <= size[1]
    assert width == min(round(side), size[0])
    assert height == min(round(side), size[1])
    assert window.x0 <= x0
    assert window.y0 <= y0
    assert x1 <= window.x1
    assert y1 <= window.y1


def test_nothing_to_look_at_again() -> None:
    size = (640, 640)
    assert windows(bright((2, 2, 62, 60)), size, 0.5, "all") == []
    assert windows(torch.zeros(64, 64), size, 0.5, "all") == []
    assert windows(torch.full((64, 64), torch.nan), size, 0.5, "all") == []


def test_every_component_has_its_window_but_specks_and_what_was_seen() -> None:
    boxes = (2, 2, 22, 22), (23, 4, 25, 10), (50, 50, 60, 60), (60, 4, 62, 6)
    near, far = windows(bright(*boxes), (640, 640), 0.5, "all")
    assert near == Window(0, 0, 280, 280)  # holds the second box too
    assert far == Window(480, 480, 620, 620)
    assert windows(bright(*boxes), (640, 640), 0.5, "largest") == [near]
    assert len(windows(bright(boxes[3]), (640, 640), 0.5, "all")) == 1  # a speck that is all there is


def test_a_small_object_is_outlined_far_better() -> None:
    photo, red = discs((1200, 800), (900, 300, 25))
    once, twice = (localizer(zoom=zoom)(photo) for zoom in (False, True))
    assert overlap(once.mask, red) < 0.87
    assert overlap(twice.mask, red) > 0.95
    assert np.abs(twice.boxes - [[875, 275, 926, 326]]).max() <= 3
    assert (twice.label, twice.score) == (once.label, once.score)
    assert np.array_equal(once.cam[600:], twice.cam[600:])  # outside of the window


def test_all_boxes_look_at_each_object() -> None:
    photo, red = discs((1200, 800), (200, 200, 40), (1000, 600, 25))
    one, all = (localizer(zoom=True, boxes=rule)(photo) for rule in ("largest", "all"))
    right = np.s_[400:, 600:]
    assert overlap(one.mask[right], red[right]) < 0.87 < 0.95 < overlap(all.mask[right], red[right])
    assert len(all.boxes) == 2


@pytest.mark.parametrize("options", [{}, {"keep_aspect": True}, {"flip": True, "refine": True}])
def test_batches_of_photos_give_what_each_gives_alone(options: dict[str, Any]) -> None:
    photos = [
        discs((600, 400), (100, 100, 25))[0],
        discs((300, 300), (150, 150, 140))[0],  # nearly all of the photo
        Image.new("RGB", (50, 40), (0, 90, 0)),  # nothing found
        discs((900, 300), (100, 100, 25), (700, 200, 40))[0],
    ]
    several = localizer(zoom=True, boxes="all", batch_size=2, **options)
    alone = localizer(zoom=True, boxes="all", batch_size=1, **options)
    for together, photo in zip(several(photos), photos, strict=True):
        by_itself = alone(photo)
        assert np.allclose(together.cam, by_itself.cam, atol=1e-6)
        assert np.array_equal(together.boxes, by_itself.boxes)


def test_the_second_look_does_not_lose_what_the_first_found() -> None:
    cam = bright((10, 10, 20, 20)).numpy()
    window = Window(5, 5, 25, 25)
    faint = Closer(window, torch.full((8, 8), 0.3))
    assert np.array_equal(put_in(cam, [faint], 0.5), cam)
    clear = Closer(window, torch.full((8, 8), 0.8))
    after = put_in(cam, [faint, clear], 0.5)
    assert np.allclose(after[5:25, 5:25], 0.8)
    after[5:25, 5:25] = cam[5:25, 5:25]
    assert np.array_equal(after, cam)


def test_where_windows_overlap_the_larger_value_counts() -> None:
    cam = np.full((20, 20), 0.9, np.float32)
    seen = [
        Closer(Window(0, 0, 12, 20), torch.full((4, 4), 0.6)),
        Closer(Window(8, 0, 20, 20), torch.full((4, 4), 0.7)),
    ]
    for order in (seen, seen[::-1]):
        after = put_in(cam, order, 0.5)
        assert np.allclose(after[:, :8], 0.6)
        assert np.allclose(after[:, 8:], 0.7)


def test_a_second_look_that_is_not_finite_is_refused() -> None:
    photo, _ = discs((600, 400), (100, 100, 25))
    it = localizer(zoom=True)
    (output,) = it.look([photo], it.prepare(photo)[None])
    (closer,) = output.closer
    broken = output._replace(closer=(closer._replace(map=closer.map * torch.nan),))
    with pytest.raises(FcamError, match="not finite"):
        it.finish(photo, broken)


def test_a_folder_is_looked_at_as_single_photos_are(tmp_path: Path) -> None:
    for number in range(3):
        discs((600, 400), (100 + 150 * number, 120, 25))[0].save(tmp_path / f"{number}.png")
    paths = sorted(tmp_path.glob("*.png"))
    predict_files(localizer(zoom=True, batch_size=2), paths, tmp_path / "out")
    rows = json.loads((tmp_path / "out" / "predictions.json").read_text())["predictions"]
    for row, path in zip(rows, paths, strict=True):
        found = localizer(zoom=True)(path)
        assert row["boxes"] == found.boxes.tolist()
        mask = np.asarray(Image.open(tmp_path / "out" / row["files"]["masks"]))
        assert np.array_equal(mask > 0, found.mask)
        assert len(from_map(found.cam, 0.5, convention="exact")) == 1
