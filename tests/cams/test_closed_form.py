"""Closed forms against gradients taken the long way, formula by formula (reference 3.2, 3.3, 14.10)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fcam.cams import CLOSED_FORMS, empty_maps, from_features, normalize
from fcam.errors import FcamError


def problem(batch: int = 3, channels: int = 6, height: int = 5, width: int = 4, classes: int = 7):
    generator = torch.Generator().manual_seed(0)
    top = torch.rand(batch, channels, height, width, generator=generator)
    top[:, 2] = 0  # a dead channel: 0/0 in XGrad-CAM
    weight = torch.randn(classes, channels, generator=generator) * 0.5
    return top, weight, torch.randn(batch, channels, height, width, generator=generator).abs()


def by_gradient(top: Tensor, weight: Tensor, k: int, method: str, variant: str, noisy: Tensor) -> Tensor:
    """One image (C, h, w), by the formulas of the papers, with autograd through pooling and linear layer."""

    def gradient(a: Tensor) -> Tensor:
        leaf = a.detach().double().requires_grad_()
        score = (leaf.mean((1, 2)) * weight[k].double()).sum()
        return torch.autograd.grad(score, leaf)[0]

    a, g = top.double(), gradient(top)
    if method == "cam":
        return torch.einsum("c,chw->hw", weight[k].double(), a)
    if method == "gradcam":
        return torch.einsum("c,chw->hw", g.mean((1, 2)), a).relu()
    if method == "xgradcam":
        w = ((g * a).sum((1, 2)) / a.sum((1, 2))).nan_to_num()
        return torch.einsum("c,chw->hw", w, a).relu()
    if method == "layercam":
        return (g.relu() * a).sum(0)
    if method == "gradcampp" and variant == "reference":
        return torch.einsum("c,chw->hw", (g.relu() ** 3).sum((1, 2)), a).relu()
    passes = [gradient(top)] if method == "gradcampp" else [gradient(noisy)] * 4
    g2, g3 = torch.stack(passes).pow(2).mean(0), torch.stack(passes).pow(3).mean(0)
    alpha = g2 / (2 * g2 + (g3 * a).sum((1, 2), keepdim=True))
    w = (alpha * torch.stack(passes).mean(0).relu()).sum((1, 2))
    shown = noisy.double() if (method, variant) == ("smoothgradcampp", "reference") else a
    return torch.einsum("c,chw->hw", w, shown).relu()


@pytest.mark.parametrize("variant", ["published", "reference"])
@pytest.mark.parametrize("method", CLOSED_FORMS)
def test_equals_the_gradient_formula(method: str, variant: str) -> None:
    top, weight, noisy = problem()
    index = torch.tensor([4, 0, 6])
    got = from_features(top, weight, index, method, variant=variant, noisy_top=noisy)
    want = torch.stack(
        [by_gradient(top[i], weight, int(index[i]), method, variant, noisy[i]) for i in range(len(top))]
    )
    assert got.shape == (3, 5, 4)
    assert got.dtype == torch.float32
    assert not empty_maps(want).any()
    torch.testing.assert_close(normalize(got), normalize(want), atol=2e-6, rtol=0)


def test_variants_differ_where_the_code_departs_from_the_paper() -> None:
    top, weight, noisy = problem()
    index = torch.tensor([4, 0, 6])
    for method in CLOSED_FORMS:
        published = normalize(from_features(top, weight, index, method))
        reference = normalize(from_features(top, weight, index, method, variant="reference", noisy_top=noisy))
        departs = method in ("gradcampp", "smoothgradcampp")
        assert ((published - reference).abs().max() > 1e-2) == departs, method


@pytest.mark.parametrize("method", CLOSED_FORMS)
def test_several_classes_are_the_single_ones_stacked(method: str) -> None:
    top, weight, _ = problem()
    index = torch.tensor([[4, 1], [0, 0], [6, 5]])
    both = from_features(top, weight, index, method)
    assert both.shape == (3, 2, 5, 4)
    for n in range(2):
        torch.testing.assert_close(both[:, n], from_features(top, weight, index[:, n], method))


def test_raw_cam_is_in_units_of_the_logit() -> None:
    top, weight, _ = problem()
    raw = from_features(top, weight, torch.tensor([4, 0, 6]), "cam")
    logits = top.mean((2, 3)) @ weight.T
    torch.testing.assert_close(raw.mean((1, 2)), logits[torch.arange(3), torch.tensor([4, 0, 6])])


def test_float32_out_under_autocast_and_from_bfloat16() -> None:
    top, weight, _ = problem()
    index = torch.tensor([4, 0, 6])
    plain = from_features(top, weight, index, "gradcam")
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        inside = from_features(top, weight, index, "gradcam")
    assert torch.equal(plain, inside)
    half = from_features(top.bfloat16(), weight.bfloat16(), index, "gradcam")
    assert half.dtype == torch.float32
    assert (normalize(half) - normalize(plain)).abs().max() < 0.03


def test_normalize_rule() -> None:
    maps = torch.tensor([[[-1.0, 3.0]], [[2.0, 2.0]], [[float("nan"), 1.0]], [[float("inf"), 1.0]]])
    got = normalize(maps)
    assert torch.equal(got, torch.tensor([[[0.0, 1.0]], [[0.0, 0.0]], [[0.0, 0.0]], [[0.0, 0.0]]]))
    assert empty_maps(maps).tolist() == [False, True, True, True]
    assert normalize(maps.bfloat16()).dtype == torch.float32
    tiny = normalize(torch.tensor([[1e-12, 3e-12]]))  # no epsilon: a faint map is still a map
    assert tiny.tolist() == [[0.0, 1.0]]
    assert empty_maps(torch.zeros(2, 3, 4, 4)).shape == (2, 3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"method": "gradcamp"}, "no closed form"),
        ({"variant": "coded"}, "published"),
        ({"class_idx": torch.tensor([1, 2])}, "one row per image"),
        ({"class_idx": torch.tensor([1, 2, 7])}, "0..6"),
        ({"weight": torch.zeros(7, 5)}, r"\(7, 5\)"),
        ({"top": torch.zeros(3, 6)}, r"\(3, 6\)"),
        ({"method": "smoothgradcampp", "variant": "reference"}, "noisy_top"),
    ],
)
def test_errors_show_the_value(change: dict, says: str) -> None:
    top, weight, _ = problem()
    given = {"top": top, "weight": weight, "class_idx": torch.tensor([1, 2, 3])} | change
    with pytest.raises(FcamError, match=says):
        from_features(**given)
