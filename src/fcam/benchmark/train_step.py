"""One stage-2 training step: as a whole, and part by part."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fcam.benchmark import published
from fcam.benchmark.pictures import pictures
from fcam.benchmark.runtime import CLASSES, build
from fcam.benchmark.timing import Spread, milliseconds, synchronize
from fcam.cams import interpolated
from fcam.config import LossConfig, Precision, TrainConfig
from fcam.losses import barrier_t, partial_cross_entropy, size_constraint
from fcam.optimization import sgd
from fcam.precision import autocast, resolve
from fcam.seeds import sample_seeds
from fcam.stages import DecoderStage
from fcam.winograd import quick_convolutions

PARTS = {
    "images": "images to floats",
    "backbone": "backbone and head forward",
    "cam": "CAM",
    "seeds": "seeds",
    "decoder": "decoder forward",
    "crf": "CRF value and gradient",
    "losses": "other losses",
    "backward": "backward",
    "optimizer": "optimizer",
}
STEPS_AT_ONCE = 5
"""Steps between two synchronisations when the whole step is timed, since training does not wait after each either."""
EPOCH = 1


class Step:
    """A decoder stage on random weights with its optimizer, and a batch of 8-bit images and labels on the device."""

    def __init__(
        self,
        backbone: str,
        device: torch.device,
        precision: Precision,
        images: Tensor,
        compile: bool = False,
    ) -> None:
        self.device = device
        self.precision: Precision = resolve(precision, device)
        self.config = TrainConfig()
        self.model = build(backbone, device)
        self.stage = DecoderStage(self.model, self.config)
        settings = self.stage.settings.optimizer
        self.optimizer = sgd(self.stage.parameter_groups(settings), settings)
        self.module: Any = torch.compile(self.stage) if compile else self.stage
        self.module.train()
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.precision == "fp16")  # type: ignore[attr-defined]
        self.bytes = images.to(device).contiguous(memory_format=torch.channels_last)
        labels = torch.randint(CLASSES, (len(images),), generator=torch.Generator().manual_seed(2))
        self.labels = labels.to(device)
        self.generator = torch.Generator(device).manual_seed(0)

    def whole(self) -> dict[str, Tensor]:
        """What training does for one batch that is on the device; nothing waits."""
        images = self.bytes.float().div_(255)
        with autocast(self.precision, self.device):
            terms = self.module(images, self.labels, EPOCH, self.generator)
        self._update(sum(terms.values(), torch.zeros((), device=self.device)))
        return terms

    def in_parts(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        """The same step with a synchronisation after every part; returns the loss terms and the milliseconds."""
        lap = Laps(self.device)
        config, model, loss = self.config, self.model, self.stage.loss
        with lap("images"):
            images = self.bytes.float().div_(255)
        with autocast(self.precision, self.device):
            with lap("backbone"):
                features = self.stage.features(images)
            with lap("cam"):
                maps = interpolated(
                    model.classifier,
                    images,
                    features[-1],
                    self.labels,
                    config.method,
                    config.variant,
                    self.generator,
                )
            with lap("seeds"):
                seeds = sample_seeds(maps, config.seeds, self.generator)
            with lap("decoder"), quick_convolutions(images):
                logits = model.decoder(features, images.shape[-2:]).float()
            terms = timed_terms(lap, config.loss, loss.crf, logits, seeds, images)
        with lap("backward"):
            self.scaler.scale(sum(terms.values(), torch.zeros((), device=self.device))).backward()
        with lap("optimizer"):
            self._move()
        return terms, lap.milliseconds

    def _update(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()
        self._move()

    def _move(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)


def timed_terms(
    lap: Laps, weights: LossConfig, crf_loss: nn.Module, logits: Tensor, seeds: Tensor, images: Tensor
) -> dict[str, Tensor]:
    """The weighted loss terms of logits (B, 2, H, W), the CRF's timed apart from the others."""
    with lap("losses"):
        S = logits.softmax(1)
        partial = weights.alpha * partial_cross_entropy(logits, seeds)
        t = barrier_t(EPOCH, weights.barrier_t, weights.barrier_growth, weights.barrier_max)
        size = weights.size * size_constraint(S, t)
    with lap("crf"):
        crf = weights.crf * crf_loss(S, images)
    return {"partial_ce": partial, "crf": crf, "size": size}


class Laps:
    """Times the blocks it is entered for."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.milliseconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        synchronize(self.device)
        start = time.perf_counter()
        yield
        synchronize(self.device)
        self.milliseconds[name] = 1e3 * (time.perf_counter() - start)


def measure_step(
    backbone: str,
    device: torch.device,
    *,
    precision: Precision,
    size: int,
    batch_size: int,
    repeats: int,
    warm_up: int,
    compile: bool = False,
    photos: Path | None = None,
) -> dict[str, Any]:
    """Time the whole step (`repeats` of them, five at once) and its parts; returns a JSON value."""
    step = Step(backbone, device, precision, pictures(batch_size, size, photos), compile)
    at_once = min(STEPS_AT_ONCE, repeats)
    for _ in range(warm_up):
        step.whole()
    synchronize(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)

    def several() -> None:
        for _ in range(at_once):
            step.whole()

    whole = Spread.of([milliseconds(several, device) / at_once for _ in range(max(1, repeats // at_once))])
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    busy = kernel_milliseconds(several, device)
    step.in_parts()
    laps = [step.in_parts()[1] for _ in range(max(1, repeats // 3))]
    parts = {name: Spread.of([lap[name] for lap in laps]).as_dict() for name in PARTS}
    same = (batch_size, size) == (published.AUTHORS_BATCH, published.AUTHORS_SIZE)
    return {
        "backbone": backbone,
        "batch_size": batch_size,
        "size": size,
        "compile": compile,
        "whole": whole.as_dict(),
        "images_per_second": 1e3 * batch_size / whole.median,
        "parts": parts,
        "gpu_busy": None if busy is None else busy / at_once / whole.median,
        "gpu_peak_memory_bytes": memory,
        "authors_ms": published.AUTHORS_STEP_MS.get(backbone) if same else None,
        "authors_parts_ms": published.AUTHORS_PARTS_MS.get(backbone) if same else None,
    }


def kernel_milliseconds(call: Any, device: torch.device) -> float | None:
    """Time during which at least one kernel or copy ran on the GPU; None on a CPU or where it cannot be traced."""
    if device.type != "cuda":
        return None
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    try:
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            call()
            synchronize(device)
        events = list(profiler.events() or [])
    except RuntimeError:  # the driver may forbid tracing
        return None
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in events
        # Marks such as the optimizer's span the pauses between kernels too.
        if event.device_type == DeviceType.CUDA and not getattr(event, "is_user_annotation", False)
    )
    return covered(spans) / 1e3 or None


def covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union of sorted spans (start, end)."""
    total, reached = 0.0, float("-inf")
    for start, end in spans:
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
