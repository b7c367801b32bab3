"""Training a decoder on a classifier that the user brings along: names, weights, classes, resume, the command line."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fcam.attachment.sources import build, with_new_layer
from fcam.cli import main
from fcam.config import TrainConfig
from fcam.data.synthetic import class_names
from fcam.errors import FcamError
from fcam.model import FCAM
from fcam.run import load_config
from fcam.settings import settle
from fcam.start import build as start
from fcam.start import outputs_of
from fcam.train import train

CODE = """
from torch import nn

def build(num_classes=2):
    layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 16, 3, 2, 1)]
    pool = [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *pool, nn.Linear(16, 10), nn.ReLU(), nn.Dropout(0.5), nn.Linear(10, num_classes))
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the user's own code and weights, and the current one."""
    (tmp_path / "birds_net.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "birds_net", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    from birds_net import build as make  # type: ignore[import-not-found]

    torch.manual_seed(0)
    save_file(make().state_dict(), tmp_path / "two.safetensors")
    save_file(make(5).state_dict(), tmp_path / "five.safetensors")
    torch.save(
        {"state_dict": {f"module.{k}": v for k, v in make().state_dict().items()}}, tmp_path / "two.pth"
    )
    return tmp_path


@pytest.fixture
def config(tiny_config: TrainConfig, own: Path) -> TrainConfig:
    stage = dataclasses.replace(tiny_config.stage2, epochs=1)
    return dataclasses.replace(
        tiny_config, out=str(own / "run"), classifier="birds_net:build", weights="two.safetensors", stage1=stage, stage2=stage
    )  # fmt: skip


class HeadFirst(nn.Module):
    """Its last layer is defined first, a side output of the same length last, and it takes images of 64 pixels alone."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8 * 16 * 16, 5)
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1))
        self.mix, self.side = nn.Conv2d(8, 8, 1), nn.Linear(8 * 16 * 16, 5)

    def forward(self, x):
        x = self.mix(self.body(x)).flatten(1)
        return self.fc(x), self.side(x)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_new_layer_goes_where_the_scores_come_from(device: str) -> None:
    with torch.device(device):
        changed = with_new_layer(HeadFirst(), 7)
    assert (changed.fc.out_features, changed.side.out_features, changed.mix.out_channels) == (7, 5, 8)
    with pytest.raises(FcamError, match="no linear layer"):
        with_new_layer(nn.Sequential(nn.Flatten()), 7)


def test_only_the_decoder_is_trained_and_everything_works_with_the_run(
    config: TrainConfig, own: Path, drawn_set: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = train(config)
    said = capfd.readouterr().err
    assert "5: 16 channels, stride 8" in said
    assert "gradient through the head" in said
    assert "images in [0, 1] as they are" in said
    assert "of 12 training photos" in said
    assert f"0 {class_names(2)[0]}, 1 {class_names(2)[1]}" in said
    state, yours = load_file(run / "model" / "model.safetensors"), load_file(own / "two.safetensors")
    kept = {k: v for k, v in state.items() if k.startswith("classifier.")}
    assert len(kept) == len(yours)
    for key, value in yours.items():
        part = "head.rest" if int(key.split(".")[0]) > 5 else "backbone.body"
        assert torch.equal(kept[f"classifier.{part}.{key}"], value)
    assert load_config(run) == settle(config)
    with pytest.raises(FcamError, match=r"--classifier module\.path:factory"):
        FCAM.from_pretrained(run)
    photo = str(next((drawn_set / "images" / "test").rglob("*.jpg")))
    assert main(["predict", photo, "--model", str(run), "--out", str(own / "seen")]) == 2
    with_code = ["--classifier", "birds_net:build"]
    assert (
        main(["predict", photo, "--model", str(run), "--out", str(own / "seen"), "--with-cam", *with_code])
        == 0
    )
    assert main(["evaluate", str(run), "--out", str(own / "again.json"), "--workers", "0", *with_code]) == 0
    assert json.loads((own / "again.json").read_text()) == json.loads((run / "metrics.json").read_text())
    # Going on with a finished run repeats nothing and refuses other weights.
    train(dataclasses.replace(config, resume=True))
    shutil.copy(own / "two.pth", own / "other.pth")
    with pytest.raises(FcamError, match="started with weights"):
        train(dataclasses.replace(config, resume=True, weights="other.pth"))
    # At the same path too.
    network = build("birds_net:build", weights="two.safetensors")
    with torch.no_grad():
        next(network.parameters()).add_(1)
    save_file(network.state_dict(), own / "two.safetensors")
    with pytest.raises(FcamError, match="on another classifier than birds_net:build is, with its weights"):
        train(dataclasses.replace(config, resume=True))
    # A second run can start from the first.
    again = dataclasses.replace(config, classifier_from=str(run), weights="", out=str(own / "second"))
    after = load_file(train(again) / "model" / "model.safetensors")
    assert all(torch.equal(after[key], value) for key, value in kept.items())


def test_pth_files_and_other_class_counts(config: TrainConfig, own: Path) -> None:
    names = class_names(2)
    (own / "names.txt").write_text("\n".join(["a", names[1], "b", names[0], "c"]))
    five = dataclasses.replace(config, weights="five.safetensors")
    with pytest.raises(FcamError, match=r"5 outputs.*2 classes.*--class-names.*--new-head"):
        train(five)
    assert not (own / "run").exists()
    run = train(dataclasses.replace(five, class_names="names.txt"))
    model = FCAM.from_pretrained(run, classifier="birds_net:build")
    assert model.classifier.head.outputs == (3, 1)  # type: ignore[union-attr]
    assert model.classes == names
    (own / "names.txt").write_text("\n".join([names[0], names[1], "a", "b", "c"]))
    with pytest.raises(FcamError, match="the order of its outputs"):
        train(dataclasses.replace(five, class_names="names.txt", resume=True))
    first = train(dataclasses.replace(config, weights="two.pth", out=str(own / "pth")))
    assert "classifier.head.rest.11.weight" in load_file(first / "model" / "model.safetensors")


@pytest.mark.parametrize(
    ("wrapper", "prefix"),
    [
        ("state_dict", "model."),
        ("model", ""),
        ("model_state_dict", "module._orig_mod."),
        ("net", "backbone."),
    ],
)
def test_weights_are_found_in_the_files_of_other_trainers(own: Path, wrapper: str, prefix: str) -> None:
    yours = load_file(own / "five.safetensors")
    state = {f"{prefix}{key}": value for key, value in yours.items()}
    torch.save({wrapper: state, "epoch": 3, "optimizer": {"state": {0: {"step": 1}}}}, own / "trained.ckpt")
    found = build("birds_net:build", weights="trained.ckpt").state_dict()
    assert all(torch.equal(found[key], value) for key, value in yours.items())
    state[f"{prefix}more"] = state.pop(f"{prefix}0.weight")
    torch.save({wrapper: state}, own / "trained.ckpt")
    with pytest.raises(
        FcamError, match="9 of its 10 keys match; 0.weight is missing; more is unexpected; check"
    ):
        build("birds_net:build", weights="trained.ckpt")


def test_a_new_head_is_trained_before_the_decoder(config: TrainConfig, own: Path) -> None:
    run = train(dataclasses.replace(config, weights="five.safetensors", new_head=True))
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [record["stage"] for record in records] == ["classifier", "decoder"]
    state, yours = load_file(run / "model" / "model.safetensors"), load_file(own / "five.safetensors")
    assert state["classifier.head.rest.11.weight"].shape == (2, 10)
    assert torch.equal(state["classifier.backbone.body.0.weight"], yours["0.weight"])
    assert FCAM.from_pretrained(run, classifier="birds_net:build").classifier.num_classes == 2


def test_with_a_new_head_nothing_but_its_last_layer_changes(config: TrainConfig, own: Path) -> None:
    text = (own / "birds_net.py").read_text()
    (own / "birds_net.py").write_text(
        text.replace("nn.Linear(16, 10)", "nn.Linear(16, 10), nn.BatchNorm1d(10)")
    )
    sys.modules.pop("birds_net")
    torch.manual_seed(0)
    yours = build("birds_net:build").state_dict()
    save_file(yours, own / "normed.safetensors")
    run = train(dataclasses.replace(config, weights="normed.safetensors", new_head=True, stages="classifier"))
    state = load_file(run / "model" / "model.safetensors")
    kept = {
        k.split("body.")[-1].split("rest.")[-1]: v for k, v in state.items() if k.startswith("classifier")
    }
    assert {k for k, v in yours.items() if not torch.equal(kept[k], v)} == {"12.weight", "12.bias"}
    built = start(dataclasses.replace(config, weights="normed.safetensors", new_head=True), ["a", "b"])
    head = built.classifier.freeze("backbone").train().head
    learning = [type(layer).__name__ for layer in head.rest.modules() if layer.training]
    assert learning == ["Dropout"]
    assert not any(layer.training for layer in built.classifier.freeze().train().modules())


def test_stages_run_apart_begin_with_the_decoder_of_those_run_together(config: TrainConfig) -> None:
    new = dataclasses.replace(config, weights="two.safetensors", new_head=True, seed=3)
    run = train(dataclasses.replace(new, stages="classifier"))
    decoders = []
    for one in (new, dataclasses.replace(new, stages="decoder", weights="", classifier_from=str(run))):
        torch.manual_seed(one.seed)
        built = start(one, class_names(2))
        decoders.append(built.decoder.state_dict())
        assert built.classes == class_names(2)
    assert all(torch.equal(value, decoders[1][name]) for name, value in decoders[0].items())


def test_a_new_layer_that_the_decoder_would_read_is_refused(config: TrainConfig) -> None:
    model = dataclasses.replace(config.model, pretrained=False)
    squeeze = dataclasses.replace(
        config, classifier="torchvision:squeezenet1_1", weights="", new_head=True, model=model
    )
    with pytest.raises(
        FcamError, match=r"classifier\.1 of torchvision:squeezenet1_1 lies before.*--model\.level"
    ):
        start(squeeze, ["a", "b"])
    named = dataclasses.replace(model, level=("features.1", "features.4", "features.12"))
    inner = start(dataclasses.replace(squeeze, model=named), ["a", "b"]).classifier
    assert inner.head.new_layer == "classifier.1"


def test_one_output_is_trained_with_two_folders(
    config: TrainConfig, own: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = (own / "birds_net.py").read_text().replace("num_classes=2", "num_classes=1")
    (own / "birds_net.py").write_text(text.replace(", num_classes))", ", num_classes), nn.Sigmoid())"))
    sys.modules.pop("birds_net")
    names = class_names(2)
    (own / "names.txt").write_text(f"{names[1]}\n{names[0]}\n")
    torch.manual_seed(0)
    save_file(build("birds_net:build").state_dict(), own / "one.safetensors")
    run = train(dataclasses.replace(config, weights="one.safetensors", class_names="names.txt"))
    said = capfd.readouterr().err
    assert "sigmoid of the one output for class 1" in said
    assert f"outputs and classes: 1 {names[0]}, 0 {names[1]}" in said
    model = FCAM.from_pretrained(run, classifier="birds_net:build")
    images = torch.rand(3, 3, 64, 64)
    network = build("birds_net:build", weights="one.safetensors")
    with torch.no_grad():
        found = model.classifier.probabilities(model(images).logits)
        torch.testing.assert_close(found[:, :1], network(images))


def test_names_of_libraries_need_no_code_to_load(config: TrainConfig, own: Path) -> None:
    model = dataclasses.replace(
        config.model, pretrained=False, level=("layer1", "layer4"), mean=(0.5,) * 3, std=(0.2,) * 3
    )
    run = train(
        dataclasses.replace(config, classifier="timm:test_resnet", weights="", new_head=True, model=model)
    )
    saved = FCAM.from_pretrained(run)
    assert [tap.path for tap in saved.classifier.backbone.taps] == ["layer1", "layer4"]  # type: ignore[union-attr]
    assert saved.classifier.backbone.mean.flatten().tolist() == [0.5] * 3
    assert load_config(run).model.mean == (0.5,) * 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"classifier": ""}, "--weights belongs to --classifier"),
        ({"classifier": "", "weights": "", "model": "own"}, "name it with --classifier torchvision:NAME"),
        ({"classifier": "torchvision:resnet19"}, "resnet18"),
        ({"classifier": "timm:regnety_02"}, "regnety_002"),
        ({"classifier": "resnet18"}, "torchvision:NAME, timm:NAME or module.path:factory"),
        ({"classifier": "nowhere_net:build"}, "run the command in the folder of nowhere_net.py"),
        ({"classifier": "birds_net:make"}, "cannot be imported"),
        ({"classifier": "os:getcwd"}, "returned a str"),
        ({"classifier": "os:kill"}, "failed .TypeError"),
        ({"weights": "none.safetensors"}, "none.safetensors does not exist"),
        ({"classifier": "timm:test_resnet"}, "does not fit ResNet"),
        ({"new_head": True, "class_names": "x"}, "leave one out"),
        ({"new_head": True, "stages": "decoder"}, "has to be trained before the decoder"),
    ],
)
def test_mistakes(config: TrainConfig, own: Path, changes: dict, words: str) -> None:
    changes = dict(changes)
    if changes.get("model") == "own":
        changes["model"] = dataclasses.replace(config.model, backbone="own")
    with pytest.raises(FcamError, match=words):
        train(dataclasses.replace(config, **changes))
    assert not (own / "run").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cat\ndog", "names 2 classes but"),
        ("cat\nducks\nx", "duck.* is not in .*, near are .*ducks"),
        ("cat\nduck\nduck", "stands twice in"),
    ],
)
def test_class_names_that_do_not_match(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text(text)
    config = TrainConfig(classifier="timm:x", class_names=str(tmp_path / "names.txt"), data="photos")
    with pytest.raises(FcamError, match=words):
        outputs_of(["cat", "duck"], 3, config)
    (tmp_path / "names.txt").write_text("duck\nx\ncat\n")
    assert outputs_of(["cat", "duck"], 3, config) == [2, 0]


def test_the_command_line(own: Path, drawn_set: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = [
        "--crop",
        "64",
        "--resize",
        "72",
        "--stage2.epochs",
        "1",
        "--workers",
        "0",
        "--model.decoder-channels",
        "8",
        "8",
        "8",
    ]
    command = ["train", "folder-own-cam", "--data", str(drawn_set), "--out", str(own / "run")]
    assert main([*command, *small, "--classifier", "birds_net:build", "--weights", "two.safetensors"]) == 0
    assert (own / "run" / "metrics.json").is_file()
    assert main([*command, *small]) == 2
    assert "--classifier" in capsys.readouterr().err
    later = ["train", "folder-own-cam", "--data", str(drawn_set), "--out", str(own / "sharper"), *small]
    later += [
        "--stages",
        "decoder",
        "--decoder-from",
        str(own / "run"),
        "--stage2.epochs",
        "0",
        "--sharpen",
        "1",
    ]
    assert main(later) == 2
    assert "--classifier module.path:factory" in capsys.readouterr().err
    assert main([*later, "--classifier", "birds_net:build"]) == 0
    before, after = (load_file(own / name / "model" / "model.safetensors") for name in ("run", "sharper"))
    kept = [name for name in before if name.startswith("classifier.")]
    assert kept
    assert all(torch.equal(before[name], after[name]) for name in kept)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--stage1.epochs", "0"], "--stage1.epochs is 0"),
        (["--stage2.epochs", "-1"], "--stage2.epochs is -1"),
        (["--stage2.batch-size", "0"], "--stage2.batch-size is 0"),
    ],
)
def test_a_stage_of_no_epochs_is_refused(
    drawn_set: Path, tmp_path: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["train", "folder-lite0-cam", "--data", str(drawn_set), "--out", str(out), *options]) == 2
    assert words in capsys.readouterr().err
    assert not out.exists()
