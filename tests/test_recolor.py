"""Photos in other colours: what changes, what stays, and a training with them."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fcam.config import TrainConfig
from fcam.errors import FcamError
from fcam.recolor import _hue_matrices, recolored
from fcam.registry import create_model
from fcam.stages import DecoderStage
from fcam.train import train


def test_hue_matrices_are_rotations_that_keep_greys():
    angles = torch.linspace(0, 6, 7)
    matrices = _hue_matrices(angles)
    torch.testing.assert_close(matrices @ matrices.mT, torch.eye(3).expand(7, 3, 3))
    torch.testing.assert_close(torch.linalg.det(matrices), torch.ones(7))
    torch.testing.assert_close(matrices @ torch.ones(3), torch.ones(7, 3))
    torch.testing.assert_close(matrices[0], torch.eye(3))
    # A third of a turn moves every channel to the next one.
    third = _hue_matrices(torch.tensor([2 * torch.pi / 3]))[0]
    torch.testing.assert_close(
        third @ torch.tensor([1.0, 0, 0]), torch.tensor([0, 1.0, 0]), atol=1e-6, rtol=0
    )


def test_colours_change_and_shapes_stay():
    images = torch.rand(4, 3, 20, 30, generator=torch.Generator().manual_seed(0))
    images[:, :, :10] = torch.tensor([0.7, 0.2, 0.1])[:, None, None]
    found = recolored(images, torch.Generator().manual_seed(1))
    assert found.shape == images.shape
    assert found.min() >= 0
    assert found.max() <= 1
    flat = found[:, :, :10].flatten(2)
    assert (flat == flat[..., :1]).all()  # one colour stays one colour
    assert len({tuple(image[:, 0].tolist()) for image in flat}) == 4  # each image another
    assert not torch.allclose(found, images, atol=0.05)
    assert torch.equal(recolored(images, torch.Generator().manual_seed(1)), found)


def test_the_decoder_alone_sees_other_colours(monkeypatch):
    model = create_model("timm:test_resnet", 3, pretrained=False)
    images, labels = torch.rand(4, 3, 64, 64), torch.tensor([0, 1, 2, 0])
    stage = DecoderStage(model, TrainConfig(recolor=0.5))
    stage.parameter_groups(stage.settings.optimizer)
    stage.eval()
    before = stage.features(images)
    seen = {}

    def seed_maps(photos, features, labels):
        seen["photos"], seen["clean"] = photos, features
        return torch.rand(4, 64, 64)

    def decoder(features, size):
        seen["features"] = features
        return torch.zeros(4, 2, *size, requires_grad=True)

    stage.seed_maps = seed_maps
    monkeypatch.setattr(model.decoder, "forward", decoder)
    monkeypatch.setattr(
        stage.loss, "forward", lambda logits, seeds, images, epoch: seen.update(loss=images) or {}
    )
    stage(images, labels, 1, torch.Generator().manual_seed(0))
    assert torch.equal(seen["photos"], images)
    for clean, changed, old in zip(seen["clean"], seen["features"], before, strict=True):
        assert torch.equal(clean, old)
        assert not torch.allclose(changed[:2], old[:2])
        assert torch.equal(changed[2:], old[2:])
    assert torch.equal(seen["loss"], images)


@pytest.mark.parametrize("share", [0.04, 1.5])
def test_a_share_that_recolours_none_or_more_than_all_is_refused(tiny_config, tmp_path, share):
    with pytest.raises(FcamError, match="recolor"):
        train(dataclasses.replace(tiny_config, recolor=share, out=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()
