"""Real trainings: stage 1 apart changes nothing, a killed sweep ends with the same table, processes side by side too."""

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
import yaml
from safetensors.torch import load_file

from fcam.cli import main
from fcam.model import FCAM
from fcam.run import config_to_dict, load_config
from fcam.sweep import worker
from fcam.sweep.execute import is_finished, visible_gpus
from fcam.train import train

FILES = ("sweep.json", "sweep.csv", "sweep.md", "sweep.tex")


def tables(out):
    return {name: (out / name).read_text() for name in FILES}


def arguments(tiny_file, drawn_set, out, *more):
    vary = ["--vary", "seeds.n-minus=0.2,0.4"]
    return ["sweep", tiny_file, "--data", str(drawn_set), "--out", str(out), *vary, *more]


@pytest.fixture(scope="module")
def whole(tiny_file, drawn_set, tmp_path_factory):
    """A sweep that ran through."""
    out = tmp_path_factory.mktemp("sweeps") / "whole"
    assert main(arguments(tiny_file, drawn_set, out, "--jobs", "1")) == 0
    return out


def test_stage_one_apart_gives_the_run_that_trains_both(whole, tiny_file, drawn_set, tmp_path):
    assert len(list((whole / "classifiers").iterdir())) == 1
    for run in (whole / "runs").iterdir():
        config = load_config(run)
        both = dataclasses.replace(config, stages="both", classifier_from="", out=str(tmp_path / run.name))
        direct = train(both)
        assert (run / "metrics.json").read_text() == (direct / "metrics.json").read_text()
        mine, other = (load_file(folder / "model" / "model.safetensors") for folder in (run, direct))
        assert mine.keys() == other.keys()
        assert all(torch.equal(mine[name], other[name]) for name in mine)


def test_a_killed_sweep_ends_with_the_same_table(whole, tiny_file, drawn_set, tmp_path):
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "fcam", *arguments(tiny_file, drawn_set, out, "--jobs", "1")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(out.glob("runs/*/log.jsonl")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert len(list(out.glob("runs/*/metrics.json"))) < 2
    assert main(arguments(tiny_file, drawn_set, out, "--jobs", "1")) == 0
    assert tables(out) == tables(whole)
    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/model/*")}
    assert main(arguments(tiny_file, drawn_set, out, "--jobs", "1")) == 0
    assert before == {path: path.stat().st_mtime_ns for path in out.glob("runs/*/model/*")}


def test_a_sweep_knows_the_classifier_of_a_run_by_its_weights(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "moved")
    (run, _), (first,) = (list((tmp_path / "moved" / name).iterdir()) for name in ("runs", "classifiers"))
    config = dataclasses.replace(load_config(run), out=str(run), classifier_from=str(first))
    assert is_finished(config)
    model = FCAM.from_pretrained(first)
    with torch.no_grad():
        next(model.classifier.parameters()).add_(1)
    model.save_pretrained(first / "model")
    assert not is_finished(config)
    elsewhere = first.rename(tmp_path / "other name")
    assert is_finished(config)  # with no weights to ask, by the name, as one without classifiers was before
    shutil.copytree(whole / "classifiers" / first.name, elsewhere, dirs_exist_ok=True)
    assert is_finished(dataclasses.replace(config, classifier_from=str(elsewhere)))
    (run / "origin.json").unlink()
    assert is_finished(config)
    assert not is_finished(dataclasses.replace(config, classifier_from=str(elsewhere)))


def test_fewer_than_no_jobs_are_refused(tiny_file, drawn_set, tmp_path, capsys):
    assert main(arguments(tiny_file, drawn_set, tmp_path / "out", "--jobs", "-1")) == 2
    assert "jobs is -1; take 1 or more" in capsys.readouterr().err


def test_side_by_side_gives_the_same_table_and_ctrl_c_leaves_no_process(tiny_file, drawn_set, tmp_path):
    out = tmp_path / "parallel"
    quick = ("--set", "loss.crf=0", "--jobs")  # a new process would load the filter's kernels first
    command = [sys.executable, "-m", "fcam", *arguments(tiny_file, drawn_set, out, *quick, "2")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(out.glob("logs/*/output.txt")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    assert not alive(out)
    assert main(arguments(tiny_file, drawn_set, out, *quick, "2")) == 0
    assert main(arguments(tiny_file, drawn_set, tmp_path / "whole", *quick, "1")) == 0
    assert tables(out) == tables(tmp_path / "whole")


def alive(out) -> list[str]:
    """Command lines of processes at work in `out`."""
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in found.splitlines() if str(out) in line and "fcam.sweep.worker" in line]


def test_the_exit_code_tells_of_a_failed_run(tiny_file, drawn_set, tmp_path, capsys):
    out = tmp_path / "sweep"
    broken = ("--set", "model.backbone=timm:no_such_net")
    code = main(arguments(tiny_file, drawn_set, out, *broken))
    assert code == 1
    text = (out / "sweep.md").read_text()
    assert "no_such_net" in text
    assert "not started" in text


def test_a_process_leaves_its_reason(tiny_config, tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "_follow_parent", lambda: None)
    config = dataclasses.replace(tiny_config, data=str(tmp_path / "nowhere"), out=str(tmp_path / "run"))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config_to_dict(config)))
    assert worker.main(tmp_path) == 1
    assert "nowhere" in json.loads((tmp_path / "failure.json").read_text())["message"]


def test_a_yaml_file_describes_a_sweep(tiny_file, drawn_set, tmp_path, capsys):
    path = tmp_path / "sweep.yaml"
    path.write_text(
        f"recipes: [{tiny_file}]\ndata: {drawn_set}\nout: {tmp_path / 'sweep'}\npreset: alpha\n"
        "vary: {seed: [0, 1]}\nvariants:\n  no CRF: {loss.crf: 0}\nset: {stage2.epochs: 1}\n"
    )
    assert main(["sweep", str(path), "--plan"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("/")[0] for line in lines] == ["classifiers"] * 2 + ["runs"] * 6
    assert not (tmp_path / "sweep").exists()
    path.write_text("recipes: [a]\nvery: {}\n")
    assert main(["sweep", str(path)]) == 2
    assert "unknown field 'very'" in capsys.readouterr().err


def test_each_process_sees_one_of_the_gpus_that_this_one_may_use(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert visible_gpus() == ["4", "6"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert visible_gpus() == ["0", "1"]
