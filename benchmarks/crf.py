"""Accuracy and time of the CRF filter: `python benchmarks/crf.py --photos FOLDER` prints Markdown.

Without photos, made pictures are used. Times are medians of one run; accuracies are relative L2 errors of W S
against the sum over all pairs. The process time of a call is what it costs however busy the machine is: on n
idle cores a batch takes an n-th of it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
import tyro
from PIL import Image
from torch import Tensor

from fcam import bilateral
from fcam.benchmark.crf import SIGMA_RGB, SIGMA_XY
from fcam.benchmark.pictures import soft_maps
from fcam.bilateral.exact import ExactSum
from fcam.bilateral.tensors import TensorGrid
from fcam.files import write_json

CANDIDATES = 300  # photos looked at for the most saturated ones
LATTICE_CPP = {
    1: 11.4,
    8: 9.7,
    32: 9.7,
}  # the authors' C++ filter on one core of a Xeon with AMX, ms per image


@dataclass
class Options:
    """Measure the CRF filter."""

    photos: Path | None = None
    """Folder searched for .jpg files; made pictures when absent."""
    accuracy_images: int = 4
    """Photos per row of the accuracy table (about 3 s of exact summing each)."""
    repeats: int = 15
    """Timed calls per median."""
    json: Path | None = None
    """File for the figures."""


def made_pictures(count: int, side: int) -> Tensor:
    """Coloured blobs with noise, (count, 3, side, side)."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, 7, 7, generator=generator)
    images = torch.nn.functional.interpolate(coarse, (side, side), mode="bicubic")
    return (images + 0.02 * torch.randn(images.shape, generator=generator)).clamp(0, 1)


def open_photo(path: Path, side: int) -> Tensor:
    with Image.open(path) as photo:
        pixels = np.asarray(photo.convert("RGB").resize((side, side), Image.Resampling.BILINEAR))
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1) / 255.0


def pick_photos(folder: Path | None, count: int) -> dict[str, list[Path]]:
    """Return `count` random photos and the `count` with the largest areas at 0 or 255."""
    files = sorted(folder.rglob("*.jpg")) if folder else []
    if not files:
        return {}
    chosen = np.random.default_rng(0).choice(len(files), min(CANDIDATES, len(files)), replace=False)
    sample = [files[i] for i in chosen]

    def saturated(path: Path) -> float:
        image = open_photo(path, 64)
        return float(((image < 0.02) | (image > 0.98)).float().mean())

    return {"photos": sample[:count], "saturated photos": sorted(sample, key=saturated)[-count:]}


def milliseconds(call: Callable[[], object], repeats: int, cuda: bool = False) -> tuple[float, float]:
    """Median wall and process time of a call, after one that warms up."""
    call()
    wall, process = [], []
    for _ in range(repeats):
        if cuda:
            torch.cuda.synchronize()
        start, used = time.perf_counter(), time.process_time()
        call()
        if cuda:
            torch.cuda.synchronize()
        wall.append(1e3 * (time.perf_counter() - start))
        process.append(1e3 * (time.process_time() - used))
    return statistics.median(wall), statistics.median(process)


def accuracy(name: str, images: Tensor) -> dict[str, float | str]:
    """Errors of the CPU kernels, the tensor path and the lattice on one set of images."""
    maps = soft_maps(len(images), images.shape[-1])
    truth = ExactSum(images, SIGMA_RGB, SIGMA_XY).apply(maps).flatten(1)

    def worst(result: Tensor) -> float:
        return float(((result.flatten(1) - truth).norm(dim=1) / truth.norm(dim=1)).max())

    lattice = bilateral.filter(images, maps, method="lattice").flatten(1)
    return {
        "images": name,
        "gaussian": worst(bilateral.filter(images, maps)),
        "tensor path": worst(TensorGrid(images, SIGMA_RGB, SIGMA_XY).apply(maps)),
        "lattice": worst(lattice),
        "lattice gain": float((lattice * truth).sum() / (truth * truth).sum()),
    }


def timing(images: Tensor, batch: int, repeats: int) -> dict[str, float]:
    """Milliseconds per image of value and gradient, two maps."""
    images = images.repeat(-(-batch // len(images)), 1, 1, 1)[:batch]
    maps = soft_maps(batch, images.shape[-1])
    wall, process = milliseconds(lambda: bilateral.filter(images, maps), repeats)
    lattice = milliseconds(lambda: bilateral.filter(images, maps, method="lattice"), 3)
    row: dict[str, float] = {
        "batch": batch,
        "gaussian": wall / batch,
        "gaussian, process": process / batch,
        "lattice": lattice[0] / batch,
        "C++ lattice, one core": LATTICE_CPP[batch],
    }
    if torch.cuda.is_available():
        there, maps_there = images.cuda(), maps.cuda()
        spent = milliseconds(lambda: bilateral.filter(there, maps_there), repeats, cuda=True)
        row["exact, GPU"] = spent[0] / batch
    return row


def markdown(rows: list[dict], digits: int) -> str:
    """Rows with the same keys as a Markdown table."""

    def cell(value: object) -> str:
        if isinstance(value, float):
            return "" if np.isnan(value) else f"{value:.{digits}f}"
        return str(value)

    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    lines += ["| " + " | ".join(cell(value) for value in row.values()) + " |" for row in rows]
    return "\n".join(lines)


def main(options: Options) -> None:
    """Print the tables."""
    picked = pick_photos(options.photos, options.accuracy_images)
    sets = {name: torch.stack([open_photo(path, 224) for path in paths]) for name, paths in picked.items()}
    sets["made pictures"] = made_pictures(options.accuracy_images, 224)
    accuracies = [accuracy(name, images) for name, images in sets.items()]
    print("Largest relative L2 error in each set, 224 x 224\n")
    print(markdown(accuracies, 4))

    threads = torch.get_num_threads()
    source = next(iter(sets.values()))
    times = [timing(source, batch, options.repeats) for batch in (1, 8, 32)]
    print(f"\nMilliseconds per image, two maps, {threads} threads\n\n{markdown(times, 2)}")
    print(f"\nThreads after these calls: {torch.get_num_threads()} (before: {threads})")

    growth = []
    for side in (112, 224, 448):
        images = torch.nn.functional.interpolate(source[:4], (side, side), mode="bilinear")
        maps = soft_maps(len(images), side)
        call = cast(Callable[[], object], lambda images=images, maps=maps: bilateral.filter(images, maps))
        spent = milliseconds(call, options.repeats)[1] / len(images)
        growth.append({"side": side, "ms per image": spent, "ns per pixel": 1e6 * spent / side**2})
    print(f"\nGrowth of the process time with the number of pixels\n\n{markdown(growth, 2)}")
    if options.json:
        write_json(
            options.json, {"threads": threads, "accuracy": accuracies, "times": times, "growth": growth}
        )


if __name__ == "__main__":
    main(tyro.cli(Options))
