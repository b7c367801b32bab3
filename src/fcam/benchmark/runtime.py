"""The paper's runtime table (supplementary, tab. "complexity"), with the forward pass included for every method."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fcam import cams
from fcam.benchmark.pictures import pictures
from fcam.benchmark.published import p100
from fcam.benchmark.timing import Call, Spread, repeat, side_by_side
from fcam.cams import CLOSED_FORMS, METHODS
from fcam.cams.perturbation import SAMPLES
from fcam.config import Precision
from fcam.model import FCAM, foreground
from fcam.precision import autocast
from fcam.registry import create_model

CLASSES, CLASS_IDX = 200, 88
"""As in the paper's table."""
PLAIN = "plain"
TITLES = {
    PLAIN: "classifier forward",
    **{name: method.title for name, method in METHODS.items() if name != "center"},
    "smoothgradcampp_reference": "Smooth-Grad-CAM++ of a noisy copy (reference)",
    "fcam": "F-CAM",
}
ONE_FORWARD = (*CLOSED_FORMS, "refinecam")
SCORE_CHUNK = 32
SCORE_REPEATS = 3


def measure_runtime(
    backbone: str,
    device: torch.device,
    *,
    precision: Precision,
    size: int,
    batch_size: int,
    repeats: int,
    warm_up: int,
    score_channels: int,
) -> dict[str, Any]:
    """Time every method on one backbone with random weights, on which times do not depend.

    `score_channels`: channels that the Score-CAM family is timed on and extrapolated from; 0 leaves it out.
    Returns a JSON value: parameters, shapes, and a row per method.
    """
    model = build(backbone, device)
    images = (pictures(batch_size, size).to(device).float() / 255).contiguous(
        memory_format=torch.channels_last
    )
    with torch.inference_mode():
        top = model.classifier(images).features[-1]
    calls = _calls(model, images, precision)
    with warnings.catch_warnings():
        # Random weights make maps without a positive value, which is no news here.
        warnings.simplefilter("ignore", cams.EmptyMapWarning)
        timed = side_by_side(calls, PLAIN, device, repeats, warm_up)
        if score_channels:
            plain = timed[PLAIN][0].median
            for method in SAMPLES:
                found = _scores(model, images, precision, method, score_channels, plain, device)
                timed[method] = found, found.median / plain
    paper = batch_size == 1 and size == 224
    parameters = {"classifier": _count(model.classifier), "decoder": _count(model.decoder)}
    rows = [
        {
            "method": name,
            "title": TITLES[name],
            "ms": spread.as_dict(),
            "ratio": ratio,
            "parameters": sum(parameters.values()) if name == "fcam" else parameters["classifier"],
            "map": None if name == PLAIN else [size, size] if name == "fcam" else list(top.shape[-2:]),
            "extrapolated_from_channels": score_channels if name in SAMPLES else None,
            "paper_p100_ms": p100(name, backbone) if paper else None,
        }
        for name, (spread, ratio) in timed.items()
    ]
    return {
        "backbone": backbone,
        "batch_size": batch_size,
        "size": size,
        "parameters": parameters,
        "features": {"channels": top.shape[1], "map": list(top.shape[-2:])},
        "rows": rows,
    }


def build(backbone: str, device: torch.device) -> FCAM:
    """A model with random weights, laid out and switched to inference as `Localizer` does it."""
    torch.manual_seed(0)
    model = create_model(backbone, CLASSES, pretrained=False).eval()
    return cast(Any, model).to(device, memory_format=torch.channels_last)


def _calls(model: FCAM, images: Tensor, precision: Precision) -> dict[str, Call]:
    """Every row as a call that ends with maps at the size of the images; the classifier alone comes first."""
    calls: dict[str, Call] = {PLAIN: _forward(model.classifier, images, precision, lambda out: out.logits)}
    for method in ONE_FORWARD:
        calls[method] = _map(model, images, precision, method)
        if method == "smoothgradcampp":
            generator = torch.Generator(images.device).manual_seed(0)
            options = {"variant": "reference", "generator": generator}
            calls["smoothgradcampp_reference"] = _map(model, images, precision, method, **options)
    calls["fcam"] = _forward(model, images, precision, lambda out: foreground(out.maps))
    return calls


def _forward(
    module: nn.Module, images: Tensor, precision: Precision, result: Callable[[Any], Tensor]
) -> Call:
    def call() -> Tensor:
        with torch.inference_mode():
            with autocast(precision, images.device):
                out = module(images)
            return result(out)

    return call


def _map(model: FCAM, images: Tensor, precision: Precision, method: str, **options: Any) -> Call:
    classes = torch.full((len(images),), CLASS_IDX, device=images.device)

    def call() -> Tensor:
        with autocast(precision, images.device):
            maps = cams.cam(model.classifier, images, classes, method, **options)
        return F.interpolate(maps[:, None], size=images.shape[-2:], mode="bilinear", align_corners=False)

    return call


def _scores(
    model: FCAM,
    images: Tensor,
    precision: Precision,
    method: str,
    channels: int,
    plain: float,
    device: torch.device,
) -> Spread:
    """Time a perturbation method on some channels; what comes on top of one forward grows with their number."""
    total = model.classifier.backbone.channels[-1]
    channels = min(channels, total)
    generator = {} if method != "sscam" else {"generator": torch.Generator(device).manual_seed(0)}
    options = {"top_channels": channels, "chunk": SCORE_CHUNK, **generator}
    found = repeat(
        _map(model, images, precision, method, **options), device, SCORE_REPEATS if channels > 8 else 1, 1
    )
    all_of = [
        plain + max(value - plain, 0.0) * total / channels for value in (found.median, found.low, found.high)
    ]
    return Spread(*all_of, repeats=found.repeats)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
