"""Maps refined along the photo's edges."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
import torch
from PIL import Image

from fcam.errors import FcamError
from fcam.model import FCAM
from fcam.predict.localizer import Localizer
from fcam.refine import refine
from planted import Planted


def two_colours(height: int = 64, width: int = 96) -> tuple[torch.Tensor, torch.Tensor]:
    """An image whose left third is red and the rest blue, and which pixels are red."""
    red = torch.zeros(height, width, dtype=torch.bool)
    red[:, : width // 3] = True
    image = torch.where(
        red, torch.tensor([0.9, 0.1, 0.1])[:, None, None], torch.tensor([0.1, 0.2, 0.8])[:, None, None]
    )
    return image[None], red


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.9])
def test_pixels_of_one_colour_agree(threshold: float) -> None:
    image, red = two_colours()
    draw = torch.Generator().manual_seed(0)
    noise = torch.rand(red.shape, generator=draw)
    # A third of the pixels of each side are on the wrong side of the threshold.
    wrong = noise < 1 / 3
    maps = (torch.logit(torch.tensor(threshold)) + torch.where(red ^ wrong, 1.0, -1.0)).sigmoid()[None]
    maps[0, 0, 0] = 1.0  # so that the threshold is a share of 1
    before = maps[0] >= threshold
    assert (before != red).float().mean() > 0.3
    after = refine(image, maps, threshold)
    assert after.shape == maps.shape
    assert after.min() >= 0
    assert after.max() <= 1
    assert ((after[0] >= threshold * after.max()) != red).float().mean() < 0.01


def test_a_photo_is_refined_by_itself_and_a_constant_map_stays() -> None:
    image, red = two_colours()
    maps = torch.stack([red.float() * 0.6 + 0.2, torch.zeros(red.shape), torch.full(red.shape, 0.7)])
    images = torch.cat([image, image, image.flip(-1)])
    together = refine(images, maps, 0.5)
    assert torch.equal(together[1:], maps[1:])
    assert torch.equal(refine(image, maps[:1], 0.5), together[:1])


def test_far_pixels_of_the_same_colour_stay_what_they_are() -> None:
    image, red = two_colours(64, 192)
    image[..., -32:] = image[..., :1]  # another red body, far away, that the map leaves out
    maps = torch.where(red, 0.95, 0.05)[None]
    after = refine(image, maps, 0.5)[0] >= 0.5
    assert after[:, :60].all()
    assert not after[:, -20:].any()


def test_maps_and_images_must_be_of_one_size() -> None:
    with pytest.raises(FcamError, match=r"maps have shape \(1, 8, 8\)"):
        refine(torch.zeros(1, 3, 64, 64), torch.zeros(1, 8, 8), 0.5)


def test_a_localizer_refines_its_maps() -> None:
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8))
    model = cast(FCAM, Planted(classes=["red", "green", "blue"]))
    plain, sharp = (Localizer(model, size=64, refine=on)(photo) for on in (False, True))
    small = np.array(photo.resize((64, 64), Image.Resampling.BILINEAR))
    image = torch.from_numpy(small).permute(2, 0, 1)[None]
    localizer = Localizer(model, size=64)
    expected = refine(image.float() / 255, localizer.infer(image)[0].map[None], localizer.threshold)
    assert torch.equal(Localizer(model, size=64, refine=True).infer(image)[0].map, expected[0])
    assert not np.array_equal(plain.cam, sharp.cam)
