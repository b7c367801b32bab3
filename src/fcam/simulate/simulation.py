"""What a low resolution costs at best: true masks made small by a factor z and large again, scored as if they were CAMs.

Paper, supplementary section "Simulation of the impact of downscale factor of CAM over PxAP performance". It does not say how
a mask is made small, and that decides the result: picking pixels (bilinear without antialiasing) loses thin objects, averaging
areas keeps them. Both are computed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fcam import checkpoint
from fcam.contours import components
from fcam.data import EvalTransform, open_dataset
from fcam.data.dataset import IGNORE
from fcam.data.images import open_mask
from fcam.data.transforms import Geometry
from fcam.errors import FcamError
from fcam.metrics import MaxBoxAcc, PxAP
from fcam.progress import epoch_bar
from fcam.run import Run, load_config

FACTORS = (1, 2, 4, 8, 16, 32, 64)
WAYS = {"sampled": "bilinear", "averaged": "area"}
"""How a mask is made small: without and with antialiasing."""
BATCH = 32
_ONE_OF_SEVERAL = re.compile(r"(?P<image>[0-9a-f]{16})_m0\w+_[0-9a-f]{8}")
"""OpenImages' names of masks: the image, the class, and a hash."""


class Truth(NamedTuple):
    """What is known about one image at the size of evaluation."""

    mask: Tensor
    """(H, W) uint8: 1 object, 0 background, 255 ignored."""
    boxes: Tensor | None
    """(n, 4) of the data set; None takes those around the parts of the mask."""


def low_resolution(masks: Tensor, factor: float, way: str) -> Tensor:
    """Masks made small by `factor` and large again by bilinear interpolation.

    Args:
        masks: (B, H, W) in [0, 1].
        factor: z >= 1; the small side is that of the large one over z, rounded, and at least 1.
        way: "sampled" or "averaged".

    Returns:
        (B, H, W) float32 in [0, 1].
    """
    size = masks.shape[-2:]
    small = [max(1, round(side / factor)) for side in size]
    maps = F.interpolate(masks[:, None].float(), size=small, mode=WAYS[way])
    return F.interpolate(maps, size=size, mode="bilinear", align_corners=False)[:, 0].clamp(0, 1)


