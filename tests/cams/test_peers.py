"""The packages torchcam and grad-cam as oracles, each method where that package is right.

Both put an epsilon into denominators (1e-8 and 1e-6 in the plus-plus family, 1e-7 in grad-cam's XGrad-CAM)
that is not small beside the squared gradients of a fresh head. Dividing the features by a factor that the
next layer multiplies with again changes no map of ours, and takes that epsilon out of the comparison.
torchcam 0.5 has Grad-CAM++ without its denominator, which makes it an oracle of our reference variant;
its Smooth-Grad-CAM++ combines the last noisy activation and gradient, as the reference does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from fcam.cams import cam, normalize

torchcam = pytest.importorskip("torchcam.methods")
grad_cam = pytest.importorskip("pytorch_grad_cam")

SIZE = 96
CLASSES = [3, 7]


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))


class Divide(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / self.factor


FACTOR = {"gradcampp": 1e3, "smoothgradcampp": 1e3, "xgradcam": 1e-2}


@pytest.fixture(scope="module")
def models() -> dict[str, tuple[nn.Module, str]]:
    torch.manual_seed(0)
    resnet = torchvision.models.resnet50(weights=None, num_classes=10)
    hidden = timm.create_model("mobilenetv3_small_050", num_classes=10)
    resnet.layer4 = nn.Sequential(resnet.layer4, Divide())
    hidden.blocks = nn.Sequential(hidden.blocks, Divide())
    return {"linear": (resnet.eval(), "layer4"), "hidden": (hidden.eval(), "blocks")}


@contextmanager
def scaled(models: dict, head: str, method: str) -> Iterator[tuple[nn.Module, str]]:
    model, layer = models[head]
    factor = FACTOR.get(method, 1.0)
    weight = model.fc.weight if head == "linear" else model.conv_head.weight
    dict(model.named_modules())[layer][1].factor = factor
    with torch.no_grad():
        weight *= factor
    yield model, layer
    with torch.no_grad():
        weight /= factor


def difference(a: Tensor, b: Tensor) -> float:
    return float((normalize(a) - normalize(b)).abs().max())


def by_torchcam(name: str, model: nn.Module, layer: str, images: Tensor, **options) -> Tensor:
    call = {"eps": 0.0} if name == "SmoothGradCAMpp" else {}
    with getattr(torchcam, name)(model, layer, input_shape=(3, SIZE, SIZE), **options) as extractor:
        scores = model(images)
        torch.manual_seed(5)
        return extractor(CLASSES, scores, normalized=False, **call)[0]


@pytest.mark.parametrize("head", ["linear", "hidden"])
@pytest.mark.parametrize(
    ("method", "theirs", "variant"),
    [
        ("gradcam", "GradCAM", "published"),
        ("xgradcam", "XGradCAM", "published"),
        ("layercam", "LayerCAM", "published"),
        ("gradcampp", "GradCAMpp", "reference"),
        ("smoothgradcampp", "SmoothGradCAMpp", "reference"),
    ],
)
def test_torchcam_agrees(
    models: dict, images: Tensor, head: str, method: str, theirs: str, variant: str
) -> None:
    with scaled(models, head, method) as (model, layer):
        want = by_torchcam(theirs, model, layer, images)
        torch.manual_seed(5)
        got = cam(model, images, CLASSES, method, variant=variant, normalize=False)
    assert difference(got, want) < 1e-5


def test_torchcam_agrees_on_cam(models: dict, images: Tensor) -> None:
    with scaled(models, "linear", "cam") as (model, layer):
        got = cam(model, images, CLASSES, "cam", normalize=False)
        assert difference(got, by_torchcam("CAM", model, layer, images, fc_layer="fc")) < 1e-5


@pytest.mark.parametrize("method", ["gradcam", "layercam", "gradcampp"])
def test_torchcam_agrees_on_an_earlier_layer(models: dict, images: Tensor, method: str) -> None:
    with scaled(models, "linear", "cam") as (model, _):
        theirs = {"gradcam": "GradCAM", "layercam": "LayerCAM", "gradcampp": "GradCAMpp"}[method]
        got = cam(model, images, CLASSES, method, target_layer="layer3", variant="reference", normalize=False)
        assert difference(got, by_torchcam(theirs, model, "layer3", images)) < 1e-5


@pytest.mark.parametrize("head", ["linear", "hidden"])
@pytest.mark.parametrize(
    ("method", "theirs"),
    [
        ("gradcam", "GradCAM"),
        ("gradcampp", "GradCAMPlusPlus"),
        ("xgradcam", "XGradCAM"),
        ("layercam", "LayerCAM"),
    ],
)
def test_grad_cam_agrees(models: dict, images: Tensor, head: str, method: str, theirs: str) -> None:
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    targets = [ClassifierOutputTarget(k) for k in CLASSES]
    with scaled(models, head, method) as (model, layer):
        with getattr(grad_cam, theirs)(model, [dict(model.named_modules())[layer]]) as extractor:
            want = torch.from_numpy(np.asarray(extractor(images, targets)))
        model.zero_grad(set_to_none=True)  # that package leaves gradients behind
        ours = cam(model, images, CLASSES, method)
    # Its maps come at the image's size, enlarged after normalisation and normalised once more.
    ours = F.interpolate(ours[:, None], (SIZE, SIZE), mode="bilinear", align_corners=False)[:, 0]
    assert difference(ours, want) < 1e-5


class Flat(nn.Module):
    """No stride: masks need no enlarging, about which the packages and the papers disagree."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU())
        self.fc = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x).mean((2, 3)))


