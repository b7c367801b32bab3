"""A full disk, a folder that may not be written to, Ctrl-C: one sentence, and no partial file."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image

from fcam import checkpoint, files
from fcam.cli import main
from fcam.data import find_images, open_dataset
from fcam.errors import FcamError
from fcam.map_files import write_maps
from fcam.model import FCAM
from fcam.predict.folder import predict_files
from fcam.predict.localizer import Localizer
from fcam.predict.output import Outputs, load_predictions
from fcam.run import Run
from fcam.train import train
from planted import Planted

FULL = r"cannot write .*{}.*(File too large|No space left|disk has room)"


@contextlib.contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """The system refuses to write further, as on a full disk, whoever writes: Python, Pillow, numpy or torch."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def photos(folder: Path, count: int = 4) -> list[Path]:
    folder.mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 256, (200, 300, 3), dtype=np.uint8)
    for i in range(count):
        Image.fromarray(noise).save(folder / f"{i}.png")
    return sorted(folder.iterdir())


def localizer() -> Localizer:
    return Localizer(cast(FCAM, Planted(classes=["red", "green", "blue"])), size=64, batch_size=2)


@pytest.mark.parametrize("before", [None, b"the file before"])
def test_a_full_disk_leaves_the_file_before_or_none(tmp_path: Path, before: bytes | None) -> None:
    path = tmp_path / "a.txt"
    if before:
        path.write_bytes(before)
    with files_no_larger_than(1000), pytest.raises(FcamError, match=FULL.format("a.txt")):
        files.write_text(path, "x" * 5000)
    assert names(tmp_path) == (["a.txt"] if before else [])
    assert not before or path.read_bytes() == before


@pytest.mark.parametrize("lacking", [1, 100, 5000])
@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.npy", "a.pt"])
def test_a_disk_that_takes_all_but_the_end_is_noticed(name: str, lacking: int, tmp_path: Path) -> None:
    """Pillow's JPEG writer, and numpy's within the last 4 kB, do not notice by themselves."""
    noise = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    run = Run(tmp_path)
    write = {
        "a.jpg": lambda: files.write_image(tmp_path / name, Image.fromarray(noise), quality=92),
        "a.png": lambda: files.write_image(tmp_path / name, Image.fromarray(noise)),
        "a.npy": lambda: files.write_array(tmp_path / name, noise),
        "a.pt": lambda: run.save_state("a", {"weights": torch.from_numpy(noise)}),
    }[name]
    write()
    path = next(tmp_path.rglob(name))
    whole = path.read_bytes()
    path.unlink()
    with files_no_larger_than(len(whole) - lacking), pytest.raises(FcamError, match=FULL.format(name)):
        write()
    assert names(tmp_path) == []
    write()
    assert path.stat().st_size == len(whole)


def test_no_space_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(FcamError, match=r"a\.json: No space left on device; check that the folder"):
        files.write_json(tmp_path / "a.json", {})
    assert names(tmp_path) == []


