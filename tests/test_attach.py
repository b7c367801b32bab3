"""fcam.attach: a decoder on anybody's classifier, found, trained, saved, loaded, used."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

import fcam
from fcam.attachment import identity, sources
from fcam.attachment.attach import attach
from fcam.attachment.attached import AttachedClassifier
from fcam.attachment.sources import without_memory
from fcam.cams import cam, explain_target, interpolated
from fcam.config import TrainConfig
from fcam.export.graph import Network
from fcam.stages import DecoderStage

SIDE = 64
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class OwnCNN(nn.Module):
    """Written the way tutorials do it: functional calls, a view with the batch size, hidden layers, dropout."""

    def __init__(self, num_classes: int = 4) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.conv3, self.drop = nn.Conv2d(16, 24, 3, padding=1), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(24 * 4, 20), nn.Linear(20, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.conv3(F.max_pool2d(x, 2)), inplace=True)
        x = F.adaptive_avg_pool2d(x, 2).view(batch, -1)
        return self.fc2(self.drop(F.relu(self.fc1(x))))


NETWORKS = {
    "torchvision:resnet18": ("relu", "layer1", "layer2", "layer3", "layer4"),
    "torchvision:mobilenet_v3_small": ("features.0", "features.1", "features.3", "features.8", "features"),
    "torchvision:convnext_tiny": ("features.1", "features.3", "features.5", "features"),
    "torchvision:densenet121": (
        "features.relu0",
        "features.denseblock1",
        "features.denseblock2",
        "features.denseblock3",
        "relu()",
    ),
    "torchvision:vgg11_bn": ("features.6", "features.13", "features.20", "features.27", "features"),
    "timm:regnety_002": ("stem", "s1", "s2", "s3", "final_conv"),
    "timm:efficientnet_b0": ("bn1", "blocks.1", "blocks.2", "blocks.4", "bn2"),
    "own": ("relu_1()", "max_pool2d_1()", "relu_2()"),
}
LINEAR = {"torchvision:resnet18", "torchvision:densenet121", "timm:regnety_002", "timm:efficientnet_b0"}


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    kind, _, network = name.partition(":")
    if kind == "torchvision":
        return torchvision.models.get_model(network, weights=None, num_classes=4)
    return timm.create_model(network, pretrained=False, num_classes=4) if kind == "timm" else OwnCNN()


@pytest.fixture
def images() -> Tensor:
    return torch.rand(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


def normalized(model: fcam.FCAM, images: Tensor) -> Tensor:
    return (images - model.classifier.backbone.mean) / model.classifier.backbone.std


@pytest.mark.parametrize("name", NETWORKS)
def test_builds_trains_saves_loads_predicts(name: str, images: Tensor, tmp_path: Path) -> None:
    yours = build(name)
    before = copy.deepcopy(yours.state_dict())
    model = attach(yours, image_size=SIDE, channels=(8,) * 5, classes=list("abcd"))
    inner = model.classifier
    assert isinstance(inner, AttachedClassifier)
    assert tuple(tap.path for tap in inner.backbone.taps) == NETWORKS[name]
    assert inner.head.linear_weight() is not None or name not in LINEAR
    assert inner.source == (None if name == "own" else name)

    # Yours is left alone, and the copy computes what it computes, for any size and batch.
    assert yours.training
    assert all(p.requires_grad for p in yours.parameters())
    assert all(torch.equal(before[key], value) for key, value in yours.state_dict().items())
    yours.eval()
    for batch in (images, F.interpolate(images[:1], (SIDE + 13, SIDE + 38))):
        out = model.eval()(batch)
        torch.testing.assert_close(out.logits, yours(normalized(model, batch)).detach(), atol=1e-5, rtol=1e-5)
        assert out.maps.shape == (len(batch), 2, *batch.shape[-2:])

    # One step of stage 2 moves the decoder and nothing else.
    stage = DecoderStage(model, TrainConfig())
    optimizer = torch.optim.SGD(stage.parameter_groups(TrainConfig().stage2.optimizer), lr=0.1)
    frozen, moved = copy.deepcopy(inner.state_dict()), copy.deepcopy(model.decoder.state_dict())
    stage.train()
    sum(stage(images, torch.tensor([1, 2]), 1, torch.Generator().manual_seed(0)).values()).backward()
    optimizer.step()
    assert all(torch.equal(frozen[key], value) for key, value in inner.state_dict().items())
    assert any(not torch.equal(moved[key], value) for key, value in model.decoder.state_dict().items())

    # A folder without pickle that builds the same model.
    model.eval().save_pretrained(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    assert json.loads((tmp_path / "config.json").read_text())["classifier"]["source"] == inner.source
    given = OwnCNN() if name == "own" else None
    again = fcam.FCAM.from_pretrained(tmp_path, classifier=given)
    for first, second in zip(model(images)[:2], again(images)[:2], strict=True):
        assert torch.equal(first, second)
    assert again.config() == model.config()
    with pytest.warns(UserWarning, match="never trained"):
        localizer = fcam.Localizer(again, size=SIDE, with_cam=True, dtype=torch.float32)
    r = localizer((images[0] * 255).byte())
    assert r.label in "abcd"
    assert r.baseline is not None
    assert r.cam.shape == r.baseline.shape == (SIDE, SIDE)


@pytest.mark.parametrize("name", ["torchvision:resnet18", "own"])
@pytest.mark.parametrize("method", ["cam", "gradcam", "layercam", "xgradcam", "gradcampp"])
def test_seeds_come_from_the_map_that_cam_gives_on_your_own_model(
    name: str, method: str, images: Tensor
) -> None:
    yours = build(name).eval()
    if isinstance(yours, OwnCNN):  # gradients of one sign, so that no map is empty
        yours.requires_grad_(False).fc1.weight.abs_()
        yours.fc2.weight.abs_()
    model = attach(yours, image_size=SIDE)
    labels = torch.tensor([2, 0])
    with torch.inference_mode():
        top = model.classifier(images).features[-1]
        got = interpolated(model.classifier, images, top, labels, method)
    want = cam(yours, normalized(model, images), labels, method)
    assert want.amax((1, 2)).tolist() == [1, 1]
    want = F.interpolate(want[:, None], (SIDE, SIDE), mode="bilinear")[:, 0]
    torch.testing.assert_close(got, want, atol=1e-4, rtol=0)
    own = F.interpolate(cam(model, images, labels, method)[:, None], (SIDE, SIDE), mode="bilinear")[:, 0]
    torch.testing.assert_close(own, want, atol=1e-4, rtol=0)
    assert explain_target(model, images).closed_form == (name != "own")


def test_says_what_it_found() -> None:
    text = attach(build("torchvision:mobilenet_v3_small"), image_size=SIDE).classifier.describe()  # type: ignore[operator]
    for words in (
        "features.8: 48 channels, stride 16",
        "Dropout, Linear; CAMs by gradient through the head",
        "ImageNet mean",
        "torchvision:mobilenet_v3_small",
    ):
        assert words in text
    assert "in closed form" in attach(build("timm:regnety_002"), image_size=SIDE).classifier.describe()  # type: ignore[operator]


def test_normalisation_is_the_models_own_or_yours() -> None:
    def of(model: fcam.FCAM) -> tuple[list[float], list[float]]:
        backbone = model.classifier.backbone
        return backbone.mean.flatten().tolist(), backbone.std.flatten().tolist()

    mean, std = of(attach(build("torchvision:resnet18"), image_size=SIDE))
    assert (mean, std) == (pytest.approx(IMAGENET[0]), pytest.approx(IMAGENET[1]))
    wrapped = attach(nn.DataParallel(build("torchvision:resnet18")), image_size=SIDE)
    assert (of(wrapped), wrapped.classifier.source) == ((mean, std), "torchvision:resnet18")
    half = ([0.5] * 3, [0.5] * 3)
    large = without_memory(lambda: torchvision.models.efficientnet_v2_l(num_classes=7))
    assert large is not None
    assert identity.normalization(large)[:2] == ((0.5,) * 3, (0.5,) * 3)
    large.classifier = nn.Linear(1280, 2)
    assert identity.normalization(large)[0] == (0.5,) * 3
    medium = without_memory(lambda: torchvision.models.efficientnet_v2_m(num_classes=7))
    assert identity.normalization(medium)[:2] == IMAGENET
    assert of(attach(timm.create_model("tf_efficientnet_lite0", num_classes=4), image_size=SIDE)) == half
    assert of(attach(OwnCNN(), image_size=SIDE)) == ([0.0] * 3, [1.0] * 3)
    assert of(attach(OwnCNN(), image_size=SIDE, mean=(0.5,) * 3, std=(0.5,) * 3)) == half
    arrays = {"mean": np.full(3, 0.5), "std": torch.full((3,), 0.5)}
    assert of(attach(OwnCNN(), image_size=SIDE, **arrays)) == half
    with pytest.raises(fcam.FcamError, match="go together"):
        attach(OwnCNN(), mean=(0.5,) * 3)


def test_outputs_are_picked_and_reordered(images: Tensor) -> None:
    for name in ("torchvision:resnet18", "own"):
        yours = build(name).eval()
        model = attach(yours, image_size=SIDE, outputs=[3, 0], classes=["d", "a"]).eval()
        want = yours(normalized(model, images))[:, [3, 0]].detach()
        torch.testing.assert_close(model(images).logits, want, atol=1e-5, rtol=1e-5)
        weight = model.classifier.head.linear_weight()
        assert weight is None or torch.equal(weight, yours.fc.weight[[3, 0]])  # type: ignore[union-attr,index]


@pytest.mark.parametrize(
    "many", [np.array, torch.tensor, tuple, iter, lambda numbers: list(np.array(numbers))]
)
def test_outputs_names_and_widths_may_be_arrays(many: Callable[[list[int]], Any], tmp_path: Path) -> None:
    classes, outputs, widths = np.array(["d", "a"]), many([3, 0]), many([8, 8, 8])
    model = attach(OwnCNN(), image_size=SIDE, outputs=outputs, classes=classes, channels=widths)
    assert model.classes == ["d", "a"]
    model.save_pretrained(tmp_path)
    again = fcam.FCAM.from_pretrained(tmp_path, classifier=OwnCNN())
    assert again.classifier.head.outputs == (3, 0)  # type: ignore[union-attr]
    assert again.decoder.channels == (8, 8, 8)
    assert again.config() == model.config()


def test_levels_can_be_named(images: Tensor) -> None:
    yours = build("torchvision:resnet18").eval()
    model = attach(yours, level=["layer1", "layer2.0", "layer3"], image_size=SIDE).eval()
    assert model.classifier.backbone.channels == (64, 128, 256)
    assert model.classifier.backbone.strides == (4, 8, 16)
    want = yours(normalized(model, images)).detach()
    torch.testing.assert_close(model(images).logits, want, atol=1e-5, rtol=1e-5)
    for level, words in (
        (["layer1", "layer33"], "layer33.*near are.*layer3"),
        (["layer3", "layer1"], "coarse to fine"),
        (["layer1", "fc"], r"'fc' gives shape \(2, 4\)"),
        (["layer1", "layer4.1.conv1"], "not all of the score"),
        (["layer4"], "one resolution"),
        ([], "'auto'"),
    ):
        with pytest.raises(fcam.FcamError, match=words):
            attach(yours, level=level, image_size=SIDE)
    with pytest.raises(fcam.FcamError, match=r"'norm' gives shape \(2, 8, 8, 24\), channels last"):
        attach(ChannelsLast(), level=["body.0", "norm"], image_size=SIDE)


class Branching(OwnCNN):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.mean() > 0 else -x)


class BranchingBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x)) if x.shape[-1] > 8 else x


class Constants(OwnCNN):
    def forward(self, x: Tensor) -> Tensor:
        x = (x - torch.tensor([0.5, 0.4, 0.3]).view(1, 3, 1, 1)) / 0.2
        return super().forward(x) * torch.tensor(2.0)


class Shared(OwnCNN):
    """Body and head read one parameter."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.fc2.weight.dtype))


class ChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*[nn.Conv2d(a, b, 3, 2, 1) for a, b in ((3, 8), (8, 16), (16, 24))])
        self.norm, self.fc = nn.LayerNorm(24), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.body(x).permute(0, 2, 3, 1)).mean((1, 2)))


class ChannelsLastStage(ChannelsLast):
    """With a layer that works on the channels-last map: the last map is not the convolutions'."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x).permute(0, 2, 3, 1)
        return self.fc(self.norm(x + self.mix(x)).mean((1, 2)))


@pytest.mark.parametrize("network", [Constants, Shared, ChannelsLast])
def test_unusual_networks_are_attached_saved_and_loaded(
    network: type[nn.Module], images: Tensor, tmp_path: Path
) -> None:
    yours = network().eval()
    model = attach(yours, image_size=SIDE).eval()
    torch.testing.assert_close(model(images).logits, yours(images).detach())
    assert model.classifier.backbone.channels[-1] == 24
    model.save_pretrained(tmp_path)
    again = fcam.FCAM.from_pretrained(tmp_path, classifier=network()).eval()
    torch.testing.assert_close(again(images).maps, model(images).maps)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 4)), r"no feature pyramid.*level=\[paths\]"),
        (
            nn.Sequential(nn.Conv2d(3, 8, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)),
            "one resolution",
        ),
        (Branching(), "cannot be followed"),
        (ChannelsLastStage(), r"channels last.*permute"),
        (nn.Conv2d(3, 8, 3), "scores of shape"),
        (nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.Flatten(), nn.Linear(9, 3)), "image_size"),
        (
            nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.Flatten(), nn.Linear(9, 3)),
            "takes 1 channels.*wrap it",
        ),
        (nn.Sequential(nn.LazyConv2d(8, 3), nn.Flatten(), nn.LazyLinear(3)), "cannot be copied"),
        (nn.Sequential(nn.Conv2d(3, 8, 3, device="meta"), nn.Flatten(), nn.Linear(9, 3)), "meta device"),
        (torch.ao.quantization.quantize_dynamic(OwnCNN(), {nn.Linear}), "quantised.*float model"),
        (OwnCNN().state_dict(), "must be a torch module, got OrderedDict"),
        (None, "must be a torch module, got NoneType"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(model: nn.Module, words: str) -> None:
    with pytest.raises(fcam.FcamError, match=words):
        attach(model, image_size=SIDE)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mean": 0.5, "std": 0.5}, "three numbers each"),
        ({"mean": "imagenet", "std": "imagenet"}, "three numbers each"),
        ({"mean": (123.7, 116.3, 103.5), "std": (58.4, 57.1, 57.4)}, "divide those for 8-bit images by 255"),
        ({"image_size": (64, 64)}, r"image_size is \(64, 64\)"),
        ({"image_size": 0}, "image_size is 0"),
        ({"level": [1, 2]}, "name layers by their paths"),
        ({"classes": dict(enumerate("abcd"))}, r"classes are \{0: 'a'.*a list of names"),
        ({"classes": "abcd"}, "classes are 'abcd'"),
        ({"classes": np.arange(4)}, r"classes are array\(\[0, 1, 2, 3\]\)"),
        ({"outputs": np.array([True, False, True, True])}, "outputs are array.*a list of integers"),
        ({"outputs": torch.tensor([0.0, 1.0])}, "outputs are tensor.*a list of integers"),
        ({"outputs": 2}, "outputs are 2; give a list of integers"),
        ({"outputs": np.array([0, 4])}, r"outputs must lie in 0\.\.3, got \[0, 4\]"),
        ({"outputs": np.array([], int)}, r"outputs must lie in 0\.\.3, got \[\]"),
        ({"channels": 8}, "widths of the decoder are 8"),
    ],
)
def test_wrong_arguments_are_named(options: dict, words: str) -> None:
    with pytest.raises(fcam.FcamError, match=words):
        attach(OwnCNN(), **{"image_size": SIDE, **options})


class Several(OwnCNN):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> object:
        logits = super().forward(x)
        return {"tuple": (logits, logits * 2), "list": [logits], "dict": {"out": logits, "aux": x}}[self.kind]


@pytest.mark.parametrize("kind", ["tuple", "list", "dict"])
def test_the_first_of_several_outputs_are_the_scores(kind: str, images: Tensor) -> None:
    yours = Several(kind).eval()
    model = attach(yours, image_size=SIDE).eval()
    torch.testing.assert_close(model(images).logits, OwnCNN.forward(yours, images).detach())


class InPlace(OwnCNN):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x.mul_(0.5)
        x = F.max_pool2d(F.relu(self.conv2(F.max_pool2d(x, 2))), 2)
        x = self.conv3(x)
        x.add_(1.0).clamp_(min=-0.1)
        F.relu(x, inplace=True)
        return self.fc2(F.relu(self.fc1(F.adaptive_avg_pool2d(x, 2).flatten(1))))


def test_changes_in_place_are_followed(images: Tensor) -> None:
    yours = InPlace().eval()
    torch.testing.assert_close(attach(yours, image_size=SIDE).eval()(images).logits, yours(images).detach())


class Squeezing(OwnCNN):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv2(F.max_pool2d(F.relu(self.conv1(x)), 2)))
        x = F.adaptive_avg_pool2d(self.conv3(F.max_pool2d(x, 2)), 1).squeeze()
        return x[..., :4]


def test_a_head_that_squeezes_takes_one_image(images: Tensor) -> None:
    model = attach(Squeezing(), image_size=SIDE).eval()
    torch.testing.assert_close(model(images[:1]).logits, model(images).logits[:1])


def test_networks_that_read_tensors_while_they_are_built_get_their_name() -> None:
    yours = torchvision.models.regnet_y_400mf(weights=None, num_classes=4)
    assert attach(yours, image_size=SIDE).classifier.source == "torchvision:regnet_y_400mf"  # type: ignore[union-attr]


def test_tokens_are_refused() -> None:
    vit = timm.create_model("vit_tiny_patch16_224", img_size=SIDE, num_classes=4)
    with pytest.raises(fcam.FcamError, match="tokens of shape"):
        attach(vit, image_size=SIDE)


def test_a_layer_that_cannot_be_followed_is_kept_whole(images: Tensor) -> None:
    second = nn.Conv2d(8, 16, 3, stride=2, padding=1)
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))
    yours = nn.Sequential(BranchingBlock(), second, nn.ReLU(), *head).eval()
    model = attach(yours, image_size=SIDE).eval()
    assert [tap.path for tap in model.classifier.backbone.taps] == ["0", "2"]  # type: ignore[union-attr]
    torch.testing.assert_close(model(images).logits, yours(images).detach())


class ResizedForPatches(nn.Module):
    """As MobileViTV2: the last stage makes its map a little larger, so that it falls into patches."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*[nn.Conv2d(3 if i == 0 else 8, 8, 3, 2, 1) for i in range(3)])
        self.last, self.fc = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.last(F.interpolate(self.stem(x), (8, 8), mode="bilinear")))
        return self.fc(x.mean((2, 3)))


