"""An epoch of a stage: what a batch is, and how far it moves the weights."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fcam.config import TrainConfig
from fcam.errors import FcamError
from fcam.model import FCAM
from fcam.run import Run
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