def test_a_full_disk_while_predicting(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for outputs in (Outputs(), Outputs(overlays=False, masks=False, heatmaps=0, maps=True)):
        paths = photos(tmp_path / str(outputs.maps))
        localizer()(paths[0])  # numba compiles, and its cache must not be what fills the disk
        with files_no_larger_than(8000), pytest.raises(FcamError, match=FULL.format("")):
            predict_files(localizer(), paths, out, outputs)
        assert not [name for name in names(out) if Path(name).name.startswith(".")]
        for row in load_predictions(out)["predictions"]:
            assert all((out / file).is_file() for file in row["files"].values())


def test_a_full_disk_while_training(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save_state("decoder", {"epoch": 1})
    before = run.state_path("decoder").read_bytes()
    with files_no_larger_than(50_000):
        with pytest.raises(FcamError, match=FULL.format(r"decoder\.pt")):
            run.save_state("decoder", {"epoch": 2, "weights": torch.zeros(100_000)})
        with pytest.raises(FcamError, match=FULL.format(r"model\.safetensors")):
            checkpoint.write(tmp_path / "model", {}, {"weights": torch.zeros(100_000)})
        with pytest.raises(FcamError, match=FULL.format(r"a\.npy")):
            write_maps(tmp_path / "maps", {"cam": torch.zeros(1, 300, 300)}, ["a"])
        with pytest.raises(FcamError, match=FULL.format(r"log\.jsonl")):
            run.log({"stage": "decoder", "epoch": 1, "text": "x" * 60_000})
    assert run.state_path("decoder").read_bytes() == before
    assert names(tmp_path) == ["log.jsonl", "state/decoder.pt"]
    run.trim_log("decoder", 1)
    assert run.records() == []


def test_ctrl_c_while_a_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path)
    run.save_state("decoder", {"epoch": 1})
    before = run.state_path("decoder").read_bytes()

    def half(state: object, target: Any) -> None:
        (target.write if hasattr(target, "write") else Path(target).write_bytes)(b"half a fi")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(KeyboardInterrupt):
        run.save_state("decoder", {"epoch": 2})
    assert run.state_path("decoder").read_bytes() == before
    assert names(tmp_path) == ["state/decoder.pt"]


def test_ctrl_c_in_the_middle_of_training_leaves_whole_files(
    tiny_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    real = torch.optim.SGD.step

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        steps.append(1)
        if len(steps) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.SGD, "step", step)
    with pytest.raises(KeyboardInterrupt):
        train(dataclasses.replace(tiny_config, out=str(tmp_path / "run")))
    assert names(tmp_path / "run") == ["config.yaml", "origin.json"]


def test_a_second_ctrl_c_while_predicting_leaves_no_partial_file(tmp_path: Path) -> None:
    def interrupt(done: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    paths = photos(tmp_path / "in", 12)
    with pytest.raises(KeyboardInterrupt):
        predict_files(localizer(), paths, tmp_path / "out", on_photo=interrupt)
    assert signal.getsignal(signal.SIGINT) is before
    written = names(tmp_path / "out")
    assert not [name for name in written if Path(name).name.startswith(".")]
    whole = load_predictions(tmp_path / "out")
    assert whole["interrupted"] is True
    for row in whole["predictions"]:
        for file in row["files"].values():
            Image.open(tmp_path / "out" / file).load()


def test_what_a_kill_left_is_swept_on_resuming(tiny_config: Any, tmp_path: Path) -> None:
    config = dataclasses.replace(tiny_config, out=str(tmp_path))
    Run(tmp_path).open(config)
    for name in ("state/.0123456789ab.pt", "model/.ba9876543210.safetensors", "state/.mine"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"half a fi")
    Run(tmp_path).open(dataclasses.replace(config, resume=True))
    assert names(tmp_path) == ["config.yaml", "state/.mine"]


def refuse_to_list(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A folder without permission, also for root, whom the system lets read everything."""
    real = os.scandir

    def scandir(path: Any = ".") -> Any:
        if Path(path) == folder:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)


def test_a_class_folder_without_permission_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        photos(tmp_path / "train" / name, 1)
    refuse_to_list(monkeypatch, tmp_path / "train" / "b")
    with pytest.raises(FcamError, match=r"cannot read .*train/b: permission denied"):
        open_dataset(tmp_path, "train")
    found, problems = find_images(tmp_path)
    assert [path.name for path in found] == ["0.png"]
    assert [problem.reason for problem in problems] == ["permission denied"]


def test_an_empty_folder_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(tmp_path), "--model", "nowhere", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"fcam: {tmp_path}: the folder holds no image file\n"
    assert main(["data", "check", str(tmp_path)]) == 2
    assert "is no data set" in capsys.readouterr().err
    assert names(tmp_path) == []


def test_paths_that_the_system_refuses_are_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    long = "a" * 5000
    assert find_images(long)[1][0].reason == "file name too long"
    for arguments in (["data", "check", long], ["predict", long, "--model", "m"], ["evaluate", long]):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith("fcam: ")
        assert error.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_by_permission(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out").chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(FcamError, match="Permission denied"):
        predict_files(localizer(), photos(tmp_path / "in"), tmp_path / "out")
    assert names(tmp_path / "out") == []


def test_a_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    files_in = photos(tmp_path / "in")
    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(
        FcamError, match=r"cannot write .*: Permission denied; check that the folder is writable"
    ):
        predict_files(localizer(), files_in, tmp_path / "out")
    assert names(tmp_path / "out") == []


def test_extreme_photos_are_localized(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 240).reshape(12, 20).astype(np.uint16)
    Image.fromarray(ramp).save(tmp_path / "deep.png")
    Image.new("RGB", (1, 1), (255, 20, 20)).save(tmp_path / "one.png")
    Image.new("RGB", (1, 400)).save(tmp_path / "line.png")
    found = sorted(tmp_path.glob("*.png"))
    result = predict_files(localizer(), found, tmp_path / "out", Outputs(maps=True))
    assert result.failed == []
    sizes = {row["file"]: (row["width"], row["height"]) for row in result.rows}
    assert sizes == {"deep.png": (20, 12), "line.png": (1, 400), "one.png": (1, 1)}