def test_the_last_map_may_be_a_little_finer_than_the_one_before():
    model = fcam.attach(ResizedForPatches(), image_size=56)  # 7x7 before the last stage
    assert model(torch.rand(2, 3, 56, 56)).features[-1].shape == (2, 8, 8, 8)


class DictOutput(nn.Module):
    """As the Hugging Face models return it, with an option in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = OwnCNN()

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.inner(pixel_values)
        return (
            {"logits": logits}
            if labels is None
            else {"loss": F.cross_entropy(logits, labels), "logits": logits}
        )


def test_a_dict_with_logits_is_understood(images: Tensor) -> None:
    yours = DictOutput().eval()
    model = attach(yours, image_size=SIDE).eval()
    torch.testing.assert_close(model(images).logits, yours(images)["logits"].detach())


def test_own_code_is_never_imported_because_a_file_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import pathlib, torch\npathlib.Path('imported').touch()\nfrom torch import nn\n" + OWN_FACTORY
    (tmp_path / "my_models.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    model = attach("my_models:build", image_size=SIDE)
    (tmp_path / "imported").unlink()
    monkeypatch.delitem(__import__("sys").modules, "my_models")
    model.save_pretrained(tmp_path / "saved")
    with pytest.raises(fcam.FcamError, match=r"my_models:build.*classifier="):
        fcam.FCAM.from_pretrained(tmp_path / "saved")
    assert not (tmp_path / "imported").exists()
    again = fcam.FCAM.from_pretrained(tmp_path / "saved", classifier="my_models:build")
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in model.state_dict().items())
    with pytest.raises(fcam.FcamError, match="architecture that the saved"):
        fcam.FCAM.from_pretrained(tmp_path / "saved", classifier=OwnCNN(7))
    # A factory that fails is no fault of the folder.
    (tmp_path / "broken.py").write_text("def build():\n    return 1 / 0\n")
    with pytest.raises(fcam.FcamError, match=r"^broken:build failed \(ZeroDivisionError"):
        fcam.FCAM.from_pretrained(tmp_path / "saved", classifier="broken:build")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "{name}.py:build",
            "^{name}.py:build is a path .* write {name}:build and run .* folder that holds {name}$",
        ),
        ("./{name}.py:build", "write {name}:build"),
        ("../x/{name}:build", "write {name}:build"),
        ("x\\{name}.py:build", "write {name}:build"),
        (".{name}:build", "write {name}:build"),
        ("..:build", "write module.path:build"),
        (
            "no_such_{name}:build",
            "^no_such_.* .No module named .*; run the command in the folder of no_such_{name}.py",
        ),
        ("{name}:none", "^{name}:none cannot be imported .AttributeError: .*has no attribute 'none'"),
    ],
)
def test_names_that_are_no_modules_are_refused(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "named_net.py").write_text("from torch import nn\n" + OWN_FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    attach(OwnCNN(), image_size=SIDE).save_pretrained(tmp_path / "saved")
    name, words = name.replace("{name}", "named_net"), words.replace("{name}", "named_net")
    with pytest.raises(fcam.FcamError, match=words):
        sources.build(name)
    with pytest.raises(fcam.FcamError, match=words):  # as it is: nothing is wrong with the folder
        fcam.FCAM.from_pretrained(tmp_path / "saved", classifier=name)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "nonsense",
            r"broken_net:build cannot be imported \(NameError: name 'nonsense' is not defined\); correct",
        ),
        ("1 / 0", r"\(ZeroDivisionError: division by zero\)"),
        (
            "import no_such_package",
            r"No module named 'no_such_package'\); correct .* or install what it needs",
        ),
        ("def", "SyntaxError"),
        ("raise SystemExit(2)", "SystemExit: 2"),
    ],
)
def test_whatever_the_import_of_own_code_raises_ends_in_a_sentence(
    code: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_net.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(fcam.FcamError, match=words):
        sources.build("broken_net:build")


def test_another_head_than_the_saved_one_is_told(tmp_path: Path) -> None:
    model = torchvision.models.resnet18(num_classes=3)
    attach(model, image_size=SIDE).save_pretrained(tmp_path)
    model.fc = nn.Sequential(nn.Dropout(0.1), nn.Linear(512, 3))
    with pytest.raises(
        fcam.FcamError, match=r"ResNet has no weight 'fc\.weight'.*architecture that the saved"
    ):
        fcam.FCAM.from_pretrained(tmp_path, classifier=model)


OWN_FACTORY = """
def build(num_classes=5):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, num_classes),
    )
