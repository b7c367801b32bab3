"""An epoch of a stage: what a batch is, and how far it moves the weights."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import get_worker_info

from fcam.config import TrainConfig
from fcam.data import EvalTransform, LocalizationDataset, open_dataset
from fcam.errors import FcamError
from fcam.evaluate import evaluate_split
from fcam.model import FCAM
from fcam.run import Run
from fcam.scores import Scorecard
from fcam.split_maps import MapOptions
from fcam.train import train


def test_a_last_batch_of_one_photo_joins_the_batch_before(tiny_config: TrainConfig, tmp_path) -> None:
    # The last map is one pixel of 32, and batch normalisation has no variance of a single one.
    model = dataclasses.replace(tiny_config.model, output_stride=32)
    stage = dataclasses.replace(tiny_config.stage1, epochs=1, batch_size=11)  # of 12 photos
    config = dataclasses.replace(
        tiny_config, model=model, stage1=stage, stages="classifier", resize=36, crop=32, out=str(tmp_path)
    )
    assert [record["epoch"] for record in Run(train(config)).records()] == [1]


def test_one_photo_at_a_time_is_refused_where_one_pixel_is_normalised(
    tiny_config: TrainConfig, tmp_path
) -> None:
    model = dataclasses.replace(tiny_config.model, output_stride=32)
    stage = dataclasses.replace(tiny_config.stage1, epochs=1, batch_size=1)
    config = dataclasses.replace(
        tiny_config, model=model, stage1=stage, resize=36, crop=32, out=str(tmp_path)
    )
    with pytest.raises(FcamError, match=r"one image at a time; give --stage1\.batch-size 2 or more"):
        train(config)


def test_a_shorter_last_group_moves_the_weights_by_its_mean(tiny_config: TrainConfig, tmp_path) -> None:
    def head(batch_size: int, accumulate: int) -> list[torch.Tensor]:
        optimizer = dataclasses.replace(tiny_config.stage1.optimizer, momentum=0, weight_decay=0)
        stage = dataclasses.replace(
            tiny_config.stage1, epochs=1, batch_size=batch_size, accumulate=accumulate, optimizer=optimizer
        )
        # On a frozen backbone a photo's features do not depend on its batch.
        config = dataclasses.replace(tiny_config, stages="classifier", head_only=True, stage1=stage)
        run = train(dataclasses.replace(config, out=str(tmp_path / f"{batch_size}x{accumulate}")))
        return list(FCAM.from_pretrained(run).classifier.head.parameters())

    # 12 photos: groups of 8 and of 4, whichever batches these are made of; so too where one group holds all.
    for batches, whole in ((head(4, 2), head(8, 1)), (head(4, 5), head(12, 1))):
        for ours, theirs in zip(batches, whole, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


DIED = r"loads images died \(DataLoader worker \(pid.*\), most often .*; take fewer --workers .* by --resume"


def kill_workers(monkeypatch: pytest.MonkeyPatch, split: str) -> None:
    """As the system does when memory runs out, at the fourth photo of a split."""
    real = LocalizationDataset.__getitem__

    def item(self: LocalizationDataset, index: int) -> dict[str, Any]:
        if get_worker_info() is not None and self.split.name == split and index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, index)

    monkeypatch.setattr(LocalizationDataset, "__getitem__", item)


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_killed_process_that_loads_images_is_a_sentence(
    split: str, tiny_config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_workers(monkeypatch, split)
    with pytest.raises(FcamError, match=DIED):
        train(dataclasses.replace(tiny_config, workers=1, out=str(tmp_path)))


def test_a_death_that_torch_tells_between_batches_is_a_sentence(
    tiny_run: Path, drawn_set: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch raises out of a signal's handler, and so wherever the main thread is."""
    val = open_dataset(drawn_set, "val", EvalTransform(64), localization=True)
    sentence = "DataLoader worker (pid 7) is killed by signal: Killed. "

    def update(*_: Any) -> None:
        raise RuntimeError(sentence)

    monkeypatch.setattr(Scorecard, "update", update)
    model = FCAM.from_pretrained(tiny_run / "model")
    with pytest.raises(FcamError, match=DIED) as caught:
        evaluate_split(model, val, options=MapOptions(workers=0))
    assert "(DataLoader worker (pid 7) is killed by signal: Killed), most often" in str(caught.value)
    sentence = "mat1 and mat2 shapes cannot be multiplied"
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        evaluate_split(model, val, options=MapOptions(workers=0))


def test_a_broken_photo_is_named_by_the_process_that_loads_it(
    tiny_config: TrainConfig, drawn_set: Path, tmp_path: Path
) -> None:
    shutil.copytree(drawn_set, tmp_path / "set")
    (tmp_path / "set/images/train/00/0001.jpg").write_bytes(b"")
    config = dataclasses.replace(
        tiny_config, data=str(tmp_path / "set"), workers=1, out=str(tmp_path / "run")
    )
    with pytest.raises(FcamError, match=r"^cannot read image \S+0001\.jpg: the file is empty$"):
        train(config)
