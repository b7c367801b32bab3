"""Pooling heads against their formulas."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fcam.errors import FcamError
from fcam.heads import (
    HEADS,
    GAPHead,
    Head,
    LinearHead,
    LogSumExpHead,
    MaxPoolHead,
    WildCatHead,
    build_head,
    count,
)


@pytest.fixture
def top() -> Tensor:
    return torch.randn(2, 6, 7, 7, generator=torch.Generator().manual_seed(1))


def test_the_scale_of_a_linear_head_is_a_temperature(top: Tensor) -> None:
    plain, scaled = randomize(LinearHead(6, 4)), randomize(build_head("wgap", 6, 4, scale=3.5))
    torch.testing.assert_close(scaled(top), 3.5 * plain(top))
    torch.testing.assert_close(scaled.class_maps(top), 3.5 * plain.class_maps(top))
    weight = scaled.linear_weight()
    assert weight is not None
    torch.testing.assert_close(top.mean((2, 3)) @ weight.T, scaled(top) - scaled(0 * top))
    assert scaled.options() == {"scale": 3.5}
    assert plain.options() == {}
    for wrong in (0, -1, math.inf, math.nan, True, "2"):
        with pytest.raises(FcamError, match="scale of a head"):
            build_head("wgap", 6, 4, scale=wrong)


def randomize(head: Head) -> Head:
    torch.manual_seed(2)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    return head


@pytest.mark.parametrize("name", HEADS)
def test_shapes_options_and_initialisation(name: str, top: Tensor) -> None:
    head = build_head(name, 6, 4)
    assert head(top).shape == (2, 4)
    assert head.class_maps(top).shape == (2, 4, 7, 7)
    assert build_head(name, 6, 4, **head.options()).options() == head.options()
    torch.manual_seed(0)
    layer = next(
        m for m in build_head(name, 300, 40).modules() if isinstance(m, (torch.nn.Linear, torch.nn.Conv2d))
    )
    assert layer.bias is not None
    assert layer.bias.abs().max() == 0
    bound = math.sqrt(6 / (300 + layer.weight.shape[0]))
    assert 0.99 * bound < layer.weight.abs().max() <= bound


def test_linear_head_is_linear_on_the_mean_and_its_maps_are_cams(top: Tensor) -> None:
    head = randomize(LinearHead(6, 4))
    assert isinstance(head, LinearHead)
    cams = torch.einsum("kc,bchw->bkhw", head.fc.weight, top)
    assert torch.allclose(head.class_maps(top), cams, atol=1e-5)
    assert torch.allclose(head(top), cams.mean((2, 3)) + head.fc.bias, atol=1e-5)


def test_map_heads_pool_their_class_maps(top: Tensor) -> None:
    maps = {}
    for kind in (GAPHead, MaxPoolHead, LogSumExpHead):
        head = randomize(kind(6, 4))
        maps[kind] = head.class_maps(top).flatten(2)
        pooled = {
            GAPHead: maps[kind].mean(2),
            MaxPoolHead: maps[kind].amax(2),
            LogSumExpHead: (maps[kind].double() * 10).exp().mean(2).log().float() / 10,
        }
        assert torch.allclose(head(top), pooled[kind], atol=1e-5)


def test_log_sum_exp_survives_large_activations() -> None:
    head = LogSumExpHead(1, 1)
    torch.nn.init.ones_(head.conv.weight)
    assert head(torch.full((1, 1, 3, 3), 1e4)).item() == pytest.approx(1e4)


@pytest.mark.parametrize("kind", [GAPHead, MaxPoolHead, LogSumExpHead, WildCatHead])
def test_background_is_an_extra_first_map_that_is_left_out(kind: type[Head], top: Tensor) -> None:
    with_background = randomize(kind(6, 3, background=True))  # type: ignore[call-arg]
    plain = kind(6, 3)
    with torch.no_grad():
        plain.conv.weight.copy_(with_background.conv.weight[-len(plain.conv.weight) :])  # type: ignore[union-attr, operator, index]
        plain.conv.bias.copy_(with_background.conv.bias[-len(plain.conv.bias) :])  # type: ignore[union-attr, operator, index]
    assert torch.allclose(with_background(top), plain(top), atol=1e-6)
    assert torch.allclose(with_background.class_maps(top), plain.class_maps(top), atol=1e-6)


def test_wildcat_in_both_variants(top: Tensor) -> None:
    head = randomize(WildCatHead(6, 4, modalities=3))
    assert isinstance(head, WildCatHead)
    maps = head.conv(top).view(2, 4, 3, 49).mean(2)
    ordered = maps.sort(2, descending=True).values
    high, low = ordered[:, :, :24].mean(2), ordered[:, :, -5:].mean(2)
    assert torch.allclose(head(top), (high + 0.6 * low) / 2, atol=1e-5)
    head.variant = "reference"
    assert torch.allclose(head(top), high, atol=1e-5)
    reference = head(top)
    head.alpha = 0.0
    assert torch.equal(head(top), reference)


@pytest.mark.parametrize(
    ("k", "n", "expected"),
    [
        (0.5, 49, 24),
        (0.1, 49, 5),
        (0, 49, 0),
        (-1, 49, 0),
        (1.0, 49, 49),
        (1, 49, 1),
        (7, 49, 7),
        (60, 49, 49),
    ],
)
def test_count(k: float, n: int, expected: int) -> None:
    assert count(k, n) == expected


def test_wrong_heads_are_refused() -> None:
    with pytest.raises(FcamError, match=r"named 'mean'; use wgap, gap"):
        build_head("mean", 6, 4)
    with pytest.raises(FcamError, match="other options"):
        build_head("wgap", 6, 4, r=3)
    with pytest.raises(FcamError, match="at least 1 class, got 0"):
        build_head("wgap", 6, 0)
    with pytest.raises(FcamError, match="r > 0, got 0"):
        LogSumExpHead(6, 4, r=0)
    with pytest.raises(FcamError, match="kmax=0"):
        WildCatHead(6, 4, kmax=0)
    with pytest.raises(FcamError, match="'both'"):
        build_head("wildcat", 6, 4, variant="both")
