"""F-CAM as a whole: outputs, freezing, groups, names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fcam.backbones import build_backbone
from fcam.classifier import Classifier
from fcam.decoder import Decoder
from fcam.errors import FcamError
from fcam.heads import LinearHead
from fcam.model import FCAM, foreground
from fcam.registry import create_model, list_models

TINY = "timm:test_resnet"


@pytest.fixture
def model() -> FCAM:
    torch.manual_seed(0)
    return create_model(TINY, num_classes=4, pretrained=False, output_stride=8)


@pytest.mark.parametrize("size", [(32, 32), (64, 96), (77, 45)])
def test_output_has_the_images_size(model: FCAM, size: tuple[int, int]) -> None:
    images = torch.rand(2, 3, *size)
    output = model.eval()(images)
    assert output.logits.shape == (2, 4)
    assert output.maps.shape == (2, 2, *size)
    assert [f.shape[1] for f in output.features] == list(model.classifier.backbone.channels)
    top = model.classifier.backbone(images)[-1]
    assert torch.equal(output.features[-1], top)
    assert torch.equal(output.logits, model.classifier.head(top))


@pytest.mark.parametrize("name", ["timm:test_convnext", "timm:test_efficientnet"])
def test_other_pyramids_reach_the_images_size_too(name: str) -> None:
    model = create_model(name, 3, pretrained=False).eval()
    assert model(torch.rand(1, 3, 64, 80)).maps.shape == (1, 2, 64, 80)


def test_classifier_stays_frozen_in_training(model: FCAM) -> None:
    before = {k: v.clone() for k, v in model.classifier.state_dict().items()}
    model.train()
    assert model.decoder.training
    assert not any(m.training for m in model.classifier.modules())
    output = model(torch.rand(2, 3, 64, 64))
    assert not any(f.requires_grad for f in output.features)
    assert not output.logits.requires_grad
    output.maps.square().mean().backward()
    assert all(p.grad is None for p in model.classifier.parameters())
    assert all(p.grad is not None for p in model.decoder.parameters())
    assert all(torch.equal(v, before[k]) for k, v in model.classifier.state_dict().items())
    assert model.train(False).training is False


def test_classifier_can_be_left_trainable() -> None:
    model = create_model(TINY, 4, pretrained=False, freeze_classifier=False).train()
    assert all(m.training for m in model.classifier.modules())
    output = model(torch.rand(2, 3, 64, 64))
    (output.maps.mean() + output.logits.sum()).backward()
    assert all(p.grad is not None for p in model.classifier.parameters())


def test_freezing_parts(model: FCAM) -> None:
    classifier = model.classifier
    classifier.freeze("backbone").train()
    assert not classifier.frozen
    assert classifier.head.training
    assert not classifier.backbone.training
    assert [p.requires_grad for p in classifier.parameters()].count(True) == 2
    assert [group["lr"] for group in classifier.parameter_groups(0.1)] == [1.0]
    classifier.unfreeze().train()
    assert classifier.backbone.training
    assert all(p.requires_grad for p in classifier.parameters())
    assert classifier.freeze().frozen
    assert classifier.parameter_groups(0.1) == []


def test_parameter_groups_hold_each_parameter_once(model: FCAM) -> None:
    classifier = model.classifier.unfreeze()
    early, late = classifier.parameter_groups(0.01)
    assert (early["lr"], late["lr"]) == (0.01, pytest.approx(0.1))
    ids = [id(p) for group in (early, late) for p in group["params"]]
    assert sorted(ids) == sorted(id(p) for p in classifier.parameters())
    last = [*classifier.backbone.net.layer4.parameters(), *classifier.head.parameters()]  # type: ignore[union-attr]
    assert {id(p) for p in late["params"]} == {id(p) for p in last}
    assert classifier.parameter_groups(0.01, ratio=3)[1]["lr"] == pytest.approx(0.03)


def test_foreground_is_the_softmax_in_float32(model: FCAM) -> None:
    images = torch.rand(2, 3, 64, 64)
    model.eval()
    with torch.no_grad():
        maps = model(images).maps
        assert torch.allclose(model.foreground(images), maps.softmax(1)[:, 1], atol=1e-6)
        with torch.autocast("cpu", torch.bfloat16):
            half = model.foreground(images)
            assert model(images).maps.dtype == torch.float32
    assert half.dtype == torch.float32
    assert half.shape == (2, 64, 64)
    assert (half - maps.softmax(1)[:, 1]).abs().max() < 0.1
    extreme = foreground(torch.tensor([[[[-1e4, 1e4]], [[1e4, -1e4]]]]))
    assert extreme.flatten().tolist() == [1.0, 0.0]


def test_wrong_images_are_refused_before_any_work(model: FCAM) -> None:
    with pytest.raises(FcamError, match=r"\[0, 1\], got values from 0 to 255"):
        model(torch.linspace(0, 255, 3 * 64 * 64).view(1, 3, 64, 64))
    with pytest.raises(FcamError, match="uint8"):
        model(torch.zeros(1, 3, 64, 64, dtype=torch.uint8))


def test_parts_that_do_not_fit_are_refused() -> None:
    backbone = build_backbone(TINY, False)
    classifier = Classifier(backbone, LinearHead(backbone.channels[-1], 3))
    with pytest.raises(FcamError, match="reads 7 channels"):
        Classifier(backbone, LinearHead(7, 3))
    with pytest.raises(FcamError, match=r"features of \(4, 8\) channels"):
        FCAM(classifier, Decoder((4, 8), (8, 4)))
    with pytest.raises(FcamError, match="2 class names for 3 classes"):
        FCAM(classifier, Decoder(backbone.channels), classes=["a", "b"])


def test_create_model_options() -> None:
    model = create_model(
        TINY,
        3,
        pretrained=False,
        output_stride=16,
        decoder_channels=(8, 8, 8, 8, 4),
        head="wildcat",
        head_options={"modalities": 2},
        classes=["a", "b", "c"],
    )
    assert model.classifier.backbone.output_stride == 16
    assert model.decoder.channels == (8, 8, 8, 8, 4)
    assert model.classifier.head.options()["modalities"] == 2
    assert model.classes == ["a", "b", "c"]


def test_names_and_numbers_from_arrays_can_be_stored(tmp_path: Path) -> None:
    names = np.unique(np.array(["b", "c", "a", "a"]))
    for classes, count in ((names, np.int64(3)), (iter("abc"), torch.tensor(3)), (tuple(names), np.uint8(3))):
        widths = np.array([8, 8, 8, 8, 4])
        model = create_model(TINY, count, False, classes=classes, decoder_channels=widths)  # type: ignore[arg-type]
        assert model.classes == ["a", "b", "c"]
        model.save_pretrained(tmp_path)
        again = FCAM.from_pretrained(tmp_path)
        assert (again.classes, again.classifier.num_classes) == (["a", "b", "c"], 3)
        assert {type(value) for value in (*model.classes, *again.classes)} == {str}
        assert again.decoder.channels == (8, 8, 8, 8, 4)
    for wrong in (np.arange(3), torch.arange(3), np.array("a"), 5):
        with pytest.raises(FcamError, match=r"classes are .*; give a list of names"):
            create_model(TINY, 3, False, classes=wrong)  # type: ignore[arg-type]


def test_paper_models_have_the_papers_size() -> None:
    for name, size in (("resnet50", 23_917_832), ("vgg16", 19_639_304), ("inceptionv3", 25_687_976)):
        with torch.device("meta"):
            backbone = build_backbone(name, False)
            classifier = Classifier(backbone, LinearHead(backbone.channels[-1], 200))
        assert sum(p.numel() for p in classifier.parameters()) == size


def test_pretrained_head_of_a_timm_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import timm

    made: list[torch.Tensor] = []
    original = timm.create_model

    def create(name: str, pretrained: bool = False) -> nn.Module:
        net = original(name)
        made.append(net.get_classifier().weight)  # type: ignore[operator]
        return net

    monkeypatch.setattr(timm, "create_model", create)
    model = create_model(TINY, 1000, pretrained=True)
    assert torch.equal(model.classifier.head.fc.weight, made[-1])  # type: ignore[union-attr]
    assert model.classifier.took_imagenet_head
    # ConvNeXt normalises after pooling, so its classifier does not read the pooled map and is not taken.
    other = create_model("timm:test_convnext", 1000).classifier
    assert other.backbone.classifier_weights() is None
    assert not other.took_imagenet_head
    for few in (
        create_model(TINY, 999),
        create_model(TINY, 1000, head="gap"),
        create_model(TINY, 1000, False),
    ):
        assert not few.classifier.took_imagenet_head


def test_list_models() -> None:
    names = list_models()
    assert names[:4] == ["resnet50", "vgg16", "inceptionv3", "tf_efficientnet_lite0"]
    assert "timm:convnext_tiny" in names
    assert not any(name.startswith(("timm:vit_", "timm:swin", "timm:test_")) for name in names)
    assert all("regnety" in name for name in list_models("regnety"))
    with pytest.raises(FcamError, match=r"no model's name contains 'resnet5o'.*resnet50"):
        list_models("resnet5o")


def test_models_built_under_inference_mode_are_whole(tmp_path: Path) -> None:
    plain = create_model(TINY, 3, pretrained=False, output_stride=32)
    plain.save_pretrained(tmp_path)
    with torch.inference_mode():
        built = create_model(TINY, 3, pretrained=False, output_stride=32)
        loaded = FCAM.from_pretrained(tmp_path)
    for model in (built, loaded):
        assert model.state_dict().keys() == plain.state_dict().keys()
        assert not any(tensor.is_inference() for tensor in model.state_dict().values())
