"""Mosaics: what they are made of, and a training with them."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fcam.config import TrainConfig
from fcam.errors import FcamError
from fcam.mosaics import draw_mosaics
from fcam.registry import create_model
from fcam.stages import DecoderStage
from fcam.train import train


@pytest.mark.parametrize("size", [(64, 64), (33, 47)])
def test_four_photos_of_the_batch_with_their_maps(size):
    levels = torch.arange(1.0, 7) / 8
    images = levels[:, None, None, None].expand(6, 3, *size)
    maps = levels[:, None, None].expand(6, *size) ** 2
    found, their_maps = draw_mosaics(images, maps, 5, torch.Generator().manual_seed(0))
    assert found.shape == (5, 3, *size)
    torch.testing.assert_close(found[:, 0] ** 2, their_maps)
    height, width = size
    for mosaic in (found[:, 1] * 8).round() / 8:
        corners = [mosaic[y, x].item() for y in (0, -1) for x in (0, -1)]
        assert len(set(corners)) == 4
        assert set(corners) <= set(levels.tolist())
        assert (mosaic[: height - height // 2, : width - width // 2] == corners[0]).all()
        assert (mosaic[height - height // 2 :, : width - width // 2] == corners[2]).all()
    again, none = draw_mosaics(images, None, 5, torch.Generator().manual_seed(0))
    assert torch.equal(again, found)
    assert none is None


def test_fewer_than_four_photos_come_again():
    found, _ = draw_mosaics(torch.rand(1, 3, 32, 32), None, 2)
    torch.testing.assert_close(found[0, :, :16, :16], found[1, :, 16:, 16:])


def test_the_decoder_learns_from_them_too(monkeypatch):
    seen = []
    model = create_model("timm:test_resnet", 3, pretrained=False)
    images, labels = torch.rand(6, 3, 64, 64), torch.tensor([0, 1, 2, 0, 1, 2])
    for share, count in ((0.0, 6), (0.34, 8), (0.05, 6)):
        stage = DecoderStage(model, TrainConfig(mosaics=share))
        stage.parameter_groups(stage.settings.optimizer)
        stage.train()

        def loss(logits, seeds, images, epoch):
            seen.append((len(logits), len(seeds), len(images)))
            assert (seeds[6:] != 255).any(dim=(1, 2)).all()
            return {"all": logits.mean()}

        monkeypatch.setattr(stage.loss, "forward", loss)
        stage(images, labels, 1, torch.Generator().manual_seed(0))
        assert seen[-1] == (count,) * 3


def test_a_run_with_mosaics_is_the_same_twice(tiny_run, tiny_config, tmp_path):
    def weights(name: str, share: float):
        config = dataclasses.replace(
            tiny_config,
            out=str(tmp_path / name),
            stages="decoder",
            classifier_from=str(tiny_run),
            mosaics=share,
        )
        return (train(config) / "model" / "model.safetensors").read_bytes()

    first = weights("first", 0.5)
    assert first == weights("second", 0.5)
    assert first != weights("without", 0.0)


def test_shares_out_of_range_are_refused(tiny_config, tmp_path):
    with pytest.raises(FcamError, match="--mosaics is -0.5"):
        train(dataclasses.replace(tiny_config, out=str(tmp_path / "run"), mosaics=-0.5))
