"""Where `fcam evaluate` leaves its numbers, and that they are not lost."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from fcam import evaluate_command, files
from fcam.cli import main
from fcam.errors import FcamError


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_run, tmp_path / "run")


def test_the_model_inside_a_run_is_evaluated_as_the_run(
    run: Path, drawn_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(drawn_set, tmp_path / "other")
    own = (run / "metrics.json").read_bytes()
    monkeypatch.chdir(run)
    assert main(["evaluate", "model", "--data", "../other", "--workers", "0"]) == 0
    assert (run / "metrics.json").read_bytes() == own
    assert (run / "metrics-test-other.json").is_file()
    assert main(["evaluate", "model", "--workers", "0"]) == 0  # on the data of the run
    assert json.loads((run / "metrics.json").read_text()) == json.loads(own)


def test_numbers_of_others_do_not_take_the_place_of_a_runs_own(
    run: Path,
    drawn_set: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.move(run / "model", tmp_path / "model")
    own = (run / "metrics.json").read_bytes()
    monkeypatch.chdir(run)
    data = ["--data", str(drawn_set), "--workers", "0"]
    for what in (["--maps", "heat"], ["../model"]):
        assert main(["evaluate", *what, *data]) == 2
        assert re.search(f"current folder is a run.s, .* {what[-1]} go", capsys.readouterr().err)
    assert (run / "metrics.json").read_bytes() == own
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", "model", *data]) == 0
    assert (tmp_path / "metrics.json").is_file()


def test_out_may_be_a_folder(run: Path, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    assert (
        main(["evaluate", str(run), "--split", "val", "--workers", "0", "--out", str(tmp_path / "results")])
        == 0
    )
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["metrics-val.json"]


def test_what_cannot_be_written_is_said_before_the_work(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluate_command, "evaluate", None)  # nobody gets there
    (tmp_path / "file").touch()
    assert main(["evaluate", str(run), "--out", str(tmp_path / "file" / "a.json")]) == 2
    assert "a file stands where a folder belongs" in capsys.readouterr().err


def test_numbers_are_shown_though_they_cannot_be_written(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> None:
        raise FcamError("no space")

    monkeypatch.setattr(evaluate_command.files, "write_json", full)
    assert main(["evaluate", str(run), "--workers", "0"]) == 2
    shown = capsys.readouterr()
    assert "no space" in shown.err
    assert "F-CAM" in shown.out + shown.err


def test_trying_a_file_leaves_it_alone(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("old")
    files.check_writable(tmp_path / "a.json")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "old"
    with pytest.raises(FcamError, match="it is a folder; name a file in it"):
        files.check_writable(tmp_path)


def test_an_untrained_decoder_is_trained_by_what_the_sentence_says(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card = run / "model" / "config.json"
    config = json.loads(card.read_text())
    config["metadata"]["decoder_trained"] = False
    card.write_text(json.dumps(config))
    assert main(["evaluate", str(run), "--flip", "--workers", "0"]) == 2
    command = capsys.readouterr().err.partition("fcam train ")[2].split()
    command[-1] = str(tmp_path / "another")
    assert main(["train", *command, "--stage2.epochs", "1", "--workers", "0"]) == 0
    assert main(["evaluate", str(tmp_path / "another"), "--flip", "--workers", "0"]) == 0
