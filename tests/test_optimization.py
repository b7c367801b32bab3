"""An epoch of a stage: what a batch is, and how far it moves the weights."""

from __future__ import annotations

import dataclasses

from fcam.config import TrainConfig
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