"""


def test_weights_of_the_saved_model_are_plain_tensors_of_the_classifier(tmp_path: Path) -> None:
    yours = build("torchvision:resnet18")
    attach(yours, image_size=SIDE).save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    for key, value in yours.state_dict().items():
        part = "head.rest" if key.startswith("fc.") else "backbone.body"
        assert torch.equal(state[f"classifier.{part}.{key}"], value)


def _other_pooling(network: nn.Module) -> None:
    network.avgpool = nn.AdaptiveMaxPool2d(1)


def _other_eps(network: nn.Module) -> None:
    network.bn1.eps = 0.1  # type: ignore[union-attr]


def _other_activation(network: nn.Module) -> None:
    network.layer4[1].relu = nn.LeakyReLU(0.3)  # type: ignore[index,union-attr]


def _hook(network: nn.Module) -> None:
    network.layer4.register_forward_hook(lambda layer, inputs, output: output * output.sigmoid())  # type: ignore[union-attr]


def _hook_before(network: nn.Module) -> None:
    network.register_forward_pre_hook(lambda layer, inputs: (inputs[0].flip(1),))


def _other_forward(network: nn.Module) -> None:
    block = network.layer4[1]  # type: ignore[index]
    block.forward = MethodType(lambda self, x: self.relu(self.bn2(self.conv2(x))), block)


@pytest.mark.parametrize(
    "change", [_other_pooling, _other_eps, _other_activation, _hook, _hook_before, _other_forward]
)
def test_a_changed_network_of_a_library_is_not_loaded_as_the_librarys(change, tmp_path) -> None:
    network = sources.build("torchvision:resnet18", 3)
    network.bn1.momentum = 0.01  # type: ignore[union-attr]  # makes no difference to a trained network
    assert identity.identify(network, 3) == "torchvision:resnet18"
    change(network)
    model = fcam.attach(network, image_size=SIDE).eval()
    model.save_pretrained(tmp_path)
    with pytest.raises(fcam.FcamError, match="is not built by torchvision or timm"):
        fcam.FCAM.from_pretrained(tmp_path)
    images = torch.rand(1, 3, SIDE, SIDE)
    again = fcam.FCAM.from_pretrained(tmp_path, classifier=network)
    torch.testing.assert_close(again(images).logits, model(images).logits)


def test_a_second_normalisation_is_the_librarys_own() -> None:
    for transform, name in ((True, "torchvision:googlenet"), (False, None)):
        network = torchvision.models.googlenet(
            weights=None, num_classes=3, init_weights=False, aux_logits=True, transform_input=transform
        )
        assert identity.identify(network, 3) == name
    assert sources.build("torchvision:googlenet", 3).transform_input is True


def ending(last: str, classes: int) -> nn.Module:
    """A small network that ends in something that makes probabilities."""

    class Ending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU()
            )
            self.fc, self.last = nn.Conv2d(8, classes, 1), nn.Softmax(1)

        def logits(self, x: Tensor) -> Tensor:
            return 20 * self.fc(F.adaptive_avg_pool2d(self.body(x), 1))

        def forward(self, x: Tensor) -> Tensor:
            x = self.logits(x)
            if last == "layer":
                return self.last(x).flatten(1)
            x = x.squeeze(3).squeeze(2)
            if last == "logarithm":
                return F.log_softmax(x, dim=-1)
            if last == "sigmoid":
                return torch.sigmoid(x)
            x = x.exp()
            return x / x.sum(1, keepdim=True)

    torch.manual_seed(3)
    return Ending().eval()


@pytest.mark.parametrize(
    ("last", "classes"), [("layer", 4), ("logarithm", 4), ("sigmoid", 4), ("sigmoid", 1), ("by hand", 4)]
)
def test_probabilities_are_those_of_the_network(
    last: str, classes: int, images: Tensor, tmp_path: Path
) -> None:
    yours = ending(last, classes)
    attach(yours, image_size=SIDE).save_pretrained(tmp_path)
    for model in (attach(yours, image_size=SIDE).eval(), fcam.FCAM.from_pretrained(tmp_path, yours)):
        with torch.no_grad():
            own, out, exported = yours(images), model(images), Network(model)(images)[1]
        want = own.exp() if last == "logarithm" else own
        torch.testing.assert_close(model.classifier.probabilities(out.logits), want)
        torch.testing.assert_close(exported, want)
        if last == "by hand":
            assert "probabilities already" in model.classifier.describe()  # type: ignore[operator]
            continue
        torch.testing.assert_close(out.logits, yours.logits(images).flatten(1).detach())
        assert "closed form" not in model.classifier.describe()  # type: ignore[operator] # 20 times a layer is not linear


@pytest.mark.parametrize("method", ["cam", "layercam", "scorecam"])
def test_maps_are_those_of_the_logits_before_a_softmax(method: str, images: Tensor) -> None:
    layers = [
        nn.Conv2d(3, 8, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
    ]
    torch.manual_seed(0)
    plain = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 4)).eval()
    for last in (nn.Softmax(1), nn.LogSoftmax(1), nn.Sigmoid()):
        yours = nn.Sequential(*plain, last).eval()
        assert fcam.explain_target(yours, images).closed_form
        torch.testing.assert_close(
            fcam.cam(yours, images, 1, method, normalize=False),
            fcam.cam(plain, images, 1, method, normalize=False),
        )
    model = attach(yours, image_size=SIDE)
    assert "closed form" in model.classifier.describe()  # type: ignore[operator]


def test_one_output_serves_two_classes(images: Tensor, tmp_path: Path) -> None:
    yours = nn.Sequential(*ending("layer", 1).body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 1))
    attach(yours, image_size=SIDE, classes=["no", "yes"]).save_pretrained(tmp_path)
    model = fcam.FCAM.from_pretrained(tmp_path, yours)
    with torch.no_grad():
        yes = yours(images).sigmoid()
        found = model.classifier.probabilities(model(images).logits)
    torch.testing.assert_close(found, torch.cat((1 - yes, yes), 1))
    maps = fcam.cam(model, images, [[0, 1]] * len(images), normalize=False)
    torch.testing.assert_close(maps[:, 1], fcam.cam(yours, images, 0, normalize=False) / 2)
    torch.testing.assert_close(maps[:, 0], -maps[:, 1])


def test_a_flat_output_says_what_to_do(images: Tensor) -> None:
    with pytest.raises(fcam.FcamError, match=r"unsqueeze\(1\)"):
        fcam.cam(nn.Sequential(nn.Conv2d(3, 1, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(0)), images)
