"""The convolution of a doubled map: its quick way against doubling, appending and convolving in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fcam import upsampled
from fcam.decoder import Decoder
from fcam.upsampled import UpsampledConv2d, interleave, take_apart

LAST = torch.channels_last


def maps(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).contiguous(memory_format=LAST)


def plainly(layer: nn.Conv2d, x: Tensor, skip: Tensor | None) -> Tensor:
    x = F.interpolate(x, scale_factor=2.0, mode="nearest")
    x = x if skip is None else torch.cat((x, skip), 1)
    return F.conv2d(x, layer.weight, layer.bias, padding=1)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """How often the quick way was taken."""
    taken: list[bool] = []
    way = UpsampledConv2d._on_the_map

    def watched(self: Any, x: Tensor, skip: Tensor | None) -> Tensor:
        taken.append(True)
        return way(self, x, skip)

    monkeypatch.setattr(UpsampledConv2d, "_on_the_map", watched)
    return taken


@pytest.mark.parametrize("sides", [(1, 1), (1, 4), (5, 3), (8, 8)])
@pytest.mark.parametrize("skip_channels", [0, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients(
    sides: tuple[int, int], skip_channels: int, bias: bool, quick: list[bool]
) -> None:
    torch.manual_seed(0)
    layer = UpsampledConv2d(4 + skip_channels, 5, bias=bias)
    x = maps(3, 4, *sides).requires_grad_()
    skip = maps(3, skip_channels, *(2 * side for side in sides)) if skip_channels else None
    found = layer(x, skip)
    assert quick == [True]
    assert found.is_contiguous(memory_format=LAST)
    gradient = maps(*found.shape)
    by = torch.autograd.grad(found, [x, *layer.parameters()], gradient)
    exact = UpsampledConv2d(4 + skip_channels, 5, bias=bias).double()
    exact.load_state_dict(layer.state_dict())
    wide = x.detach().double().requires_grad_()
    true = plainly(exact, wide, None if skip is None else skip.double())
    torch.testing.assert_close(found.double(), true, rtol=1e-5, atol=1e-5)
    for own, wanted in zip(
        by, torch.autograd.grad(true, [wide, *exact.parameters()], gradient.double()), strict=True
    ):
        torch.testing.assert_close(own.double(), wanted, rtol=1e-4, atol=1e-4)


def test_taking_apart_is_the_transpose_of_interleaving() -> None:
    places, doubled = maps(2, 12, 4, 6), maps(2, 3, 6, 10)
    assert interleave(places).shape == doubled.shape
    torch.testing.assert_close((interleave(places) * doubled).sum(), (places * take_apart(doubled)).sum())


@pytest.mark.parametrize(
    ("x", "skip"),
    [
        (maps(1, 4, 6, 6).contiguous(), None),  # another layout
        (maps(1, 4, 6, 6).double(), None),
        (maps(1, 4, 6, 6), maps(1, 2, 11, 12)),  # not doubled
        (maps(1, 4, 6, 6), maps(1, 2, 6, 6)),
    ],
)
def test_other_inputs_take_the_plain_way(x: Tensor, skip: Tensor | None, quick: list[bool]) -> None:
    layer = UpsampledConv2d(4 + (0 if skip is None else 2), 5).to(x.dtype)
    size = (12, 12) if skip is None else skip.shape[-2:]
    assert layer(x, skip).shape == (1, 5, *size)
    assert not quick


def test_autocast_and_wide_gradients_take_the_plain_way(quick: list[bool]) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert UpsampledConv2d(4, 5)(maps(1, 4, 6, 6)).dtype == torch.bfloat16
    wide, x = UpsampledConv2d(256, 256), maps(1, 256, 3, 3)
    with_gradient = wide(x)
    assert not quick
    with torch.no_grad():
        torch.testing.assert_close(wide(x), with_gradient, rtol=1e-4, atol=1e-4)
    assert quick == [True]


@pytest.mark.parametrize("side", [6, 12])
def test_maps_convolved_apart_under_autocast_have_the_same_values_and_gradients(
    side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer = UpsampledConv2d(6, 5, bias=True).to(memory_format=LAST)
    x, skip = maps(2, 4, 6, 6).requires_grad_(), maps(2, 2, side, side)
    joined: list[int] = []
    cat = torch.cat
    monkeypatch.setattr(torch, "cat", lambda *a, **k: joined.append(1) or cat(*a, **k))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(x, skip)
        assert not joined
        layer(x.detach(), skip)  # of which no gradient is wanted: one convolution
        assert joined
    gradient = maps(*found.shape)
    by = torch.autograd.grad(found, [x, *layer.parameters()], gradient.bfloat16())
    true = layer(x, skip)
    torch.testing.assert_close(found.float(), true, rtol=0.02, atol=0.05)
    wanted = torch.autograd.grad(true, [x, *layer.parameters()], gradient)
    for own, exact in zip(by, wanted, strict=True):
        assert (own - exact).norm() < 0.02 * exact.norm()


def test_a_decoder_takes_it_and_gives_the_same_maps(
    monkeypatch: pytest.MonkeyPatch, quick: list[bool]
) -> None:
    torch.manual_seed(0)
    decoder = Decoder((4, 6, 8), (8, 6, 4, 4)).eval().to(memory_format=LAST)
    features = [maps(2, 4, 32, 32), maps(2, 6, 16, 16), maps(2, 8, 16, 16)]
    found = decoder(features, (64, 64))
    assert len(quick) == 3  # all blocks but the first, whose maps have the size of its feature
    monkeypatch.setattr(UpsampledConv2d, "_gains", lambda *_: False)
    torch.testing.assert_close(decoder(features, (64, 64)), found, rtol=1e-4, atol=1e-5)
    assert len(quick) == 3


def test_exported_graphs_hold_the_plain_way() -> None:
    layer = UpsampledConv2d(4, 5).eval()
    graph = torch.export.export(layer, (maps(1, 4, 6, 6),), strict=False).graph
    called = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    assert any("upsample_nearest2d" in name for name in called), called
    assert upsampled.same_size((2, 3), [2, 3])
