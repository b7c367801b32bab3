"""A decoder that is given: stage 2 goes on with it, or it is sharpened at once."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fcam.checkpoint import decoder_weights
from fcam.cli import main
from fcam.config import ModelConfig, StageConfig, TrainConfig
from fcam.errors import FcamError
from fcam.model import FCAM
from fcam.run import Run, load_config
from fcam.settings import as_given, settle
from fcam.start import build
from fcam.tables.paper import settings
from fcam.train import train


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture
def going_on(tiny_run: Path, tiny_config: TrainConfig, tmp_path: Path) -> TrainConfig:
    """A run that only sharpens the decoder of `tiny_run`, on the classifier that comes with it."""
    stage = dataclasses.replace(tiny_config.stage2, epochs=0)
    out = str(tmp_path / "run")
    return dataclasses.replace(
        tiny_config, out=out, stages="decoder", decoder_from=str(tiny_run), stage2=stage, sharpen=1
    )


def test_sharpening_a_finished_run_ends_as_if_it_had_been_asked_for_from_the_start(
    tiny_config: TrainConfig, going_on: TrainConfig, tmp_path: Path
) -> None:
    whole = train(dataclasses.replace(tiny_config, sharpen=1, out=str(tmp_path / "whole")))
    apart = train(going_on)
    assert [(r["stage"], r["epoch"]) for r in Run(apart).records()] == [("decoder", 1)]
    assert Run(apart).records()[-1]["terms"] == Run(whole).records()[-1]["terms"]
    assert same(weights(whole), weights(apart))
    assert (whole / "metrics.json").read_text() == (apart / "metrics.json").read_text()


def test_stage_two_begins_with_the_given_decoder_in_every_round(
    tiny_run: Path, tiny_config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, began = decoder_weights(tiny_run), []

    def noted(stage, model: FCAM, *others: object) -> None:
        began.append((stage.name, same(model.decoder.state_dict(), given)))
        if stage.name != "classifier":
            with torch.no_grad():
                next(model.decoder.parameters()).add_(1)

    monkeypatch.setattr("fcam.train.train_stage", noted)
    config = dataclasses.replace(tiny_config, out=str(tmp_path / "run"), decoder_from=str(tiny_run), rounds=2)
    train(config)
    assert began == [("classifier", True), ("decoder-round1", True), ("decoder", True)]


def test_a_resumed_run_knows_the_given_decoder_by_its_weights(
    tiny_run: Path, going_on: TrainConfig, tmp_path: Path
) -> None:
    first = tmp_path / "first"
    shutil.copytree(tiny_run, first)
    done = weights(train(dataclasses.replace(going_on, decoder_from=str(first))))
    moved = dataclasses.replace(going_on, decoder_from=str(first.rename(tmp_path / "moved")), resume=True)
    assert same(done, weights(train(moved)))
    assert load_config(going_on.out).decoder_from == moved.decoder_from
    model = FCAM.from_pretrained(moved.decoder_from)
    with torch.no_grad():
        next(model.decoder.parameters()).add_(1)
    model.save_pretrained(tmp_path / "moved" / "model")
    with pytest.raises(FcamError, match="started on another decoder than .*moved holds now"):
        train(moved)
    assert same(done, weights(Path(going_on.out)))
    # Where the weights were not noted the path has to do.
    (Path(going_on.out) / "origin.json").unlink()
    with pytest.raises(FcamError, match="started with decoder_from"):
        train(dataclasses.replace(moved, decoder_from=str(tiny_run), classifier_from=moved.decoder_from))


def test_a_decoder_of_other_features_is_refused_before_anything_is_written(
    going_on: TrainConfig, tiny_config: TrainConfig, tmp_path: Path
) -> None:
    config = dataclasses.replace(going_on, stages="both")
    for other in (
        ModelConfig("timm:test_efficientnet", 16, decoder_channels=(8, 8, 8, 8, 8), pretrained=False),
        dataclasses.replace(tiny_config.model, decoder_channels=(8, 8, 8, 8, 4)),
    ):
        with pytest.raises(FcamError, match="the decoder of .*tiny.* does not fit Decoder"):
            train(dataclasses.replace(config, model=other))
    with pytest.raises(FcamError, match="there is no folder nowhere"):
        train(dataclasses.replace(config, decoder_from="nowhere"))
    assert not (tmp_path / "run").exists()


def test_a_decoder_that_was_never_trained_is_refused(
    tiny_run: Path, going_on: TrainConfig, tmp_path: Path
) -> None:
    model = FCAM.from_pretrained(tiny_run)
    model.metadata["decoder_trained"] = False
    model.save_pretrained(tmp_path / "fresh")
    with pytest.raises(FcamError, match="the decoder of .*fresh was never trained"):
        train(dataclasses.replace(going_on, decoder_from=str(tmp_path / "fresh")))
    assert not (tmp_path / "run").exists()


def test_the_decoder_that_comes_along_can_be_taken(tiny_config: TrainConfig) -> None:
    config = dataclasses.replace(
        tiny_config,
        model=ModelConfig("tf_efficientnet_lite0", output_stride=16, pretrained=False),
        decoder_from="lite0",
    )
    given = FCAM.from_pretrained("lite0").decoder.state_dict()
    assert same(build(settle(config), ["a", "b"]).decoder.state_dict(), given)
    assert all(value.dtype != torch.float16 for value in given.values())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sharpen": 0}, "--stage2.epochs is 0"),
        ({"rounds": 2}, "--stage2.epochs is 0"),
        ({"decoder_from": "", "classifier_from": "run"}, "--stage2.epochs is 0"),
        ({"stage2": StageConfig(epochs=-1)}, "--stage2.epochs is -1"),
        ({"stages": "classifier"}, "--decoder-from is for stage 2"),
    ],
)
def test_what_a_given_decoder_cannot_do_without(
    going_on: TrainConfig, change: dict[str, object], words: str
) -> None:
    with pytest.raises(FcamError, match=words):
        settle(dataclasses.replace(going_on, **change))  # type: ignore[arg-type]


def test_a_run_that_starts_from_the_settings_of_another_takes_the_classifier_of_the_decoder_it_names(
    going_on: TrainConfig,
) -> None:
    earlier = as_given(settle(going_on))
    assert settle(dataclasses.replace(earlier, decoder_from="other")).classifier_from == "other"
    named = settle(dataclasses.replace(going_on, classifier_from="third"))
    assert as_given(named) == named


def test_its_own_classifier_is_taken_only_where_none_is_named(going_on: TrainConfig) -> None:
    assert settle(going_on).classifier_from == going_on.decoder_from
    assert settle(dataclasses.replace(going_on, classifier_from="other")).classifier_from == "other"
    assert settle(dataclasses.replace(going_on, stages="both")).classifier_from == ""
    own = dataclasses.replace(going_on, classifier="birds_net:build")
    assert settle(own).classifier_from == going_on.decoder_from, (
        "code says how it is built, and nothing of weights"
    )
    assert settle(dataclasses.replace(own, weights="two.pth")).classifier_from == ""
    assert settle(dataclasses.replace(own, classifier="torchvision:resnet18")).classifier_from == ""


def test_seeds_of_one_experiment_stay_together_though_each_goes_on_with_its_own_decoder() -> None:
    config = TrainConfig(name="cub-resnet50-cam", decoder_from="run-0")
    assert settings(config) == settings(dataclasses.replace(config, decoder_from="run-1"))
    assert settings(config) != settings(dataclasses.replace(config, decoder_from=""))


def test_the_command_says_whose_classes_do_not_fit(
    drawn_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "folder-lite0-cam", "--data", str(drawn_set), "--out", str(tmp_path / "run")]
    command += ["--stages", "decoder", "--decoder-from", "lite0"]
    assert main(command) == 2
    assert "the classifier of lite0 knows 1000 classes" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
