"""What each map costs beside a plain forward: `python benchmarks/cams.py [--batch 1] [--rounds 15]`.

ResNet50 of torchvision with random weights, 224x224, eval mode, no_grad. Each call is timed between two plain
forwards, so that a busy machine slows all alike; the table holds medians of these ratios. The Score-CAM family is
timed on 64 of the 2048 channels and its rows are extrapolated. Where torchcam and grad-cam are installed, their
Grad-CAM stands beside ours.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable

import torch
import torchvision
from torch import Tensor, nn

from fcam.benchmark.timing import milliseconds
from fcam.cams import EmptyMapWarning, cam
from fcam.cams.perturbation import SAMPLES

CPU = torch.device("cpu")
CHANNELS = 64
"""Channels that the Score-CAM family is timed on."""


def ratios(
    plain: Callable[[], object], calls: dict[str, Callable[[], object]], rounds: int
) -> dict[str, float]:
    """Median over rounds of each call's time divided by the plain forward's, measured around it."""
    seen: dict[str, list[float]] = {name: [] for name in calls}
    for call in (plain, *calls.values()):
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            before = milliseconds(plain, CPU)
            own = milliseconds(call, CPU)
            seen[name].append(2 * own / (before + milliseconds(plain, CPU)))
    return {name: statistics.median(values) for name, values in seen.items()}


def methods(model: nn.Module, images: Tensor) -> dict[str, Callable[[], object]]:
    classes = torch.full((len(images),), 7)

    def make(name: str, **options) -> Callable[[], object]:
        return lambda: cam(model, images, classes, name, **options)

    rows = {
        name: make(name)
        for name in ("cam", "gradcam", "gradcampp", "smoothgradcampp", "xgradcam", "layercam")
    }
    rows["smoothgradcampp, reference"] = make("smoothgradcampp", variant="reference")
    rows["gradcam, target_layer=layer3"] = make("gradcam", target_layer="layer3")
    rows["refinecam"] = make("refinecam")
    rows["center"] = make("center")
    return rows


def peers(model: nn.Module, images: Tensor) -> dict[str, Callable[[], object]]:
    rows: dict[str, Callable[[], object]] = {}
    classes = [7] * len(images)
    try:
        from torchcam.methods import GradCAM as TorchcamGradCAM
    except ImportError:
        pass
    else:

        def by_torchcam() -> None:
            with TorchcamGradCAM(model, "layer4") as extractor:
                extractor(classes, model(images))

        rows["torchcam GradCAM"] = by_torchcam
    try:
        from pytorch_grad_cam import GradCAM
        from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
    except ImportError:
        return rows

    def by_grad_cam() -> None:
        with GradCAM(model, [model.layer4]) as extractor:  # type: ignore[list-item]
            extractor(images, [ClassifierOutputTarget(k) for k in classes])  # type: ignore[arg-type]
        model.zero_grad(set_to_none=True)

    rows["grad-cam GradCAM"] = by_grad_cam
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", EmptyMapWarning)
    torch.manual_seed(0)
    model = torchvision.models.resnet50(weights=None).eval()
    images = torch.randn(arguments.batch, 3, 224, 224)

    def plain() -> None:
        with torch.no_grad():
            model(images)

    found = ratios(plain, methods(model, images) | peers(model, images), arguments.rounds)
    print(f"batch {arguments.batch}, {torch.get_num_threads()} threads, plain forward = 1")
    for name, ratio in found.items():
        print(f"| {name} | {ratio:.2f} |")
    scored = ratios(plain, {"scorecam": lambda: cam(model, images, 7, "scorecam", top_channels=CHANNELS)}, 1)
    each = (scored["scorecam"] - 1) / CHANNELS
    for name, samples in SAMPLES.items():
        print(f"| {name}, all 2048 channels (extrapolated) | {1 + 2048 * samples * each:.0f} |")


if __name__ == "__main__":
    main()