def simulate(truths: Iterable[Truth], factors: Sequence[float] = FACTORS, total: int = 0) -> dict[str, Any]:
    """PxAP and MaxBoxAcc (overlap 0.5) of low-resolution true masks.

    Args:
        truths: masks and boxes of the images, all of one size.
        factors: values of z.
        total: number of images, for the progress bar.

    Returns:
        "images" with a mask, "without_mask", which are left out, "images_with_boxes", "side", "boxes" (where boxes come
        from) and "curve", a row per z with the percentages by way.

    Raises:
        FcamError: no masks, masks without any object, or a factor below 1.
    """
    if not factors or not all(1 <= factor < float("inf") for factor in factors):
        raise FcamError(f"factors must be numbers of at least 1, got {list(factors)}")
    cells = {(z, way): (PxAP(), MaxBoxAcc(iou=(0.5,))) for z in factors for way in WAYS}
    images = unknown = boxed = objects = side = 0
    own_boxes = False
    with epoch_bar("simulate", -(-total // BATCH)) as bar:
        for batch in _batches(truths):
            bar.advance(len(batch))
            # Boxes alone make no perfect map, and an empty one would count as a miss.
            known = [truth for truth in batch if bool((truth.mask != IGNORE).any())]
            unknown += len(batch) - len(known)
            if not known:
                continue
            boxed += _count(cells, known)
            own_boxes |= any(truth.boxes is not None for truth in known)
            images, side = images + len(known), known[0].mask.shape[-1]
            objects += sum(int((truth.mask == 1).sum()) for truth in known)
    if not objects:
        raise FcamError(
            f"there are {images} masks and no object in any of them; a simulation needs true masks"
        )
    curve = [_point(z, side, cells, boxed > 0) for z in factors]
    source = "the data set" if own_boxes else "the parts of the true masks"
    counts = {"images": images, "without_mask": unknown, "images_with_boxes": boxed}
    return {**counts, "side": side, "boxes": source, "curve": curve}


def _count(cells: dict[Any, tuple[PxAP, MaxBoxAcc]], batch: list[Truth]) -> int:
    """Score the maps of a batch at every factor; returns how many of its images have boxes."""
    masks = torch.stack([truth.mask for truth in batch])
    boxes = [_boxes(truth) for truth in batch]
    kept = [i for i, found in enumerate(boxes) if len(found)]
    for (z, way), (pixels, box) in cells.items():
        maps = low_resolution(masks == 1, z, way)
        pixels.update(maps, masks)
        if kept:
            box.update(maps[kept], [boxes[i] for i in kept])
    return len(kept)


def _point(z: float, side: int, cells: dict[Any, tuple[PxAP, MaxBoxAcc]], boxed: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"z": z, "map_side": max(1, round(side / z))}
    for name, place in (("pxap", 0), ("max_box_acc", 1)):
        row[name] = {
            way: round(float(cells[z, way][place].compute()), 6) if place == 0 or boxed else None
            for way in WAYS
        }
    return row


def _batches(truths: Iterable[Truth]) -> Iterator[list[Truth]]:
    batch: list[Truth] = []
    for truth in truths:
        batch.append(truth)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _boxes(truth: Truth) -> Tensor:
    if truth.boxes is not None:
        return truth.boxes
    # Not `from_map`, which also finds the holes. Edges lie one past the last pixel, as those of the maps' own boxes.
    boxes = components((truth.mask == 1).numpy()).boxes.astype(np.int64)
    height, width = truth.mask.shape
    boxes[:, 2:] = np.minimum(boxes[:, 2:] + 1, (width - 1, height - 1))
    return torch.from_numpy(boxes)


def truths_of_dataset(root: str, split: str, size: int) -> tuple[Iterator[Truth], int]:
    """Masks, and boxes where there are any, of a split; photos are not opened.

    Raises:
        FcamError: the split has no masks.
    """
    geometry = EvalTransform(size)
    dataset = open_dataset(root, split, transform=geometry, localization=True)
    if not dataset.has_masks:
        raise FcamError(
            f"{split} of {root} has no masks; the simulation needs true masks, boxes are not enough"
        )

    def read() -> Iterator[Truth]:
        fixed = geometry.geometry((size, size), np.random.default_rng(0))
        for index in range(len(dataset)):
            found = dataset.truth(index, fixed)
            yield Truth(found["mask"], found.get("boxes"))

    return read(), len(dataset)


def truths_of_folder(folder: Path, size: int) -> tuple[Iterator[Truth], int]:
    """Masks of a folder of PNG files: one per image, or one per object named as OpenImages has them.

    Those are `1cd9ac0169ec7df0_m0bt_c3_6932e993.png`: the image's 16 hexadecimal digits, the class, and 8 of a hash.

    `<name>_ignore.png` holds the pixels that do not count.

    Raises:
        FcamError: no masks below the folder.
    """
    if not folder.is_dir():
        raise FcamError(f"there is no folder of masks at {folder}; check the path")
    groups: dict[Path, list[Path]] = {}
    for path in sorted(folder.rglob("*.png")):
        if not path.stem.endswith("_ignore"):
            several = _ONE_OF_SEVERAL.fullmatch(path.stem)
            image = several["image"] if several else path.stem
            groups.setdefault(path.with_name(image), []).append(path)
    if not groups:
        raise FcamError(f"{folder} holds no masks; expected PNG files, white on objects")
    geometry: Geometry = EvalTransform(size).geometry((size, size), np.random.default_rng(0))

    def read() -> Iterator[Truth]:
        for image, masks in groups.items():
            objects = np.logical_or.reduce([geometry.mask(open_mask(path)) for path in masks])
            ignore = image.with_name(f"{image.name}_ignore.png")
            ignored = geometry.mask(open_mask(ignore)) if ignore.is_file() else np.zeros_like(objects)
            mask = np.where(objects, 1, np.where(ignored, IGNORE, 0)).astype(np.uint8)
            yield Truth(torch.from_numpy(mask), None)

    return read(), len(groups)


def _stride(folder: Path) -> int:
    """Input pixels per pixel of the map that the run's CAM is read from."""
    config, _ = checkpoint.read(folder / "model")
    try:
        return int(
            config["classifier"]["taps"][-1]["stride"] if "classifier" in config else config["output_stride"]
        )
    except (LookupError, TypeError, ValueError) as error:
        raise FcamError(
            f"{folder / 'model' / checkpoint.CONFIG} does not say the stride of the CAM ({error}); restore the file"
        ) from error


def measured(folder: Path) -> dict[str, Any]:
    """CAM and F-CAM of a run, with the factor z that belongs to each.

    Raises:
        FcamError: the folder is not that of a finished run.
    """
    config = load_config(folder)
    report = Run(folder).report()
    if report is None:
        raise FcamError(f"{folder} holds no numbers; name a finished run")
    stride = {"cam": _stride(folder), "fcam": 1}
    maps = {}
    for kind, z in stride.items():
        row = report["maps"].get(kind)
        if row is not None:
            box = row["max_box_acc"]
            maps[kind] = {"z": z, "pxap": row["pxap"], "max_box_acc": None if box is None else box["0.5"]}
    data = Path(config.data).name
    return {
        "run": folder.name,
        "data": data,
        "method": config.method,
        "split": report["split"],
        "side": config.crop,
        "maps": maps,
    }
