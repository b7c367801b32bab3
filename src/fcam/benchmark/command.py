"""`fcam benchmark`: which measurements, on which device, and where the numbers go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from fcam import files
from fcam.backbones import lite0
from fcam.benchmark.crf import measure_crf
from fcam.benchmark.report import as_markdown, show
from fcam.benchmark.runtime import measure_runtime
from fcam.benchmark.timing import pick_device, warm_up_calls
from fcam.benchmark.train_step import measure_step
from fcam.config import Precision
from fcam.environment import environment
from fcam.errors import FcamError
from fcam.memory import keep_freed_memory
from fcam.progress import say

SCORE_CHANNELS = 64
ALIASES = {"lite0": lite0.NAME}


@dataclass(frozen=True)
class BenchmarkConfig:
    """Time maps, one training step, or the CRF filter on this machine. Weights are random; no data and no network is needed.

    Without --train-step or --crf: what a map of every method costs, its forward included.
    """

    train_step: bool = False
    """Time a stage-2 step as a whole and in parts."""
    crf: bool = False
    """Time value and gradient of the CRF loss, and check the filter against the exact sum."""
    backbones: tuple[str, ...] = ("resnet50", "vgg16", "inceptionv3")
    """resnet50, vgg16, inceptionv3, lite0, or timm:NAME."""
    batch_size: int | None = None
    """Images at once; default: 1 for maps, 8 for a step (--crf has its own)."""
    size: int = 224
    """Side of the images."""
    precision: Precision = "auto"
    """no is float32; auto is bf16 where the processor multiplies it natively."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    repeats: int = 30
    """Timed calls per median."""
    scores: bool = False
    """Time the Score-CAM family too, on 64 channels, extrapolated to all."""
    photos: Path | None = None
    """With --train-step or --crf: folder of photos to use instead of drawn pictures."""
    compile: bool = False
    """With --train-step: torch.compile the whole step."""
    out: Path | None = None
    """Folder for benchmark.json and benchmark.md; without it, only the terminal."""
    quick: bool = False
    """Small images and three repeats: shows that all works, not how fast."""


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    size: int
    repeats: int
    warm_up: int
    score_channels: int = SCORE_CHANNELS
    crf_batches: tuple[int, ...] = (1, 8, 32)
    crf_sides: tuple[int, ...] = (112, 160, 224, 320, 448)
    growth_batch: int = 8
    error_images: int = 2


def run_benchmark(config: BenchmarkConfig) -> dict[str, Any]:
    """Do what `fcam benchmark` was asked for, print it and write it; returns the JSON value."""
    _check(config)
    device = pick_device(config.device)
    effort = Effort(config.size, config.repeats, warm_up_calls(device))
    if config.quick:
        effort = Effort(min(config.size, 64), 3, 1, 4, (1, 2), (32, 64), 2, 1)
    only_crf = config.crf and not config.train_step  # which is always computed in float32
    result: dict[str, Any] = {"environment": environment(device, "no" if only_crf else config.precision)}
    if config.train_step:
        if device.type == "cpu":
            keep_freed_memory()  # as `fcam train` does
        result["train_step"] = [_step(config, name, device, effort) for name in config.backbones]
    if config.crf:
        say("CRF loss ...")
        result["crf"] = measure_crf(
            device,
            batches=effort.crf_batches,
            size=effort.size,
            sides=effort.crf_sides,
            growth_batch=effort.growth_batch,
            repeats=effort.repeats,
            warm_up=effort.warm_up,
            error_images=effort.error_images,
            photos=config.photos,
        )
    if not (config.train_step or config.crf):
        result["runtime"] = [_runtime(config, name, device, effort) for name in config.backbones]
    show(result)
    if config.out is not None:
        files.write_json(config.out / "benchmark.json", result)
        files.write_text(config.out / "benchmark.md", as_markdown(result))
        say(f"numbers in {config.out / 'benchmark.json'}, tables in {config.out / 'benchmark.md'}")
    return result


def _check(config: BenchmarkConfig) -> None:
    for name, value, least in (
        ("repeats", config.repeats, 1),
        ("size", config.size, 32),
        ("batch-size", config.batch_size, 1),
    ):
        if value is not None and value < least:
            raise FcamError(f"--{name} is {value}; take {least} or more")
    if not config.backbones:
        raise FcamError("--backbones names none; for instance: fcam benchmark --backbones resnet50")


def _runtime(config: BenchmarkConfig, backbone: str, device: torch.device, effort: Effort) -> dict[str, Any]:
    say(f"maps, {backbone} ...")
    return measure_runtime(
        ALIASES.get(backbone, backbone),
        device,
        precision=config.precision,
        size=effort.size,
        batch_size=config.batch_size or 1,
        repeats=effort.repeats,
        warm_up=effort.warm_up,
        score_channels=effort.score_channels if config.scores else 0,
    )


def _step(config: BenchmarkConfig, backbone: str, device: torch.device, effort: Effort) -> dict[str, Any]:
    say(f"stage-2 step, {backbone} ...")
    return measure_step(
        ALIASES.get(backbone, backbone),
        device,
        precision=config.precision,
        size=effort.size,
        batch_size=config.batch_size or (2 if config.quick else 8),
        repeats=effort.repeats,
        warm_up=effort.warm_up,
        compile=config.compile,
        photos=config.photos,
    )