@pytest.fixture
def flat() -> Flat:
    torch.manual_seed(0)
    model = Flat().eval()
    with torch.no_grad():
        model.fc.weight *= 5
    return model


@pytest.mark.parametrize(
    ("method", "theirs"), [("scorecam", "ScoreCAM"), ("sscam", "SSCAM"), ("iscam", "ISCAM")]
)
def test_torchcam_agrees_on_the_score_family(flat: Flat, images: Tensor, method: str, theirs: str) -> None:
    small = images[:1, :, :24, :20]
    with getattr(torchcam, theirs)(flat, "body", input_shape=(3, 24, 20)) as extractor, torch.no_grad():
        scores = flat(small)
        torch.manual_seed(5)
        want = extractor(CLASSES[:1], scores, normalized=False)[0]
    torch.manual_seed(5)
    got = cam(flat, small, CLASSES[:1], method, normalize=False)
    # Its map adds up the features themselves, as ours does; only an epsilon in its masks is left.
    assert difference(got, want) < 1e-5
    assert difference(got, cam(flat, small, CLASSES[:1], method, variant="reference", normalize=False)) > 1e-3


def test_grad_cam_agrees_on_score_cam(flat: Flat, images: Tensor) -> None:
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    small = images[:, :, :24, :20].contiguous()
    with grad_cam.ScoreCAM(flat, [flat.body]) as extractor:
        want = extractor(small, [ClassifierOutputTarget(k) for k in CLASSES])
    got = cam(flat, small, CLASSES, "scorecam")
    assert difference(got, torch.from_numpy(np.asarray(want))) < 1e-5


@pytest.mark.parametrize("base", ["layercam", "gradcam"])
def test_torchcam_agrees_on_refinecam(models: dict, images: Tensor, base: str) -> None:
    with scaled(models, "linear", "cam") as (model, _):
        theirs = {"layercam": torchcam.LayerCAM, "gradcam": torchcam.GradCAM}[base]
        names = ["layer2", "layer3", "layer4"]
        with torchcam.RefineCAM(model, names, (3, SIZE, SIZE), base_method=theirs) as extractor:
            want = extractor(CLASSES, model(images), normalized=False)[0]
        got = cam(model, images, CLASSES, "refinecam", layers=names, base=base, normalize=False)
        assert got.shape == (2, 12, 12)
        assert difference(got, want) < 1e-5
        stages = cam(
            model, images, CLASSES, "refinecam", base=base, normalize=False
        )  # stride 4 on, found unaided
        named = cam(
            model, images, CLASSES, "refinecam", layers=["layer1", *names], base=base, normalize=False
        )
        assert stages.shape == (2, 24, 24)
        assert difference(stages, named) < 1e-6


def test_published_grad_cam_pp_is_not_what_torchcam_makes(models: dict, images: Tensor) -> None:
    with scaled(models, "linear", "gradcampp") as (model, layer):
        published = cam(model, images, CLASSES, "gradcampp", normalize=False)
        assert difference(published, by_torchcam("GradCAMpp", model, layer, images)) > 0.01
