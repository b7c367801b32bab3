"""One stage-2 step, ours and the authors' way of working: `python benchmarks/train_step.py` prints Markdown.

Both sides run on this machine in alternating rounds, each in a process of its own, in float32 on the CPU, from the same
random weights and the same images. What is compared is the way of working: the networks are the same by specification,
so both sides are made of our modules. The authors' way is written here from a description of their code, and where that
leaves a choice, the quicker one is taken:

- tensors are contiguous, batch normalisation is not folded, the allocator is left as it is;
- the features of the frozen encoder feed the decoder; its blocks double every map and interpolate it back to the skip;
- a second classifier with the same weights sees one image at a time for its CAM (CAM itself: no backward pass);
- seeds are drawn image by image: scikit-image's Otsu, an 11x11 erosion (theirs unfolds 121 neighbours, here two passes
  of a minimum filter), a sort of the whole map, and torch's multinomial;
- loss terms, then one backward pass and torch's plain SGD with Nesterov momentum.

The authors' CRF is a compiled lattice (41 ms for this batch on another machine); ours in plain tensors takes 30 times
as long, so their side is given our exact filter, which is quicker than either.
"""

from __future__ import annotations

import copy
import multiprocessing
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import tyro
from scipy.ndimage import maximum_filter, minimum_filter
from skimage.filters import threshold_otsu
from torch import Tensor, nn
from torch.nn import functional as F

from fcam import winograd
from fcam.benchmark.pictures import pictures
from fcam.benchmark.report import headline
from fcam.benchmark.timing import Spread, side_by_side
from fcam.benchmark.train_step import PARTS, Laps, Step, timed_terms
from fcam.classifier import Classifier
from fcam.config import Precision, SeedConfig
from fcam.decoder import Decoder
from fcam.environment import environment
from fcam.files import write_json, write_text
from fcam.memory import keep_freed_memory
from fcam.seeds import IGNORE

CPU = torch.device("cpu")
AUTHORS, OURS = "authors' way", "ours"


@dataclass
class Options:
    """Compare a stage-2 step with the authors' way of doing it."""

    backbones: tuple[str, ...] = ("resnet50", "vgg16", "inceptionv3")
    """resnet50, vgg16, inceptionv3 or timm:NAME."""
    batch_size: int = 8
    """Images per step."""
    size: int = 224
    """Side of the images."""
    repeats: int = 15
    """Rounds of one step each."""
    threads: int = 0
    """Threads of each side; 0 takes torch's choice."""
    precision: Precision = "no"
    """Of our side; the authors work in float32."""
    keep_memory: bool = False
    """Let the authors' side keep freed memory too, as `fcam train` does on a CPU."""
    direct: bool = False
    """Our side without the convolutions of fcam.winograd."""
    photos: Path | None = None
    """Folder of photos to use instead of drawn pictures."""
    out: Path | None = None
    """Folder for train_step.json and train_step.md."""
    quick: bool = False
    """Two small images and two rounds: shows that all works, not how fast."""


