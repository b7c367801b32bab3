"""fcam.cam on the project's own classifiers, every pooling head, and inside an FCAM model."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fcam.backbones import Backbone, build_backbone
from fcam.cams import CLOSED_FORMS, cam, explain_target, from_features, interpolated, normalize
from fcam.cams.target import find_targets
from fcam.classifier import Classifier
from fcam.heads import build_head

HEADS = ["wgap", "gap", "maxpool", "logsumexp", "wildcat"]


@cache
def trunk() -> Backbone:
    torch.manual_seed(0)
    return build_backbone("timm:mobilenetv3_small_050", pretrained=False, output_stride=16)


def classifier(head: str, **options) -> Classifier:
    torch.manual_seed(0)
    backbone = trunk()
    return Classifier(backbone, build_head(head, backbone.channels[-1], 6, **options)).eval()


@pytest.fixture
def images() -> Tensor:
    return torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))


def test_linear_head_equals_the_training_loops_maps(images: Tensor) -> None:
    model = classifier("wgap")
    with torch.no_grad():
        top = model.backbone(images)[-1]
    want = from_features(top, model.head.fc.weight, torch.tensor([2, 5]), "layercam")
    torch.testing.assert_close(cam(model, images, [2, 5], "layercam", normalize=False), want.detach())
    assert explain_target(model, images).closed_form


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("head", HEADS[1:])
def test_map_heads_have_their_own_cam(images: Tensor, head: str, background: bool) -> None:
    model = classifier(head, background=background)
    with torch.no_grad():
        top = model.backbone(images)[-1]
        want = normalize(model.head.class_maps(top)[:, 3])
    torch.testing.assert_close(cam(model, images, 3), want, atol=2e-5, rtol=0)
    assert cam(model, images, [[0, 3], [1, 3]]).shape == (2, 2, *want.shape[1:])
    assert cam(model, images, 3, "layercam").shape == want.shape


def test_gap_head_is_a_linear_head(images: Tensor) -> None:
    model = classifier("gap")
    assert explain_target(model, images).closed_form
    assert not explain_target(classifier("maxpool"), images).closed_form


@pytest.mark.parametrize("method", ["scorecam", "sscam", "iscam"])
@pytest.mark.parametrize("variant", ["published", "reference"])
def test_masks_act_on_the_normalised_image(images: Tensor, method: str, variant: str) -> None:
    model = classifier("wgap")

    class Plain(torch.nn.Module):
        """The same network as a stranger's: normalised images in."""

        def forward(self, x: Tensor) -> Tensor:
            return model(x * model.backbone.std + model.backbone.mean).logits

    options = (
        {"top_channels": 4, "samples": 2, "noise_std": 0.2} if method == "sscam" else {"top_channels": 4}
    )
    options["generator"] = torch.Generator().manual_seed(0)
    small = (images - 0.5) * 0.2 + 0.5  # far from the range check, which the stranger's network has
    ours = cam(model, small, 1, method, variant=variant, **options)
    options["generator"] = torch.Generator().manual_seed(0)
    if method != "iscam":
        plain = Plain()
        plain.inner = model
        theirs = cam(plain.eval(), model.backbone.normalize(small), 1, method, variant=variant, **options)
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    before = set(vars(model.backbone))
    assert "normalize" not in before


def test_smooth_noise_is_scaled_to_the_normalised_image(images: Tensor) -> None:
    model = classifier("wgap")
    got = cam(
        model, images, 1, "smoothgradcampp", variant="reference", generator=torch.Generator().manual_seed(0)
    )
    generator = torch.Generator().manual_seed(0)
    noise = [torch.randn(images.shape, generator=generator) for _ in range(4)][-1]
    with torch.no_grad():
        top = model.backbone(images)[-1]
        noisy = model.backbone(images + 0.3 * noise * model.backbone.std)[-1]
        want = from_features(
            top,
            model.head.fc.weight,
            torch.tensor([1, 1]),
            "smoothgradcampp",
            variant="reference",
            noisy_top=noisy,
        )
    torch.testing.assert_close(got, normalize(want), atol=1e-5, rtol=0)


@pytest.mark.parametrize("head", ["wgap", "logsumexp"])
def test_noise_may_leave_the_range_of_images(images: Tensor, head: str) -> None:
    options = {"noise_std": 20.0, "generator": torch.Generator().manual_seed(0), "variant": "reference"}
    assert cam(classifier(head), images, 1, "smoothgradcampp", **options).isfinite().all()


def test_refinecam_takes_the_taps_from_stride_4_on(images: Tensor) -> None:
    model = classifier("wgap")
    maps = cam(model, images, 1, "refinecam", normalize=False)
    assert maps.shape == (2, 16, 24)
    features = [f.detach().requires_grad_() for f in model.backbone(images)[1:]]
    assert [tuple(f.shape[-2:]) for f in features] == [(16, 24), (8, 12), (4, 6), (4, 6)]
    assert len(find_targets(model, images)) == len(features)


def test_fcam_models_are_read_through_their_classifier(images: Tensor) -> None:
    from fcam.decoder import Decoder
    from fcam.model import FCAM

    inner = classifier("wgap")
    model = FCAM(inner, Decoder(inner.backbone.channels, (8,) * len(inner.backbone.channels)))
    torch.testing.assert_close(cam(model, images, 1), cam(inner, images, 1))
    with torch.inference_mode():
        torch.testing.assert_close(cam(model, images.clone(), 1), cam(inner, images, 1))


SEED_MAPS = list(itertools.product(HEADS, CLOSED_FORMS, ("published", "reference")))


@pytest.mark.parametrize(("head", "method", "variant"), SEED_MAPS)
def test_training_draws_from_the_maps_that_cam_gives(
    images: Tensor, head: str, method: str, variant: str
) -> None:
    model, labels = classifier(head), torch.tensor([2, 5])
    with torch.inference_mode():
        top = model.backbone(images)[-1]
        got = interpolated(model, images, top, labels, method, variant, torch.Generator().manual_seed(1))
    want = cam(model, images, labels, method, variant=variant, generator=torch.Generator().manual_seed(1))
    want = F.interpolate(want[:, None], size=images.shape[-2:], mode="bilinear")[:, 0]
    torch.testing.assert_close(got, want, atol=2e-5, rtol=0)
    assert all(p.grad is None for p in model.parameters())


def test_methods_differ_on_heads_that_are_not_linear(images: Tensor) -> None:
    model, labels = classifier("logsumexp"), torch.tensor([2, 5])
    with torch.no_grad():
        top = model.backbone(images)[-1]
    maps = [interpolated(model, images, top, labels, method) for method in ("cam", "gradcam", "layercam")]
    assert (maps[0] - maps[1]).abs().max() > 0.01
    assert (maps[1] - maps[2]).abs().max() > 0.01
