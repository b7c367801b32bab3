"""Checkpoints in the key schemes of both WSOL codes, made here from our own models."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from fcam.cli import main
from fcam.convert import convert
from fcam.errors import FcamError
from fcam.heads import MapHead
from fcam.model import FCAM
from fcam.registry import create_model

CLASSES = 3


@pytest.fixture(scope="module")
def models() -> dict[str, FCAM]:
    torch.manual_seed(0)
    names = ("vgg16", "resnet50", "inceptionv3")
    return {name: create_model(name, CLASSES, pretrained=False).eval() for name in names}


def encoder_as_written(model: FCAM) -> dict:
    """With the layers that the authors' encoders register a second time."""
    name, own = model.classifier.backbone.name, dict(model.classifier.backbone.state_dict())
    twice = {"vgg16": "full_features.0.", "inceptionv3": "features.7."}.get(name)
    return own | ({twice + "weight": torch.zeros(1), twice + "bias": torch.zeros(1)} if twice else {})


def write_fcam_wsol(model: FCAM, folder: Path, head: bool = True, decoder: bool = True) -> Path:
    folder.mkdir()
    torch.save(encoder_as_written(model), folder / "encoder.pt")
    if head:
        torch.save(model.classifier.head.state_dict(), folder / "classification_head.pt")
    if decoder:
        state = model.decoder.state_dict()
        cut = "segmentation_head."
        torch.save({k: v for k, v in state.items() if not k.startswith(cut)}, folder / "decoder.pt")
        last = {k.removeprefix(cut): v for k, v in state.items() if k.startswith(cut)}
        torch.save(last, folder / "segmentation_head.pt")
    return folder


def equal(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    x, y = a.state_dict(), b.state_dict()
    return x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x)


@pytest.mark.parametrize("name", ["vgg16", "resnet50", "inceptionv3"])
def test_fcam_wsol_stage_2_round_trip(models: dict, tmp_path: Path, name: str) -> None:
    stage1 = write_fcam_wsol(models[name], tmp_path / "stage1", decoder=False)
    stage2 = write_fcam_wsol(models[name], tmp_path / "stage2", head=False)
    with pytest.raises(FcamError, match="classifier="):
        convert(stage2)
    got = convert(stage2, tmp_path / "ours", classifier=stage1)
    assert equal(got, models[name])
    assert got.metadata["decoder_trained"] is True
    if name == "resnet50":
        again = FCAM.from_pretrained(tmp_path / "ours")
        assert equal(again, models[name])
        assert convert(stage1).metadata["decoder_trained"] is False
        (stage2 / "segmentation_head.pt").unlink()
        with pytest.raises(FcamError, match="has the decoder and not the segmentation_head"):
            convert(stage2, classifier=stage1)


@pytest.mark.parametrize("name", ["vgg16", "resnet50", "inceptionv3"])
def test_wsolevaluation_file(models: dict, tmp_path: Path, name: str) -> None:
    model = models[name].classifier
    state = dict(model.backbone.state_dict())
    fc = model.head.fc
    if name == "inceptionv3":
        state |= {"SPG_A4.1.weight": fc.weight.detach()[:, :, None, None], "SPG_A4.1.bias": fc.bias.detach()}
        state["SPG_A3_1b.0.weight"] = state.pop("SPG_A3_1b.1.weight")  # without the dropout slot
        state["SPG_A3_1b.0.bias"] = state.pop("SPG_A3_1b.1.bias")
    else:
        state |= {"fc.weight": fc.weight.detach(), "fc.bias": fc.bias.detach()}
    path = tmp_path / "last_checkpoint.pth.tar"
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in state.items()}}, path)
    got = convert(path)
    assert equal(got.classifier, model)
    assert got.classifier.num_classes == CLASSES


def test_whole_model_file_is_cut_at_its_prefixes(models: dict, tmp_path: Path) -> None:
    model = models["resnet50"]
    state = {f"encoder.{k}": v for k, v in model.classifier.backbone.state_dict().items()}
    state |= {f"classification_head.{k}": v for k, v in model.classifier.head.state_dict().items()}
    torch.save(state, tmp_path / "model.pt")
    assert equal(convert(tmp_path / "model.pt").classifier, model.classifier)


