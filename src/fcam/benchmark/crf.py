"""Value and gradient of the CRF loss: time by batch and by image size, and accuracy of the filter behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fcam import bilateral
from fcam.benchmark.pictures import pictures, soft_maps
from fcam.benchmark.published import AUTHORS_CRF_MS, AUTHORS_SIZE
from fcam.benchmark.timing import Call, repeat
from fcam.bilateral.exact import ExactSum
from fcam.losses import CRFLoss

SIGMA_RGB, SIGMA_XY = 15.0, 100.0
LATTICE_REPEATS = 3
"""The lattice in tensor operations is there to reproduce tables; it is slow, and timed less often."""


def measure_crf(
    device: torch.device,
    *,
    batches: tuple[int, ...],
    size: int,
    sides: tuple[int, ...],
    growth_batch: int,
    repeats: int,
    warm_up: int,
    error_images: int,
    photos: Path | None = None,
) -> dict[str, Any]:
    """Return a JSON value with the three tables.

    `batches` are timed at `size`; `sides` with `growth_batch` images each; errors are taken at `size`.
    """
    # On a GPU the exact sum is the product; the lattice there would be timed for nobody.
    methods = ("gaussian",) if device.type == "cuda" else bilateral.METHODS
    times = [
        _time(device, method, batch, size, repeats, warm_up, photos)
        for method in methods
        for batch in batches
    ]
    growth = [_time(device, "gaussian", growth_batch, side, repeats, warm_up, photos) for side in sides]
    return {
        "images": "drawn pictures" if photos is None else "photographs",
        "maps": 2,
        "sigma_rgb": SIGMA_RGB,
        "sigma_xy": SIGMA_XY,
        "times": times,
        "growth": growth,
        "errors": _errors(device, error_images, size, photos),
    }


def _time(
    device: torch.device,
    method: bilateral.Method,
    batch: int,
    side: int,
    repeats: int,
    warm_up: int,
    photos: Path | None,
) -> dict[str, Any]:
    images = pictures(batch, side, photos).to(device).float() / 255
    maps = soft_maps(batch, side).to(device).requires_grad_()
    loss = CRFLoss(SIGMA_RGB, SIGMA_XY, method)
    call: Call = lambda: torch.autograd.grad(loss(maps, images), maps)  # noqa: E731
    if method == "lattice":
        repeats, warm_up = min(repeats, LATTICE_REPEATS), 1
    spent = repeat(call, device, repeats, warm_up)
    return {
        "method": method,
        "batch_size": batch,
        "side": side,
        "ms": spent.as_dict(),
        "ms_per_image": spent.median / batch,
        "ns_per_pixel": 1e6 * spent.median / batch / side**2,
        "authors_ms": AUTHORS_CRF_MS.get(batch) if side == AUTHORS_SIZE else None,
    }


def _errors(device: torch.device, count: int, size: int, photos: Path | None) -> list[dict[str, Any]]:
    """Largest relative L2 error of W S over a few images, against the sum over all pairs (on the CPU)."""
    images, maps = pictures(count, size, photos).float() / 255, soft_maps(count, size)
    truth = ExactSum(images, SIGMA_RGB, SIGMA_XY).apply(maps).flatten(1)
    rows = []
    for method in bilateral.METHODS:
        there = device if method == "gaussian" else torch.device("cpu")
        found = bilateral.filter(images.to(there), maps.to(there), SIGMA_RGB, SIGMA_XY, method)
        found = found.cpu().flatten(1)
        error = (found - truth).norm(dim=1) / truth.norm(dim=1)
        gain = float((found * truth).sum() / (truth * truth).sum())
        rows.append({"method": method, "images": count, "error": float(error.max()), "gain": gain})
    return rows
