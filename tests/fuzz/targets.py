"""What is fuzzed: for each reader a way to make one damaged input, and the call that reads it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from data_targets import coco, wsol
from image_targets import image, no_image
from judge import Violation
from map_targets import heat_map
from model_targets import model, weights
from run_targets import config, journal, log, state

Case = Callable[[Path, Random], str]
"""Makes one input below an empty folder, reads it, and returns "good" or "refused"."""

TARGETS: dict[str, tuple[Case, float]] = {
    "image": (image, 0.34),
    "no image": (no_image, 0.06),
    "wsol lists": (wsol, 0.15),
    "coco json": (coco, 0.10),
    "config.yaml": (config, 0.07),
    "state": (state, 0.06),
    "log.jsonl": (log, 0.03),
    "predictions": (journal, 0.04),
    "model folder": (model, 0.04),
    "convert": (weights, 0.05),
    "heat map": (heat_map, 0.06),
}
"""Each target's case, and its share of the inputs."""


def run_case(case: Case, parent: Path, rng: Random) -> str:
    """Run one case in an empty folder below `parent`, which is removed when the case ends well."""
    folder = parent / "case"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    outcome = case(folder, rng)
    left = [p.name for p in folder.rglob(".*")]
    if left:
        raise Violation(f"left {left}")
    return outcome
