"""A configuration file of the tiny run, and a training that only leaves files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import yaml

from fcam.run import Run, config_to_dict


@pytest.fixture(scope="session")
def tiny_file(tiny_config, tmp_path_factory) -> str:
    """`tiny_config` as a file, stage 1 selected by classification."""
    stage1 = dataclasses.replace(tiny_config.stage1, epochs=1, select="top1")
    stage2 = dataclasses.replace(tiny_config.stage2, epochs=1)
    config = dataclasses.replace(tiny_config, stage1=stage1, stage2=stage2)
    path = tmp_path_factory.mktemp("recipes") / "tiny.yaml"
    path.write_text(yaml.safe_dump(config_to_dict(config)))
    return str(path)


def pretend(config) -> Path:
    """Leave what a run leaves; values follow from the settings, val and test disagree about the best n⁻."""
    run = Run(config.out)
    run.open(config)
    fcam = 50 + 10 * config.seeds.n_minus + config.seed
    val = 90 - 10 * config.seeds.n_minus + config.seed
    for stage, value in (("classifier", 80.0), ("decoder", val)):
        if config.stages in ("both", stage):
            run.log({"stage": stage, "epoch": 1, "best": {"epoch": 1, "value": value}})
    maps = {
        kind: {
            "max_box_acc": {"0.3": value + 5, "0.5": value, "0.7": value - 5},
            "max_box_acc_v2": value,
            "pxap": None,
            "top1_loc": value / 2,
            "top5_loc": 30.0,
            "transferred": None,
        }
        for kind, value in (("cam", 40.0 + config.seed), ("fcam", fcam))
    }
    report = {"split": "test", "maps": maps, "classification": {"top1": 70.0, "top5": 90.0}}
    run.metrics.write_text(json.dumps(report))
    return run.root
