"""Batch normalisation folded into convolutions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fcam
from fcam.folding import folded


def norms(model: nn.Module) -> int:
    return sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())


def shaken(model: nn.Module) -> nn.Module:
    """Statistics and weights as after training, so that folding changes something."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low in ((module.running_mean, -0.5), (module.running_var, 0.5)):
                assert tensor is not None
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + low)
            with torch.no_grad():
                module.weight.copy_(torch.rand(module.weight.shape, generator=generator) + 0.5)
                module.bias.copy_(torch.rand(module.bias.shape, generator=generator) - 0.5)
    return model.eval()


@pytest.mark.parametrize("name", ["resnet50", "tf_efficientnet_lite0", "timm:regnety_002"])
def test_same_outputs_without_a_normalisation_left(name: str) -> None:
    torch.manual_seed(0)
    model = shaken(fcam.create_model(name, 5, pretrained=False, output_stride=32))
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    twin = folded(model, images[:1])
    assert twin is not model
    assert norms(twin) == 0 < norms(model)
    with torch.no_grad():
        before, after = model(images), twin(images)
    for wanted, found in zip((before.logits, before.maps), (after.logits, after.maps), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3 * float(wanted.abs().max()))


class Net(nn.Module):
    """`twice`: the convolution's output also goes past the normalisation."""

    def __init__(self, twice: bool) -> None:
        super().__init__()
        self.conv, self.norm, self.twice = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), twice

    def forward(self, images: Tensor) -> tuple[Tensor]:
        first = self.conv(images)
        return (self.norm(first) + first,) if self.twice else (self.norm(first),)


def test_an_output_that_others_read_is_not_folded() -> None:
    images = torch.rand(1, 3, 8, 8)
    once, twice = shaken(Net(twice=False)), shaken(Net(twice=True))
    assert norms(folded(once, images)) == 0
    assert folded(twice, images) is twice


def test_layers_that_run_twice_are_left() -> None:
    class Shared(Net):
        def forward(self, images: Tensor) -> tuple[Tensor]:
            return (self.norm(self.conv(images)) + self.norm(self.conv(images.flip(3))),)

    model = shaken(Shared(twice=False))
    assert folded(model, torch.rand(1, 3, 8, 8)) is model


def test_statistics_of_the_batch_are_left() -> None:
    model = Net(twice=False).train()
    assert folded(model, torch.rand(1, 3, 8, 8)) is model


def test_localizer_folds_what_it_loaded_and_not_what_it_was_given(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = fcam.create_model("timm:test_resnet", 3, pretrained=False, output_stride=32)
    shaken(model)
    model.metadata["decoder_trained"] = True
    model.save_pretrained(tmp_path)
    photo = torch.randint(0, 256, (3, 50, 70), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    given, loaded = fcam.Localizer(model, size=64), fcam.Localizer(tmp_path, size=64)
    assert norms(given.network.module) == norms(model)
    assert norms(loaded.network.module) == 0 < norms(loaded.model)
    a, b = given(photo), loaded(photo)
    assert abs(a.cam - b.cam).max() < 1e-3
    assert abs(a.score - b.score) < 1e-3
