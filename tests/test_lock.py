"""One process at a time in a folder that is written to."""

from __future__ import annotations

import dataclasses
import fcntl
import os
from pathlib import Path

import pytest

from fcam.cli import main
from fcam.config import TrainConfig
from fcam.errors import FcamError
from fcam.lock import LOCK, alone
from fcam.train import train


def test_of_two_in_one_folder_the_second_is_turned_away(tmp_path: Path) -> None:
    with alone(tmp_path / "new", "prediction"):
        with (
            pytest.raises(FcamError, match=r"another prediction is at work in .*new; wait for it, or choose"),
            alone(tmp_path / "new", "prediction"),
        ):
            pass
        with alone(tmp_path / "other", "prediction"):
            pass
    with alone(tmp_path / "new", "prediction"):
        pass
    assert os.listdir(tmp_path / "new") == []


def test_a_lock_that_a_killed_process_left_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    with pytest.raises(KeyError), alone(tmp_path, "training"):
        raise KeyError
    assert not (tmp_path / LOCK).exists()


def test_a_lock_that_was_removed_in_between_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, taken = fcntl.flock, []

    def late(file: object, how: int) -> None:
        lock(file, how)  # type: ignore[arg-type]
        if not taken:
            (tmp_path / LOCK).unlink()  # as its last holder does, after this one has opened it
        taken.append(file)

    monkeypatch.setattr(fcntl, "flock", late)
    with alone(tmp_path, "training"):
        assert len(taken) == 2
        monkeypatch.undo()
        with pytest.raises(FcamError, match="at work"), alone(tmp_path, "training"):
            pass


def test_where_a_file_stands_the_folder_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(FcamError, match="cannot make the folder .*file"),
        alone(tmp_path / "file", "training"),
    ):
        pass


def test_training_and_prediction_hold_it(
    tiny_config: TrainConfig,
    tiny_run: Path,
    drawn_set: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    with alone(out, "training"), pytest.raises(FcamError, match="another training is at work in .*out"):
        train(dataclasses.replace(tiny_config, out=str(out)))
    assert os.listdir(out) == []
    with alone(out, "prediction"):
        assert (
            main(
                ["predict", str(next(drawn_set.rglob("*.png"))), "--model", str(tiny_run), "--out", str(out)]
            )
            == 2
        )
    assert "another prediction is at work" in capsys.readouterr().err
