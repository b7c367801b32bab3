"""Fixtures that several test files need."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of golden values and photo sets that lies beside the checkout; skip only where it is absent outside CI."""
    folder = Path(__file__).resolve().parents[1].parent / "shared"
    if not folder.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"CI is set but the folder of golden values is missing: {folder}")
        pytest.skip("the folder of golden values is not beside this checkout")
    return folder


@pytest.fixture(scope="session")
def drawn_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drawn data set that trains in seconds: two classes, 64 pixels, boxes and masks on val and test."""
    from fcam.data.synthetic import draw_set

    return draw_set(tmp_path_factory.mktemp("drawn"), images_per_class=(6, 4, 4), classes=2, size=64)


@pytest.fixture(scope="session")
def tiny_config(drawn_set: Path):
    """A run of both stages on `drawn_set` with a network of a few thousand weights; `out` is left to the test."""
    import dataclasses

    from fcam.config import ModelConfig, OptimizerConfig, StageConfig, TrainConfig
    from fcam.recipes import at_size

    stage = StageConfig(epochs=2, batch_size=4, select="pxap", optimizer=OptimizerConfig(lr=0.01))
    config = TrainConfig(
        data=str(drawn_set),
        model=ModelConfig(
            backbone="timm:test_resnet", pretrained=False, output_stride=16, decoder_channels=(8, 8, 8, 8, 8)
        ),
        stage1=stage,
        stage2=dataclasses.replace(stage, average=0.9),  # one stage of each kind
        precision="no",
        workers=0,
    )
    return at_size(config, 64)


@pytest.fixture(scope="session")
def tiny_run(tiny_config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of `tiny_config`."""
    import dataclasses

    from fcam.train import train

    return train(dataclasses.replace(tiny_config, out=str(tmp_path_factory.mktemp("runs") / "tiny")))