class AuthorsStep:
    """The step as the authors work, from the same weights, images and settings as `ours`."""

    def __init__(self, ours: Step) -> None:
        model = cast(Any, copy.deepcopy(ours.model)).to(memory_format=torch.contiguous_format)
        self.encoder: Classifier = model.classifier
        self.decoder: Decoder = model.decoder
        self.classifier: Classifier = copy.deepcopy(model.classifier)  # a second one, for the CAMs
        self.decoder.train()
        self.config, self.crf = ours.config, ours.stage.loss.crf
        settings = ours.stage.settings.optimizer
        self.optimizer = torch.optim.SGD(
            self.decoder.parameters(),
            lr=settings.lr,
            momentum=settings.momentum,
            nesterov=settings.nesterov,
            weight_decay=settings.weight_decay,
        )
        self.images = ours.bytes.contiguous()
        self.labels = ours.labels

    def in_parts(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        """One step; returns the loss terms and the milliseconds of its parts."""
        lap = Laps(CPU)
        with lap("images"):
            images = self.images.float().div_(255)
        with lap("backbone"), torch.no_grad():
            features = self.encoder(images).features
        with lap("decoder"):
            logits = decode(self.decoder, features, images.shape[-2:])
        with lap("cam"):
            maps = cams_one_by_one(self.classifier, images, self.labels)
        with lap("seeds"):
            seeds = seeds_one_by_one(maps, self.config.seeds)
        terms = timed_terms(lap, self.config.loss, self.crf, logits, seeds, images)
        with lap("backward"):
            torch.stack(list(terms.values())).sum().backward()
        with lap("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad()
        return terms, lap.milliseconds


def decode(decoder: Decoder, features: list[Tensor], size: torch.Size) -> Tensor:
    """Logits of the decoder's layers, every map doubled first and interpolated back where a skip has another size."""
    x, *skips = reversed(features)
    x = decoder.center(x)
    for place, block in enumerate(decoder.blocks):
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        if place < len(skips):
            skip = skips[place]
            if x.shape[-2:] != skip.shape[-2:]:
                x = F.interpolate(x, size=skip.shape[-2:], mode="bilinear", align_corners=True)
            x = torch.cat((x, skip), dim=1)
        convolution, *others = cast(nn.Sequential, block.conv1)
        # Not called as a module, which would double x itself, and more cheaply.
        x = F.conv2d(x, cast(Tensor, convolution.weight), padding=1)
        for layer in others:
            x = layer(x)
        x = cast(nn.Sequential, block.conv2)(x)
    x = decoder.segmentation_head(x)
    if x.shape[-2:] != size:
        x = F.interpolate(x, size=size, mode="bilinear", align_corners=True)
    return x


def cams_one_by_one(classifier: Classifier, images: Tensor, labels: Tensor) -> Tensor:
    """CAM of the true class, (B, H, W) in [0, 1]: a forward pass of one image, min-max, then interpolation."""
    weight = classifier.head.linear_weight()
    assert weight is not None, "the benchmark's classifiers have linear heads"
    maps = []
    for image, label in zip(images, labels, strict=True):
        top = classifier(image[None]).features[-1][0]
        raw = (weight[label][:, None, None] * top).nansum(0).detach()
        raw = raw - raw.min()
        low = torch.nan_to_num(raw / raw.max(), nan=0.0, posinf=1.0, neginf=0.0)
        high = F.interpolate(low[None, None], size=image.shape[-2:], mode="bilinear", align_corners=False)
        maps.append(high[0, 0])
    return torch.stack(maps)


def seeds_one_by_one(maps: Tensor, config: SeedConfig) -> Tensor:
    """Y (B, H, W) of CAMs in [0, 1], drawn image by image."""
    return torch.stack([_seeds(cam, config) for cam in maps])


def _seeds(cam: Tensor, config: SeedConfig) -> Tensor:
    labels = torch.full(cam.shape, IGNORE, dtype=torch.int64)
    region = region_of(cam, config)
    inside = torch.from_numpy(np.flatnonzero(region))
    if not len(inside):
        return labels
    lowest = cam.flatten().argsort()[: int(config.n_minus * cam.numel())]
    foreground = _drawn(inside, config.foreground_pixels, cam.shape, config.dilation)
    background = _drawn(lowest, config.background_pixels, cam.shape, config.dilation)
    labels[foreground & ~background] = 1
    labels[background & ~foreground] = 0
    return labels


def region_of(cam: Tensor, config: SeedConfig) -> np.ndarray:
    """Pixels of one CAM (H, W) above Otsu's threshold, eroded unless nothing were left."""
    levels = np.floor(255 * cam.numpy()).astype(np.uint8)
    if levels.min() == levels.max():
        return np.zeros(levels.shape, dtype=bool)
    region = levels > np.clip(threshold_otsu(levels), 1, 254)
    for _ in range(config.erosion_iterations):
        eroded = minimum_filter(region, size=config.erosion, mode="constant", cval=1)
        region = eroded if eroded.any() else region
    return region


def _drawn(candidates: Tensor, count: int, shape: torch.Size, side: int) -> Tensor:
    """Up to `count` of the candidates (places in the flat map), each grown to a square, as a mask."""
    chosen = torch.multinomial(torch.ones(len(candidates)), min(count, len(candidates)))
    mask = np.zeros(shape, dtype=bool)
    mask.flat[candidates[chosen].numpy()] = True
    return torch.from_numpy(maximum_filter(mask, size=side))


class Side:
    """A step in a process of its own, which does one whenever it is called."""

    def __init__(self, name: str, backbone: str, options: Options) -> None:
        # A process of its own, since the allocator's settings are the process's.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, name, backbone, options), daemon=True)
        self.process.start()
        theirs.close()  # so that reading ends when the process does
        self.laps: list[dict[str, float]] = []
        self.processor_ms: list[float] = []

    def __call__(self) -> None:
        self.pipe.send("step")
        laps, processor_ms = self.pipe.recv()
        self.laps.append(laps)
        self.processor_ms.append(processor_ms)

    def close(self) -> None:
        self.pipe.close()
        self.process.join()


def _serve(pipe: Connection, name: str, backbone: str, options: Options) -> None:
    if options.threads:
        torch.set_num_threads(options.threads)
    if name == OURS or options.keep_memory:
        keep_freed_memory()
    if options.direct:
        winograd.WIDTH = 1 << 30
    ours = Step(backbone, CPU, options.precision, pictures(options.batch_size, options.size, options.photos))
    step = ours if name == OURS else AuthorsStep(ours)
    del ours
    while True:
        try:
            pipe.recv()
        except EOFError:  # the other end was closed
            return
        used = time.process_time()
        _, laps = step.in_parts()
        pipe.send((laps, 1e3 * (time.process_time() - used)))


def measure(backbone: str, options: Options) -> dict[str, Any]:
    """Both sides of one backbone in turns; returns a JSON value."""
    warm_up = 1
    sides = {name: Side(name, backbone, options) for name in (AUTHORS, OURS)}
    try:
        timed = side_by_side(sides, OURS, CPU, options.repeats, warm_up)
    finally:
        for side in sides.values():
            side.close()
    parts = {
        name: {part: Spread.of([lap[part] for lap in side.laps[warm_up:]]).as_dict() for part in PARTS}
        for name, side in sides.items()
    }
    processor = {name: side.processor_ms[warm_up:] for name, side in sides.items()}
    return {
        "backbone": backbone,
        "batch_size": options.batch_size,
        "size": options.size,
        "precision_of_ours": options.precision,
        "authors_keep_memory": options.keep_memory,
        "direct_convolutions": options.direct,
        "whole_ms": {name: spread.as_dict() for name, (spread, _) in timed.items()},
        "ratio": timed[AUTHORS][1],
        "parts_ms": parts,
        "processor_ms": {name: statistics.median(values) for name, values in processor.items()},
        "processor_ratio": statistics.median(
            a / b for a, b in zip(processor[AUTHORS], processor[OURS], strict=True)
        ),
    }


def markdown(one: Mapping[str, Any]) -> str:
    """A table with a row per part."""
    rows = [
        (title, one["parts_ms"][AUTHORS][part]["median"], one["parts_ms"][OURS][part]["median"], None)
        for part, title in PARTS.items()
    ]
    whole, processor = one["whole_ms"], one["processor_ms"]
    rows.append(("**whole step**", whole[AUTHORS]["median"], whole[OURS]["median"], one["ratio"]))
    rows.append(("processor time, all threads", processor[AUTHORS], processor[OURS], one["processor_ratio"]))
    lines = [
        f"## {one['backbone']}, batch {one['batch_size']}, {one['size']}x{one['size']}",
        "",
        f"| part | {AUTHORS} (ms) | {OURS} (ms) | ratio |",
        "|---|--:|--:|--:|",
        *(
            f"| {title} | {a:,.1f} | {b:,.1f} | {'' if ratio is None else f'{ratio:.2f}'} |"
            for title, a, b, ratio in rows
        ),
        "",
        f"Medians of {whole[OURS]['repeats']} rounds; the ratio is the median of the rounds' ratios.",
    ]
    return "\n".join(lines) + "\n"


def main(options: Options) -> None:
    """Print the tables, and write them where asked."""
    if options.quick:
        options.batch_size, options.size, options.repeats = 2, 64, 2
    if options.threads:
        torch.set_num_threads(options.threads)
    about = environment(CPU, options.precision)
    print(f"{headline(about)}\n")
    results = []
    for backbone in options.backbones:
        results.append(measure(backbone, options))
        print(markdown(results[-1]), flush=True)
        if options.out is not None:
            write_json(options.out / "train_step.json", {"environment": about, "train_step": results})
            page = "\n".join([f"{headline(about)}\n", *(markdown(one) for one in results)])
            write_text(options.out / "train_step.md", page)


if __name__ == "__main__":
    main(tyro.cli(Options))
