"""The training loop: whole runs, determinism, resume after a kill, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from fcam.cams import interpolated
from fcam.checkpoint import read, remember_thresholds, write
from fcam.cli import main
from fcam.config import LossConfig, ModelConfig, OptimizerConfig, SeedConfig, StageConfig
from fcam.data import open_dataset
from fcam.data.synthetic import class_names, draw_set
from fcam.errors import FcamError
from fcam.model import FCAM
from fcam.optimization import learning_rate
from fcam.run import Run, load_config
from fcam.settings import settle
from fcam.stages import ClassifierStage, DecoderStage, maps_of
from fcam.train import _is_better, train
from launched import in_two_processes


def weights(run):
    return load_file(run / "model" / "model.safetensors")


def same(first, second) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_leaves_everything_where_the_design_says(tiny_run):
    assert {"config.yaml", "log.jsonl", "metrics.json", "model", "state"} <= {
        p.name for p in tiny_run.iterdir()
    }
    metrics = json.loads((tiny_run / "metrics.json").read_text())
    assert (metrics["split"], metrics["images"]) == ("test", 8)
    assert set(metrics["maps"]) == {"cam", "fcam", "center"}
    for kind in ("cam", "fcam"):
        row = metrics["maps"][kind]
        assert set(row["max_box_acc"]) == {"0.3", "0.5", "0.7"}
        assert {"max_box_acc_v2", "top1_loc", "top5_loc", "pxap", "threshold", "transferred"} <= set(row)
        assert 0 < row["pxap"] <= 100
        assert row["transferred"]["max_box_acc"]["0.5"] <= row["max_box_acc"]["0.5"]
    records = [json.loads(line) for line in (tiny_run / "log.jsonl").read_text().splitlines()]
    assert [(r["stage"], r["epoch"]) for r in records] == [
        ("classifier", 1), ("classifier", 2), ("decoder", 1), ("decoder", 2),
    ]  # fmt: skip
    assert set(records[-1]["terms"]) == {"partial_ce", "crf", "size"}
    model = FCAM.from_pretrained(tiny_run)
    assert model.metadata["thresholds"]["fcam"]["max_box_acc"]["0.5"] >= 0
    assert model.classes is not None


def test_same_seed_same_weights_and_numbers(tiny_run, tiny_config, tmp_path):
    again = train(dataclasses.replace(tiny_config, out=str(tmp_path / "again")))
    assert same(weights(tiny_run), weights(again))
    assert (tiny_run / "metrics.json").read_text() == (again / "metrics.json").read_text()
    other = train(dataclasses.replace(tiny_config, out=str(tmp_path / "other"), seed=1))
    assert not same(weights(tiny_run), weights(other))


@pytest.mark.parametrize("stop_after", [1, 3])
@pytest.mark.parametrize("saved", [True, False])
def test_a_run_stopped_after_an_epoch_resumes_to_the_same_weights(
    tiny_run, tiny_config, tmp_path, monkeypatch, stop_after, saved
):
    config = dataclasses.replace(tiny_config, out=str(tmp_path / "run"))
    save, calls = Run.save_state, []

    def interrupted(self, stage, state):
        calls.append(stage)
        if len(calls) == stop_after and not saved:
            raise KeyboardInterrupt
        save(self, stage, state)
        if len(calls) == stop_after:
            raise KeyboardInterrupt

    monkeypatch.setattr(Run, "save_state", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(config)
    monkeypatch.undo()
    resumed = train(dataclasses.replace(config, resume=True))
    assert same(weights(tiny_run), weights(resumed))
    lines = [[(r["stage"], r["epoch"], r["best"]) for r in Run(run).records()] for run in (tiny_run, resumed)]
    assert lines[0] == lines[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_dropout_draws_the_same_after_resuming(tiny_config, tmp_path, monkeypatch, workers):
    drawn = []
    step, save = ClassifierStage.forward, Run.save_state

    def forward(self, images, labels, epoch, generator=None):
        drawn.append((epoch, torch.rand(()).item()))
        return step(self, images, labels, epoch, generator)

    def interrupted(self, stage, state):
        save(self, stage, state)
        raise KeyboardInterrupt

    monkeypatch.setattr(ClassifierStage, "forward", forward)
    config = dataclasses.replace(tiny_config, stages="classifier", workers=workers)
    train(dataclasses.replace(config, out=str(tmp_path / "whole")))
    whole = list(drawn)
    drawn.clear()
    config = dataclasses.replace(config, out=str(tmp_path / "run"))
    monkeypatch.setattr(Run, "save_state", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(config)
    monkeypatch.setattr(Run, "save_state", save)
    train(dataclasses.replace(config, resume=True))
    assert drawn == whole
    assert {epoch for epoch, _ in drawn} == {1, 2}


def test_runs_of_different_precision_in_one_process(tiny_config, tmp_path):
    for precision in ("no", "bf16"):
        train(
            dataclasses.replace(
                tiny_config, stages="classifier", precision=precision, out=str(tmp_path / precision)
            )
        )


@pytest.mark.skipif(torch.cuda.is_available(), reason="fp16 is for GPUs")
def test_fp16_is_refused_where_it_would_be_float32(tiny_config, tmp_path):
    with pytest.raises(FcamError, match="--precision fp16 trains on a GPU only"):
        train(dataclasses.replace(tiny_config, precision="fp16", out=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()


def test_what_two_processes_score_is_what_they_save(tiny_config, tmp_path):
    config = dataclasses.replace(tiny_config, out=str(tmp_path / "run"))
    (tmp_path / "tiny.yaml").write_text(json.dumps(dataclasses.asdict(config)))
    in_two_processes("-m", "fcam", "train", str(tmp_path / "tiny.yaml"))
    two = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert main(["evaluate", config.out, "--out", str(tmp_path / "one.json"), "--workers", "0"]) == 0
    one = json.loads((tmp_path / "one.json").read_text())
    for kind, row in one["maps"].items():
        assert two["maps"][kind]["max_box_acc"] == row["max_box_acc"]
        assert two["maps"][kind]["pxap"] == pytest.approx(row["pxap"], abs=1e-3)


def test_a_killed_process_resumes_to_the_same_weights(tiny_run, tiny_config, tmp_path):
    config = dataclasses.replace(tiny_config, out=str(tmp_path / "run"))
    code = (
        "import sys, yaml; from fcam.config import TrainConfig; from fcam.run import config_from_dict; "
        "from fcam.train import train; train(config_from_dict(TrainConfig, yaml.safe_load(sys.stdin)))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(dataclasses.asdict(config)).encode())
    process.stdin.close()
    log, deadline = tmp_path / "run" / "log.jsonl", time.monotonic() + 120
    while (
        not (log.exists() and log.stat().st_size) and process.poll() is None and time.monotonic() < deadline
    ):
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    resumed = train(dataclasses.replace(config, resume=True))
    assert same(weights(tiny_run), weights(resumed))


def test_seeds_from_other_maps_than_the_cam(tiny_run, tiny_config, tmp_path):
    head = FCAM.from_pretrained(tiny_run).classifier

    def config(name: str):
        return dataclasses.replace(
            tiny_config, out=str(tmp_path / name), stages="decoder", classifier_from=str(tiny_run)
        )

    def cams(images, features, labels):
        return interpolated(head, images, features[-1], labels, tiny_config.method, tiny_config.variant)

    def corner(images, features, labels):
        maps = torch.zeros(len(images), *images.shape[-2:])
        maps[:, :30, :30] = 1
        return maps

    plain = weights(train(config("plain")))
    assert same(plain, weights(train(config("cams"), cams)))
    assert not same(plain, weights(train(config("corner"), corner)))
    with pytest.raises(FcamError, match=r"seed_maps returned shape \(4, 2, 2\)"):
        train(config("wrong"), lambda images, features, labels: torch.zeros(len(images), 2, 2))


def test_a_second_round_learns_from_the_first_rounds_map(tiny_run, tiny_config, tmp_path, monkeypatch):
    two = dataclasses.replace(tiny_config, rounds=2, out=str(tmp_path / "two"))
    run = Run(train(two))
    names = [record["stage"] for record in run.records()]
    assert names == ["classifier"] * 2 + ["decoder-round1"] * 2 + ["decoder"] * 2
    # The first round is what a run of one round is, and the second what learning from that one's map gives.
    first = run.load_state("decoder-round1")
    assert first is not None
    once = FCAM.from_pretrained(tiny_run)
    assert same(first["best_weights"], once.decoder.state_dict())
    alone = dataclasses.replace(
        tiny_config, out=str(tmp_path / "alone"), stages="decoder", classifier_from=str(tiny_run)
    )
    assert same(weights(run.root), weights(train(alone, maps_of(once.decoder))))
    assert not same(weights(run.root), weights(tiny_run))

    save = Run.save_state

    def interrupted(self, stage, state):
        save(self, stage, state)
        if stage == "decoder":
            raise KeyboardInterrupt

    config = dataclasses.replace(two, out=str(tmp_path / "killed"))
    monkeypatch.setattr(Run, "save_state", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(config)
    monkeypatch.undo()
    assert same(weights(run.root), weights(train(dataclasses.replace(config, resume=True))))


def test_one_class_teaches_no_classifier(tiny_config, tmp_path, capsys):
    for split in ("train", "val", "test"):
        (tmp_path / "set" / split / "cat").mkdir(parents=True)
        Image.new("RGB", (40, 40), (len(split), 9, 90)).save(tmp_path / "set" / split / "cat" / "a.png")
    with pytest.raises(FcamError, match="one class, 'cat'.*--classifier-from"):
        train(dataclasses.replace(tiny_config, data=str(tmp_path / "set"), out=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()
    assert main(["data", "check", str(tmp_path / "set")]) == 0
    assert "one class" in capsys.readouterr().out


def test_masks_that_show_no_object_choose_nothing_and_end_nothing(tiny_config, drawn_set, tmp_path, capsys):
    root = tmp_path / "set"
    shutil.copytree(drawn_set, root)
    for lists in (root / "metadata" / "val", root / "metadata" / "test"):
        (lists / "localization.txt").unlink()  # the boxes
    masks = [path for path in (root / "masks").rglob("*.png") if path.is_file()]
    assert masks
    for path in masks:
        Image.new("L", (64, 64)).save(path)
    out = train(dataclasses.replace(tiny_config, data=str(root), out=str(tmp_path / "run")))
    said = capsys.readouterr().err
    assert said.count("no mask of val shows an object, so pxap chooses no epoch") == 2  # once a stage
    assert json.loads((out / "metrics.json").read_text())["maps"]["fcam"]["pxap"] is None
    assert main(["evaluate", str(out), "--refine"]) == 0
    said = capsys.readouterr().err
    assert "no mask of the test split shows an object, so there are no pixel metrics" in said
    assert "neither boxes nor masks" not in said


@pytest.mark.parametrize("split", [True, False])
def test_a_class_without_a_training_photo_is_refused(tiny_config, tmp_path, split):
    for name, count in (("cat", 9), ("dog", 9), ("emu", 1)):
        folder = tmp_path / "set" / ("train" if split and name != "emu" else "test" if split else "") / name
        folder.mkdir(parents=True)
        for i in range(count):  # emu/4.png falls to val
            Image.new("RGB", (40, 40), (i, 9, 90)).save(folder / f"{4 + i}.png")
    config = dataclasses.replace(tiny_config, data=str(tmp_path / "set"), out=str(tmp_path / "run"))
    with pytest.raises(FcamError, match="shows the class 'emu', so"):
        train(config)
    assert not (tmp_path / "run").exists()


def test_a_second_run_in_the_same_folder_is_refused(tiny_run, tiny_config):
    with pytest.raises(FcamError, match="--resume"):
        train(dataclasses.replace(tiny_config, out=str(tiny_run)))
    with pytest.raises(FcamError, match="seed"):
        train(dataclasses.replace(tiny_config, out=str(tiny_run), seed=5, resume=True))


def test_stage_two_alone_starts_from_an_earlier_classifier(tiny_run, tiny_config, tmp_path):
    config = dataclasses.replace(
        tiny_config, out=str(tmp_path / "second"), classifier_from=str(tiny_run), method="layercam"
    )
    before, after = weights(tiny_run), weights(train(config))
    classifier = [name for name in before if name.startswith("classifier.")]
    assert classifier
    assert all(torch.equal(before[name], after[name]) for name in classifier)
    assert not same(before, after)


def test_a_resumed_run_knows_its_classifier_by_the_weights(tiny_run, tiny_config, tmp_path):
    first, run = tmp_path / "first", tmp_path / "run"
    shutil.copytree(tiny_run, first)
    config = dataclasses.replace(tiny_config, out=str(run), stages="decoder", classifier_from=str(first))
    done = weights(train(config))
    first.rename(tmp_path / "moved")
    moved = dataclasses.replace(config, classifier_from=str(tmp_path / "moved"), resume=True)
    assert same(done, weights(train(moved)))
    assert load_config(run).classifier_from == moved.classifier_from
    # Another decoder beside it changes nothing, other weights of its own do, at the same path.
    model = FCAM.from_pretrained(moved.classifier_from)
    with torch.no_grad():
        next(model.decoder.parameters()).add_(1)
    model.save_pretrained(tmp_path / "moved" / "model")
    train(moved)
    with torch.no_grad():
        next(model.classifier.parameters()).add_(1)
    model.save_pretrained(tmp_path / "moved" / "model")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    with pytest.raises(FcamError, match="started on another classifier than .*moved holds now"):
        train(moved)
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    # A run from before the weights were noted is known by the path, as it was then.
    (run / "origin.json").unlink()
    with pytest.raises(FcamError, match="started with classifier_from"):
        train(dataclasses.replace(moved, classifier_from=str(tiny_run)))
    train(moved)
    assert (run / "origin.json").exists()
    (run / "origin.json").write_text("[")
    with pytest.raises(FcamError, match=r"origin\.json is damaged"):
        train(moved)


def test_an_earlier_classifier_is_taken_as_it_is_or_not_at_all(tiny_run, tiny_config, tmp_path, capsys):
    model = FCAM.from_pretrained(tiny_run)
    model.classifier.backbone.set_normalization([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])
    model.classes = ["other", *(model.classes or [])[1:]]
    model.save_pretrained(tmp_path / "model")
    config = dataclasses.replace(tiny_config, stages="decoder", classifier_from=str(tmp_path / "model"))
    trained = FCAM.from_pretrained(train(dataclasses.replace(config, out=str(tmp_path / "run"))))
    assert trained.classifier.config() == model.classifier.config()
    assert "0 is 'other' to the model" in capsys.readouterr().err
    for change, message in (
        ({"backbone": "timm:test_efficientnet"}, "--model.backbone timm:test_resnet"),
        (
            {"output_stride": 8},
            "has output_stride 16, these settings ask for 8; add --model.output-stride 16",
        ),
        ({"head": "gap"}, "--model.head wgap"),
    ):
        other = dataclasses.replace(config, model=dataclasses.replace(config.model, **change))
        with pytest.raises(FcamError, match=message):
            train(dataclasses.replace(other, out=str(tmp_path / "never")))
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("left", ["state", "log.jsonl"])
def test_epochs_without_their_settings_are_not_taken_for_those_of_a_new_run(
    tiny_run, tiny_config, tmp_path, left
):
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run)
    (run / "config.yaml").unlink()
    (run / "log.jsonl").unlink() if left == "state" else shutil.rmtree(run / "state")
    for resume in (False, True):
        with pytest.raises(FcamError, match=r"epochs of a run whose config\.yaml is gone"):
            train(dataclasses.replace(tiny_config, out=str(run), resume=resume))
    assert not (run / "config.yaml").exists()


def test_a_resumed_run_remembers_where_its_data_moved(tiny_run, tiny_config, drawn_set, tmp_path):
    run, moved = tmp_path / "run", tmp_path / "moved"
    shutil.copytree(tiny_run, run)
    shutil.copytree(drawn_set, moved)
    train(dataclasses.replace(tiny_config, out=str(run), data=str(moved), resume=True))
    assert load_config(run).data == str(moved)
    assert same(weights(tiny_run), weights(run))


@pytest.mark.parametrize("finished", [True, False])
def test_thresholds_of_further_looks_are_kept_as_long_as_the_weights(
    tiny_run, tiny_config, tmp_path, finished
):
    run, looks = tmp_path / "run", {"fcam+zoom": {"max_box_acc": {"0.5": 0.37}}}
    shutil.copytree(tiny_run, run)
    remember_thresholds(run / "model", looks)
    if not finished:  # the same folder, but the model in it is another one
        config, state = read(run / "model")
        state = {name: tensor + 1 if name.startswith("decoder") else tensor for name, tensor in state.items()}
        write(run / "model", {key: value for key, value in config.items() if key != "format"}, state)
    train(dataclasses.replace(tiny_config, out=str(run), resume=True))
    kept, _ = read(run / "model")
    assert kept["metadata"]["thresholds"].get("fcam+zoom") == (looks["fcam+zoom"] if finished else None)
    assert "fcam" in kept["metadata"]["thresholds"]


@pytest.mark.parametrize("noted", ["at the start", "in the model", "in the data"])
def test_resuming_on_other_classes_is_refused_and_writes_nothing(
    tiny_run, tiny_config, drawn_set, tmp_path, noted
):
    run, more, renamed = tmp_path / "run", tmp_path / "more", tmp_path / "renamed"
    shutil.copytree(tiny_run, run)
    if noted != "at the start":
        (run / "origin.json").unlink()  # as in a run from before it was written
    if noted == "in the data":
        shutil.rmtree(run / "model")
    draw_set(more, images_per_class=(6, 4, 4), classes=3, size=64)
    shutil.copytree(drawn_set, renamed)
    (list_of_names,) = renamed.rglob("classes.txt")
    list_of_names.write_text(list_of_names.read_text().replace("stripe", "line"))
    names = class_names(3)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    for data, words in (
        (more, f"more has: class 2 was missing, now it is '{names[2]}'; resume with data"),
        (renamed, "renamed has: class 1 was 'stripe', now it is 'line'"),
    ):
        with pytest.raises(FcamError, match=words):
            train(dataclasses.replace(tiny_config, out=str(run), data=str(data), resume=True))
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*")}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": -1}, "--seed is -1; take 0 or more"),
        ({"seed": 2**32}, "--seed is 4294967296"),
        ({"workers": -1}, "--workers is -1"),
        ({"rounds": 0}, "--rounds is 0"),
        ({"rounds": 2, "loss": LossConfig(alpha=0)}, "--rounds 2 hands maps on by their seeds"),
        ({"sharpen": -1}, "--sharpen is -1"),
        ({"sharpen": 3, "loss": LossConfig(alpha=0)}, "--sharpen 3 hands maps on by their seeds"),
        ({"stage2": StageConfig(select="top1")}, "--stage2.select top1 cannot tell"),
        ({"loss": LossConfig(crf=float("nan"))}, "--loss.crf is nan"),
        ({"seeds": SeedConfig(n_minus=5)}, "--seeds.n-minus is 5"),
        ({"stage2": StageConfig(optimizer=OptimizerConfig(lr=-1))}, "--stage2.optimizer.lr is -1"),
        (
            {"stage1": StageConfig(optimizer=OptimizerConfig(step_epochs=0))},
            "--stage1.optimizer.step-epochs is 0",
        ),
        *(
            ({group: kind(**{name: value})}, f"--{group}.{name.replace('_', '-')} is {value}")
            for group, kind, name, value in (
                ("model", ModelConfig, "output_stride", 0),
                ("seeds", SeedConfig, "foreground_pixels", -1),
                ("seeds", SeedConfig, "erosion_iterations", -1),
                ("seeds", SeedConfig, "peak", 1.0),
                ("loss", LossConfig, "entropy", -0.1),
                ("loss", LossConfig, "sigma_rgb", 0.0),
                ("loss", LossConfig, "sigma_xy", -1.0),
                ("loss", LossConfig, "barrier_t", 0.0),
                ("loss", LossConfig, "barrier_growth", 0.0),
                ("loss", LossConfig, "barrier_max", 0.0),
                ("stage1", StageConfig, "batch_size", 0),
                ("stage2", StageConfig, "accumulate", 0),
            )
        ),
        *(
            (
                {"stage1": StageConfig(optimizer=OptimizerConfig(**{name: value}))},
                f"--stage1.optimizer.{option} is {value}",
            )
            for name, option, value in (
                ("lr", "lr", 0.0),
                ("late_ratio", "late-ratio", -1.0),
                ("momentum", "momentum", 1.0),
                ("clip_norm", "clip-norm", -1.0),
                ("min_lr", "min-lr", -1.0),
            )
        ),
        ({"seeds": SeedConfig(erosion=4)}, "--seeds.erosion is 4; take an odd number"),
        ({"seeds": SeedConfig(dilation=-3)}, "--seeds.dilation is -3; take an odd number, 1 or more"),
        ({"model": ModelConfig(decoder_channels=(8, 0))}, "--model.decoder-channels is 0"),
        ({"model": ModelConfig(mean=(0.5, 0.5, 0.5))}, "mean and std go together"),
        ({"model": ModelConfig(mean=(0.5,) * 3, std=(0.2,) * 3)}, "--model.mean belongs to --classifier"),
        ({"crop": 80}, "--crop is 80 and --resize 73"),
        (
            {"stage2": StageConfig(optimizer=OptimizerConfig(lr=1e-9))},
            "--stage2.optimizer.min-lr is 1e-07 and --stage2.optimizer.lr 1e-09",
        ),
        ({"loss": LossConfig(barrier_t=20)}, "--loss.barrier-t is 20 and --loss.barrier-max 10"),
        ({"loss": LossConfig(alpha=0, crf=0, size=0)}, "no term of the loss is on in epoch 1"),
        (
            {"loss": LossConfig(crf=0, size=0, alpha_epochs=(0, 1), entropy_epochs=(0, 5))},
            "no term of the loss is on in epoch 2",
        ),
        (
            {"loss": LossConfig(crf_epochs=(3, -1))},
            "--loss.crf-epochs is 3 -1, which holds no epoch of 1 to 2",
        ),
        ({"loss": LossConfig(size_epochs=(2, 1))}, "--loss.size-epochs is 2 1"),
        ({"seeds": SeedConfig(foreground_pixels=0, n_minus=0)}, "draw no pixel at all"),
        ({"mosaics": 0.1}, "--mosaics 0.1 makes none of a batch of 4; take 0.25 or more"),
    ],
)
def test_settings_that_no_run_can_do_with_are_found_first(tiny_config, change, words):
    with pytest.raises(FcamError, match=words):
        settle(dataclasses.replace(tiny_config, **change))


def test_wrong_settings_write_nothing(tiny_config, tmp_path):
    with pytest.raises(FcamError, match="--crop is 80"):
        train(dataclasses.replace(tiny_config, out=str(tmp_path / "run"), crop=80))
    assert not (tmp_path / "run").exists()


def test_the_largest_seed_trains(tiny_run, tiny_config, tmp_path):
    config = dataclasses.replace(tiny_config, out=str(tmp_path / "run"), seed=2**32 - 1)
    assert not same(weights(tiny_run), weights(train(config)))


def test_a_failing_evaluation_leaves_the_model(tiny_run, tiny_config, drawn_set, tmp_path):
    shutil.copytree(drawn_set, tmp_path / "set")
    config = dataclasses.replace(tiny_config, data=str(tmp_path / "set"), out=str(tmp_path / "run"))
    photo = open_dataset(config.data, "test").path(0)
    photo.write_text("no photo")
    with pytest.raises(FcamError, match=photo.name):
        train(config)
    assert same(weights(tiny_run), weights(tmp_path / "run"))


def test_stage_two_alone_needs_a_trained_classifier(tiny_config, tmp_path):
    with pytest.raises(FcamError, match="--classifier-from"):
        train(dataclasses.replace(tiny_config, out=str(tmp_path / "run"), stages="decoder"))
    assert not (tmp_path / "run").exists()


def test_stage_two_alone_does_not_take_a_random_head_for_a_trained_one(tiny_config, tmp_path, monkeypatch):
    monkeypatch.setattr("fcam.train.IMAGENET_CLASSES", 2)  # as many as the data has
    with pytest.raises(
        FcamError, match="wgap head of timm:test_resnet for 2 classes begins with random.*--classifier-from"
    ):
        train(dataclasses.replace(tiny_config, out=str(tmp_path / "run"), stages="decoder"))
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_not_finite_names_step_term_and_checkpoint(tiny_config, tmp_path, monkeypatch):
    forward = DecoderStage.forward

    def poisoned(self, images, labels, epoch, generator=None):
        terms = forward(self, images, labels, epoch, generator)
        return {**terms, "crf": terms["crf"] * float("nan")} if epoch == 2 else terms

    monkeypatch.setattr(DecoderStage, "forward", poisoned)
    with pytest.raises(
        FcamError, match=r"crf term became nan in step 1 of epoch 2.*decoder\.pt holds epoch 1"
    ):
        train(dataclasses.replace(tiny_config, out=str(tmp_path / "run")))
    with pytest.raises(FcamError, match="is a run that is not finished.* in .*classifier$"):
        FCAM.from_pretrained(tmp_path / "run")
    # Another run starts from the classifier that this one trained, and ends as one that came to its end.
    monkeypatch.undo()
    kept = tmp_path / "run" / "classifier"
    again = dataclasses.replace(tiny_config, stages="decoder", classifier_from=str(kept))
    train(dataclasses.replace(again, out=str(tmp_path / "again")))
    assert train(dataclasses.replace(tiny_config, out=str(tmp_path / "run"), resume=True))
    assert same(weights(tmp_path / "again"), weights(tmp_path / "run"))
    assert not kept.exists()


def test_a_test_split_that_cannot_be_read_is_found_before_training(tiny_config, drawn_set, tmp_path):
    data = shutil.copytree(drawn_set, tmp_path / "data")
    (data / "metadata" / "test" / "localization.txt").write_text("a,b\n")
    with pytest.raises(FcamError, match=r"test/localization\.txt"):
        train(dataclasses.replace(tiny_config, data=str(data), out=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()


def test_accumulation_moves_the_weights_once_per_group_of_steps(tiny_config, tmp_path, monkeypatch):
    calls, step = [], torch.optim.SGD.step
    monkeypatch.setattr(
        torch.optim.SGD, "step", lambda self, *a, **k: (calls.append(1), step(self, *a, **k))[1]
    )
    stage = dataclasses.replace(tiny_config.stage2, epochs=1, batch_size=2, accumulate=2)
    train(dataclasses.replace(tiny_config, out=str(tmp_path / "run"), stage1=stage, stage2=stage))
    assert len(calls) == 2 * 3  # two stages, 12 images in batches of 2, two batches per move


def test_schedule_of_the_reference():
    step = OptimizerConfig(lr=1.0, schedule="step", step_epochs=15, gamma=0.1)
    rates = [learning_rate(1.0, epoch, 50, step) for epoch in (1, 15, 16, 30, 31, 46, 50)]
    assert rates == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.001, 0.001])
    assert learning_rate(1.0, 200, 200, step) == 1e-7
    cosine = dataclasses.replace(step, schedule="cosine")
    assert learning_rate(1.0, 1, 10, cosine) == 1.0
    assert StageConfig().optimizer.momentum == 0.9


@pytest.fixture
def traced(monkeypatch) -> list[torch.nn.Module]:
    """Modules that were compiled. The tracing is what can fail on our code; making machine code of it would take a minute."""
    compiled, found = torch.compile, []
    monkeypatch.setattr(
        torch, "compile", lambda module: (found.append(module), compiled(module, backend="eager"))[1]
    )
    return found


@pytest.mark.parametrize("by", ["refine", "grabcut"])
def test_a_compiled_stage_is_sharpened_too(tiny_config, tmp_path, traced, by):
    one = dataclasses.replace(tiny_config.stage2, epochs=1)
    config = dataclasses.replace(tiny_config, stage1=one, stage2=one, sharpen=1, sharpen_by=by, compile=True)
    assert (train(dataclasses.replace(config, out=str(tmp_path / "run"))) / "metrics.json").exists()
    assert len(traced) == 3


def test_a_compiled_run_ends_with_the_same_model(tiny_run, tiny_config, tmp_path, traced):
    run = train(dataclasses.replace(tiny_config, out=str(tmp_path / "run"), compile=True))
    assert len(traced) == 2
    first, second = weights(tiny_run), weights(run)
    assert first.keys() == second.keys()
    # Rounding, which eight steps of training make larger; another loss or other seeds would move weights by a hundredth.
    assert all(torch.allclose(first[name], second[name], atol=5e-4) for name in first)


def test_tensorboard_shows_every_term_and_score_by_stage_and_does_not_move_the_result(
    tiny_run, tiny_config, tmp_path
):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = train(dataclasses.replace(tiny_config, out=str(tmp_path / "run"), tensorboard=True))
    assert same(weights(tiny_run), weights(out))
    (folder,) = {path.parent for path in out.rglob("events.out.tfevents*")}
    events = EventAccumulator(str(folder)).Reload()
    last = Run(out).records()[-1]
    assert last["stage"] == "decoder"
    for name, value in {**last["terms"], **last["val"]}.items():
        shown = events.Scalars(f"decoder/{name}")
        assert [event.step for event in shown] == [1, 2]
        assert shown[-1].value == pytest.approx(value, rel=1e-5)
    assert events.Scalars("classifier/cross_entropy")


def test_a_scored_epoch_takes_the_place_of_one_that_could_not_be_scored():
    unscored = {"epoch": 1, "value": None, "finer": None}
    assert _is_better({"value": 0.0, "finer": None}, None)
    assert _is_better({"value": 0.0, "finer": None}, unscored)  # resumed after val got its boxes
    assert _is_better(unscored, {"value": 50.0, "finer": None})
    better = [
        _is_better({"value": v, "finer": None}, {"value": 50.0, "finer": None}) for v in (49.0, 50.0, 51.0)
    ]
    assert better == [False, False, True]


def test_of_epochs_that_get_as_many_boxes_right_the_one_that_fits_them_better_stands():
    best = {"epoch": 1, "value": 50.0, "finer": 40.0}
    better = [_is_better({"value": 50.0, "finer": finer}, best) for finer in (39.0, 40.0, 41.0)]
    assert better == [False, False, True]
    assert not _is_better({"value": 49.0, "finer": 99.0}, best)
    assert _is_better({"value": 51.0, "finer": 0.0}, best)
    assert not _is_better({"value": 50.0, "finer": 99.0}, {"epoch": 1, "value": 50.0})  # an earlier version's


def test_the_epoch_of_a_run_is_the_best_of_its_log(tiny_config, tmp_path):
    stages = {
        name: dataclasses.replace(getattr(tiny_config, name), select="max_box_acc", epochs=3)
        for name in ("stage1", "stage2")
    }
    run = Run(train(dataclasses.replace(tiny_config, **stages, out=str(tmp_path / "run"))))
    for stage in ("classifier", "decoder"):
        records = [record for record in run.records() if record["stage"] == stage]
        values = [(r["val"]["max_box_acc"], r["val"]["max_box_acc_v2"], -r["epoch"]) for r in records]
        best = records[-1]["best"]
        assert (best["value"], best["finer"], -best["epoch"]) == max(values)


def test_sharpening_goes_on_with_the_decoders_own_sharper_maps(tiny_run, tiny_config, tmp_path, monkeypatch):
    sharper = dataclasses.replace(tiny_config, sharpen=1, out=str(tmp_path / "sharper"))
    run = Run(train(sharper))
    assert [record["stage"] for record in run.records()] == [
        *["classifier"] * 2,
        *["decoder-round1"] * 2,
        "decoder",
    ]
    first = run.load_state("decoder-round1")
    assert first is not None
    assert same(first["best_weights"], FCAM.from_pretrained(tiny_run).decoder.state_dict())
    assert not same(weights(run.root), weights(tiny_run))
    thresholds = FCAM.from_pretrained(tiny_run).metadata["thresholds"]["fcam"]
    cuts = []
    monkeypatch.setattr(
        "fcam.stages.sharp_maps", lambda maps, cams, threshold, by: cuts.append((threshold, by)) or maps
    )
    train(dataclasses.replace(sharper, sharpen_by="grabcut", out=str(tmp_path / "as val says")))
    monkeypatch.setattr("fcam.train.has_truth_for", lambda metric, root: False)
    train(dataclasses.replace(sharper, out=str(tmp_path / "val says nothing")))
    assert cuts == [(thresholds["max_box_acc"]["0.5"], "grabcut"), (0.5, "refine")]
    monkeypatch.undo()

    save = Run.save_state

    def interrupted(self, stage, state):
        save(self, stage, state)
        if stage == "decoder-round1" and state["epoch"] == 2:
            raise KeyboardInterrupt

    config = dataclasses.replace(sharper, out=str(tmp_path / "killed"))
    monkeypatch.setattr(Run, "save_state", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(config)
    monkeypatch.undo()
    assert same(weights(run.root), weights(train(dataclasses.replace(config, resume=True))))
