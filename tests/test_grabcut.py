"""Maps cut out of their photos by GrabCut."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from PIL import Image

from discs import blurred, disc
from fcam import grabcut as module
from fcam.cli import main
from fcam.errors import FcamError
from fcam.grabcut import grabcut
from fcam.model import FCAM
from fcam.predict.localizer import Localizer
from fcam.predict.prediction import cut
from planted import Planted


def foreground_mask(map: torch.Tensor, threshold: float) -> torch.Tensor:
    return torch.from_numpy(cut(map.numpy(), threshold)[0])


def overlap(map: torch.Tensor, object: torch.Tensor, threshold: float) -> float:
    found = foreground_mask(map, threshold)
    return ((found & object).sum() / (found | object).sum()).item()


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("highest", [1.0, 0.2])
def test_the_border_lies_where_the_colours_change(threshold: float, highest: float) -> None:
    images, object = disc()
    maps = blurred(object, 4, highest)
    assert overlap(maps[0], object, threshold) < 0.85
    found = grabcut(images, maps, threshold)
    assert overlap(found[0], object, threshold) > 0.97
    assert found.shape == maps.shape
    assert found.dtype == torch.float32
    assert found.min() >= 0
    assert found.max() == maps.max()


def test_an_object_grows_to_twice_its_pixels_at_most() -> None:
    images, object = disc()
    maps = blurred(object, 9)
    before, after = (foreground_mask(m[0], 0.85) for m in (maps, grabcut(images, maps, 0.85)))
    assert before.sum() < object.sum() / 2
    assert before.sum() < after.sum() <= 2 * before.sum() + 1, "cut out freely it would be whole"


def test_what_is_sure_changes_no_side() -> None:
    images, object = disc()
    images[:, :, 40:56, 40:56] = torch.tensor([90, 95, 100], dtype=torch.uint8)[
        :, None, None
    ]  # as the ground
    maps = blurred(object, 9)
    found = foreground_mask(grabcut(images, maps, 0.5)[0], 0.5)
    before = foreground_mask(maps[0], 0.5)
    assert found[maps[0] >= maps[0][before].quantile(1 / 3)].all()
    assert not found[maps[0] <= maps[0][~before].quantile(0.5)].any()


@pytest.mark.parametrize("threshold", [0.02, 0.5, 0.9])
def test_higher_thresholds_cut_the_same_object_and_the_background_keeps_its_values(threshold: float) -> None:
    images, object = disc()
    maps = blurred(object, 9)
    found = grabcut(images, maps, threshold)[0]
    inside = foreground_mask(found, threshold)
    assert torch.equal(inside, foreground_mask(found, 0.99))
    assert inside.any()
    assert not inside.all()
    assert (found[inside] == maps.max()).all()
    assert (found[~inside] <= maps[0][~inside]).all()
    faint = ~inside & (maps[0] < 2 * threshold - 1 - 0.01)
    assert torch.equal(found[faint], maps[0][faint])


def test_the_same_photo_gives_the_same_map_alone_and_in_company() -> None:
    first, object = disc()
    second, _ = disc(draw=1)
    maps = torch.cat([blurred(object, 9), blurred(object, 6)])
    together = grabcut(torch.cat([first, second]), maps, 0.5)
    for _ in range(2):
        assert torch.equal(grabcut(second, maps[1:], 0.5), together[1:])
        assert torch.equal(grabcut(first, maps[:1], 0.5), together[:1])


def test_maps_that_say_nothing_stay() -> None:
    images, object = disc()
    speck = torch.zeros(object.shape)
    speck[:4, :6] = 1.0
    maps = torch.stack([torch.zeros(object.shape), torch.full(object.shape, 0.7), speck, 1 - speck])
    assert torch.equal(grabcut(images.expand(4, -1, -1, -1), maps, 0.5), maps)
    broken = torch.full((1, *object.shape), float("nan"))
    assert grabcut(images, broken, 0.5).isnan().all(), "the localizer has a sentence for these"
    assert grabcut(images[:0], maps[:0], 0.5).shape == (0, *object.shape)


def test_a_photo_of_one_colour_is_cut_as_the_map_is() -> None:
    _, object = disc()
    images = torch.full((1, 3, *object.shape), 128, dtype=torch.uint8)
    found = grabcut(images, blurred(object, 9), 0.5)
    assert found.isfinite().all()


@pytest.mark.parametrize(
    ("images", "maps"),
    [
        (torch.zeros(1, 3, 64, 64, dtype=torch.uint8), torch.zeros(1, 8, 8)),
        (torch.zeros(1, 3, 64, 64), torch.zeros(1, 64, 64)),
    ],
)
def test_maps_and_images_must_fit(images: torch.Tensor, maps: torch.Tensor) -> None:
    with pytest.raises(FcamError, match=r"pass \(B, H, W\) and uint8 \(B, 3, H, W\)"):
        grabcut(images, maps, 0.5)


def test_a_localizer_cuts_its_objects_out() -> None:
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8))
    model = cast(FCAM, Planted(classes=["red", "green", "blue"]))
    small = np.array(photo.resize((64, 64), Image.Resampling.BILINEAR))
    image = torch.from_numpy(small).permute(2, 0, 1)[None]
    localizer = Localizer(model, 0.1, size=64)
    plain = localizer.infer(image)[0].map
    cut_out = Localizer(model, 0.1, size=64, grabcut=True).infer(image)[0].map
    assert torch.equal(cut_out, grabcut(image, plain[None], localizer.threshold)[0])
    assert not torch.equal(cut_out, plain)


def test_without_opencv_a_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(FcamError, match=r'pip install "fcam\[grabcut\]"'):
        module.load_opencv()
    with pytest.raises(FcamError, match="OpenCV, which is not installed"):
        Localizer(cast(FCAM, Planted(classes=["a", "b", "c"])), size=64, grabcut=True)
    photo = tmp_path / "photo.png"
    Image.new("RGB", (64, 64)).save(photo)
    assert main(["predict", str(photo), "--out", str(tmp_path / "out"), "--grabcut"]) != 0
    assert "fcam[grabcut]" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()
