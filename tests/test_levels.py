"""The levels at which a classifier is cut: their names, saved and found again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fcam

SIDE = 64


class CallsLikeLayers(nn.Module):
    """Both maps are results of functions called relu; the layer called relu gives others, of the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.relu = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()
        self.relu_1, self.fc = nn.Identity(), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu_1(self.conv1(x))
        x = F.relu(x)
        x = self.relu(self.conv2(x))
        x = F.relu(x - x.mean((2, 3), keepdim=True))
        return self.fc(x.mean((2, 3)))


@pytest.fixture
def images() -> Tensor:
    return torch.rand(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


def test_a_call_named_like_a_layer_is_loaded_as_the_call(images: Tensor, tmp_path: Path) -> None:
    yours = CallsLikeLayers().eval()
    model = fcam.attach(yours, image_size=SIDE).eval()
    assert [tap.path for tap in model.classifier.backbone.taps] == ["relu()", "relu_1()"]
    model.save_pretrained(tmp_path)
    again = fcam.FCAM.from_pretrained(tmp_path, classifier=yours).eval()
    for mine, loaded in zip(model(images).features, again(images).features, strict=True):
        assert torch.equal(mine, loaded)
    assert again.config() == model.config()
    torch.testing.assert_close(again(images).maps, model(images).maps)


def test_names_of_calls_are_also_taken_without_their_mark(images: Tensor, tmp_path: Path) -> None:
    yours = nn.Sequential(CallsLikeLayers()).eval()  # its layers are called 0.relu and 0.relu_1
    model = fcam.attach(yours, image_size=SIDE).eval()
    model.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    saved = json.loads(config.read_text())
    for tap in saved["classifier"]["taps"]:
        tap["path"] = tap["path"].removesuffix("()")
    config.write_text(json.dumps(saved))
    again = fcam.FCAM.from_pretrained(tmp_path, classifier=yours).eval()
    torch.testing.assert_close(again(images).maps, model(images).maps)


class SumsAndDivides(nn.Module):
    """A mean written as a sum over the number of pixels, or over that of the last map as the image's size gives it."""

    def __init__(self, of_image: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Conv2d(a, b, 3, 2, 1) for a, b in ((3, 8), (8, 8), (8, 8), (8, 16))))
        self.last, self.fc, self.of_image = nn.Conv2d(16, 16, 3, 2, 1), nn.Linear(16, 5), of_image

    def forward(self, x: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        x = self.last(F.relu(self.layers(x)))
        height, width = (height // 32, width // 32) if self.of_image else x.shape[2:]
        return self.fc(x.sum((2, 3)).view(batch, -1) / (height * width))


def test_a_side_of_two_pixels_is_not_taken_for_a_batch_of_two() -> None:
    yours = SumsAndDivides(of_image=False).eval()
    model = fcam.attach(yours, image_size=SIDE).eval()  # whose last map has 2x2 pixels
    for batch in (1, 2, 5):
        photos = torch.rand(batch, 3, SIDE, SIDE)
        torch.testing.assert_close(model.classifier(photos).logits, yours(photos))
    for side in (SIDE, 2 * SIDE):
        with pytest.raises(fcam.FcamError, match="also reads the image"):
            fcam.attach(SumsAndDivides(of_image=True), image_size=side)


class AsManyChannelsAsRows(nn.Module):
    """Ends in channels-last maps (B, 8, 8, 8) of images of 64 pixels, after a stage of (B, 16, 16, 16)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 16, 4, 4), nn.LayerNorm(16)
        self.mix, self.down = nn.Linear(16, 16), nn.Conv2d(16, 8, 2, 2)
        self.last, self.fc = nn.LayerNorm(8), nn.Linear(8, 3)

    def stage(self, x: Tensor) -> Tensor:
        x = self.norm(self.patches(x).permute(0, 2, 3, 1))
        x = x.flatten(1, 2) + self.mix(x.flatten(1, 2))
        return x.reshape(x.shape[0], 16, 16, 16).permute(0, 3, 1, 2)

    def maps(self, x: Tensor) -> Tensor:
        return self.last(self.down(self.stage(x)).permute(0, 2, 3, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.maps(x).mean((1, 2)))


def test_channels_are_told_from_rows_where_there_are_as_many(images: Tensor) -> None:
    torch.manual_seed(0)
    yours = AsManyChannelsAsRows().eval()
    maps = (yours.maps(images) @ yours.fc.weight[1]).detach()
    assert maps.shape == (2, 8, 8)
    for _ in range(2):
        torch.testing.assert_close(fcam.cam(yours, images, 1, normalize=False), maps)
    model = fcam.attach(yours, image_size=SIDE).eval()
    assert [(tap.channels, tap.stride) for tap in model.classifier.backbone.taps] == [(16, 4), (8, 8)]
    first, last = model(images).features
    torch.testing.assert_close(first, yours.stage(images).detach())
    torch.testing.assert_close(last, yours.down(yours.stage(images)).detach())