HEADS = [
    ("gap", {"background": True}, "conv"),
    ("maxpool", {}, "conv"),
    ("logsumexp", {"background": True}, "conv"),
    ("wildcat", {"background": True, "modalities": 2}, "to_modalities"),
]


@pytest.mark.parametrize(("head", "options", "layer"), HEADS)
def test_heads_that_pool_class_maps(tmp_path: Path, head: str, options: dict, layer: str) -> None:
    torch.manual_seed(1)
    own = options | ({"variant": "reference"} if head == "wildcat" else {})
    model = create_model("resnet50", CLASSES, pretrained=False, head=head, head_options=own).eval()
    pool = model.classifier.head
    assert isinstance(pool, MapHead)
    assert pool.conv.bias is not None
    torch.nn.init.normal_(pool.conv.bias)
    folder = write_fcam_wsol(model, tmp_path / "stage1", head=False, decoder=False)
    conv = pool.conv.state_dict()
    torch.save({f"{layer}.{key}": value for key, value in conv.items()}, folder / "classification_head.pt")
    with pytest.raises(FcamError, match="gap, maxpool, logsumexp, wildcat"):
        convert(folder)
    arguments = ["convert", str(folder), "--out", str(tmp_path / "ours"), "--head", head]
    arguments += ["--background"] * ("background" in options)
    if "modalities" in options:
        with pytest.raises(FcamError, match="5 for each class"):
            convert(folder, head=head, head_options={"background": True})
        arguments += ["--modalities", str(options["modalities"])]
    assert main(arguments) == 0
    again = FCAM.from_pretrained(tmp_path / "ours")
    images = torch.rand(2, 3, 64, 64)
    expected = model.classifier(images)
    got = again.classifier(images)
    torch.testing.assert_close(got.logits, expected.logits)
    maps = pool.class_maps(expected.features[-1])
    torch.testing.assert_close(again.classifier.head.class_maps(got.features[-1]), maps)


def test_options_of_a_head_that_is_not_there(models: dict, tmp_path: Path, capsys) -> None:
    folder = write_fcam_wsol(models["resnet50"], tmp_path / "stage1", decoder=False)
    assert main(["convert", str(folder), "--out", str(tmp_path / "ours"), "--background"]) != 0
    assert "wgap" in capsys.readouterr().err
    assert not (tmp_path / "ours").exists()


class Evil:
    ran = False

    def __reduce__(self):
        return (setattr, (Evil, "ran", True))


def test_nothing_pickled_is_executed(tmp_path: Path) -> None:
    path = tmp_path / "evil.pt"
    path.write_bytes(pickle.dumps({"conv1.weight": Evil()}))
    with pytest.raises(FcamError):
        convert(path)
    torch.save({"conv1.weight": Evil()}, path)
    with pytest.raises(FcamError):
        convert(path)
    assert not Evil.ran


def test_what_does_not_fit_is_refused(models: dict, tmp_path: Path) -> None:
    model = models["resnet50"].classifier
    state = dict(model.backbone.state_dict()) | {f"fc.{k}": v for k, v in model.head.fc.state_dict().items()}
    path = tmp_path / "w.pt"

    def check(change: dict, says: str) -> None:
        torch.save({k: v for k, v in (state | change).items() if v is not None}, path)
        with pytest.raises(FcamError, match=says):
            convert(path)

    check({"layer1.0.conv1.weight": torch.zeros(2)}, r"layer1.0.conv1.weight has shape \(2,\)")
    check({"bn1.bias": None}, "bn1.bias is missing")
    check({"SPG_B_1a.0.weight": torch.zeros(1)}, "unexpected")
    check({"layer4.2.conv3.weight": None}, "none of the VGG16")
    check({"fc.weight": None, "fc.bias": None}, "no classification head")
    with pytest.raises(FcamError, match=r"no encoder\.pt"):
        convert(tmp_path)
    with pytest.raises(FcamError, match="does not exist"):
        convert(tmp_path / "nowhere.pt")
