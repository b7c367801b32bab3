"""Convolutions by Winograd's way: the direct way's results, only where they gain, in training and in whole forward passes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fcam import winograd
from fcam.config import TrainConfig
from fcam.registry import create_model
from fcam.stages import DecoderStage
from fcam.winograd import convolve, gains, quick_convolutions, weight_gradient

LAST = torch.channels_last
needs_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this way is for MKL")


def maps(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).contiguous(
        memory_format=LAST
    )


def error(found: Tensor, true: Tensor) -> float:
    return float(((found - true).pow(2).mean() / true.pow(2).mean()).detach().sqrt())


@pytest.mark.parametrize("sides", [(8, 8), (7, 9), (1, 4), (14, 29)])
@pytest.mark.parametrize("chunk", [1, 1 << 27])
def test_values_and_gradients_are_the_direct_ones(sides, chunk, monkeypatch):
    monkeypatch.setattr(winograd, "CHUNK_BYTES", chunk)
    images, weight, bias = maps(3, 33, *sides), maps(20, 33, 3, 3), maps(1, 20, 1, 1).flatten()
    gradient = maps(3, 20, *sides)
    exact = [tensor.double().requires_grad_() for tensor in (images, weight, bias)]
    true = F.conv2d(*exact, padding=1)
    by_images, by_weight, by_bias = torch.autograd.grad(true, exact, gradient.double())
    assert error(convolve(images, weight, bias), true) < 1e-5
    assert error(weight_gradient(images, gradient), by_weight) < 1e-5
    own = [tensor.clone(memory_format=torch.preserve_format).requires_grad_() for tensor in (images, weight)]
    result = winograd._Convolution.apply(*own, bias.requires_grad_())
    assert result.is_contiguous(memory_format=LAST)
    for found, wanted in zip(
        torch.autograd.grad(result, [*own, bias], gradient), (by_images, by_weight, by_bias), strict=True
    ):
        assert error(found, wanted) < 1e-5


@pytest.mark.parametrize(
    ("images", "weight", "taken"),
    [
        ((8, 512, 28, 28), (512, 512, 3, 3), True),
        ((8, 3072, 28, 28), (256, 3072, 3, 3), True),
        ((8, 128, 112, 112), (32, 128, 3, 3), False),  # narrow
        ((4, 512, 24, 24), (512, 512, 3, 3), True),
        ((32, 432, 14, 14), (128, 432, 3, 3), False),  # small: recipes with a stride of 16 keep their numbers
        ((2, 512, 28, 28), (512, 512, 3, 3), False),  # few patches
        ((8, 512, 28, 28), (512, 512, 1, 1), False),
    ],
)
def test_it_is_taken_by_shape(images, weight, taken):
    image = torch.empty(images, device="meta", memory_format=LAST)
    kernel = torch.empty(weight, device="meta")
    assert gains(image, kernel) == taken
    assert not gains(image.contiguous(), kernel)
    assert not gains(image.double(), kernel.double())


@pytest.fixture
def counted(monkeypatch) -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = []

    def count(images: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        shapes.append(tuple(weight.shape))
        return convolve(images, weight, bias)

    monkeypatch.setattr(winograd, "convolve", count)
    return shapes


@needs_mkl
@torch.no_grad()
def test_only_plain_wide_layers_go_this_way(counted):
    images = maps(4, 192, 24, 24)
    wide = nn.Conv2d(192, 200, 3, padding=1).to(memory_format=LAST)
    others = [
        nn.Conv2d(192, 200, 3, padding=1, stride=2),
        nn.Conv2d(192, 200, 3),
        nn.Conv2d(192, 200, 3, padding=2, dilation=2),
        nn.Conv2d(192, 192, 3, padding=1, groups=2),
        nn.Conv2d(192, 200, 3, padding="same"),
        nn.Conv2d(192, 200, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(192, 64, 3, padding=1),
    ]
    plain = wide(images)
    assert counted == []
    with quick_convolutions(images):
        quick = wide(images)
        assert len(counted) == 1
        for layer in others:
            assert layer(images).shape[1] == layer.out_channels
        wide(images.contiguous())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert wide(images).dtype == torch.bfloat16
    assert len(counted) == 1
    assert 0 < error(quick, plain) < 1e-5
    with torch.autocast("cpu", dtype=torch.bfloat16), quick_convolutions(images):
        wide(images)
    wide(images)
    assert len(counted) == 1


@needs_mkl
def test_the_decoders_step_goes_this_way_and_gives_the_same(counted, monkeypatch):
    torch.manual_seed(0)
    model = create_model("resnet50", 5, pretrained=False).to(memory_format=LAST)  # type: ignore[call-overload]
    images = torch.rand(2, 3, 64, 64).contiguous(memory_format=LAST)
    labels = torch.tensor([1, 3])
    monkeypatch.setattr(winograd, "PATCHES_EACH", 4)
    monkeypatch.setattr(winograd, "PATCHES", 8)
    found = {}
    for name in ("direct", "quick"):
        if name == "direct":
            monkeypatch.setattr(winograd, "WIDTH", 1 << 20)
        else:
            monkeypatch.setattr(winograd, "WIDTH", 96)
        assert counted == []
        stage = DecoderStage(model, TrainConfig())
        stage.parameter_groups(stage.settings.optimizer)
        stage.train()
        terms = stage(images, labels, 1, torch.Generator().manual_seed(0))
        sum(terms.values()).backward()
        found[name] = [*(value.detach() for value in terms.values())]
        found[name] += [layer.grad for layer in model.decoder.parameters()]
        model.zero_grad(set_to_none=True)
    assert (256, 3072, 3, 3) in counted
    assert (512, 512, 3, 3) in counted
    for quick, direct in zip(found["quick"], found["direct"], strict=True):
        torch.testing.assert_close(quick, direct, rtol=1e-3, atol=1e-4 * float(direct.abs().max()))


@needs_mkl
@pytest.mark.filterwarnings("ignore")  # of torch.jit, about itself
@torch.no_grad()
def test_a_whole_forward_pass_goes_this_way_and_gives_the_same_but_not_in_graphs(counted, monkeypatch):
    torch.manual_seed(0)
    model = create_model("resnet50", 5, pretrained=False).eval().to(memory_format=LAST)  # type: ignore[call-overload]
    images = torch.rand(2, 3, 64, 64).contiguous(memory_format=LAST)
    direct = model(images)
    assert counted == []
    monkeypatch.setattr(winograd, "PATCHES_EACH", 4)
    monkeypatch.setattr(winograd, "PATCHES", 8)
    torch.jit.trace(model, (images,), check_trace=False, strict=False)
    assert counted == []
    quick = model(images)
    assert (256, 3072, 3, 3) in counted
    for found, true in zip(quick[:2], direct[:2], strict=True):
        torch.testing.assert_close(found, true, rtol=1e-3, atol=1e-4 * float(true.abs().max()))
