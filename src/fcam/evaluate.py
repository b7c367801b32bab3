"""Evaluation: a model and a split in, the WSOL benchmark's numbers out, CAM and F-CAM side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from fcam.cams import center_gaussian, interpolated, normalize
from fcam.cams.forward import evaluating
from fcam.config import Precision
from fcam.data import EvalTransform, LocalizationDataset, collate, open_dataset, splits
from fcam.map_files import MapType, write_maps
from fcam.model import FCAM, foreground
from fcam.precision import autocast
from fcam.processes import process_state
from fcam.progress import epoch_bar
from fcam.quiet import quiet_decoders
from fcam.scores import Scorecard

KINDS = ("cam", "fcam")
FLOOR = "center"
"""Kind of map that stands below every table: what is reached without looking at the image."""


@dataclass(frozen=True)
class MapOptions:
    """How the maps of a split are computed."""

    method: str = "cam"
    """CAM method, `variant` its formula."""
    variant: str = "published"
    batch_size: int = 32
    precision: Precision = "no"
    """Number format of the network; maps are float32."""
    workers: int = 2
    """Processes that load images; 0 loads them here."""
    seed: int = 0
    """Seed of the noise that some methods add to the images."""


def score_maps(
    model: FCAM,
    images: Tensor,
    labels: Tensor,
    kinds: Sequence[str] = KINDS,
    method: str = "cam",
    variant: str = "published",
    generator: torch.Generator | None = None,
) -> tuple[dict[str, Tensor], Tensor]:
    """Localization maps of a batch and its logits, from one forward of the backbone.

    The CAM is that of the true class, normalised and then interpolated; F-CAM is the foreground softmax as it
    is, as the authors' code has them.

    Args:
        images: (B, 3, H, W) in [0, 1].
        labels: (B,) true classes.
        kinds: of "cam", "fcam" and "center", the centre Gaussian that needs no model.

    Returns:
        maps by kind, each (B, H, W) float32 in [0, 1], and logits (B, K) float32.
    """
    maps: dict[str, Tensor] = {}
    if "fcam" in kinds:
        out = model(images)
        logits, features = out.logits, out.features
        maps["fcam"] = foreground(out.maps)
    else:
        logits, features = model.classifier(images)
    if "center" in kinds:
        floor = normalize(center_gaussian(*images.shape[-2:], device=images.device)[None])
        maps["center"] = floor.expand(len(images), -1, -1)
    if "cam" in kinds:
        maps["cam"] = interpolated(model.classifier, images, features[-1], labels, method, variant, generator)
    return {kind: maps[kind] for kind in kinds}, logits.float()


class MapBatch(NamedTuple):
    """A batch on its way through a split: collated items, maps by kind (B, H, W), logits (B, K)."""

    items: dict[str, Any]
    maps: dict[str, Tensor]
    logits: Tensor


@torch.inference_mode()
def maps_of(
    model: FCAM, dataset: Dataset[Any], kinds: Sequence[str], options: MapOptions, title: str
) -> Iterator[MapBatch]:
    """Go once through images in order; the model is in eval mode meanwhile, and a bar called `title` is shown.

    Args:
        dataset: a `LocalizationDataset` opened with `localization=True` and an `EvalTransform`, or a part of one.
        kinds: as in `score_maps`.
    """
    device = next(model.parameters()).device
    loader = DataLoader(
        dataset,
        batch_size=options.batch_size,
        collate_fn=collate,
        num_workers=options.workers,
        worker_init_fn=quiet_decoders,
    )
    with evaluating(model), epoch_bar(title, len(loader), process_state().is_main_process) as bar:
        for number, batch in enumerate(loader):
            images = batch["image"].to(device, memory_format=torch.channels_last).float().div_(255)
            labels = batch["label"].to(device)
            generator = torch.Generator(device=device).manual_seed(options.seed * 1_000_003 + number)
            with autocast(options.precision, device):
                maps, logits = score_maps(
                    model, images, labels, kinds, options.method, options.variant, generator
                )
            yield MapBatch(batch, maps, logits)
            bar.advance(len(images))


def evaluate_split(
    model: FCAM,
    dataset: LocalizationDataset,
    kinds: Sequence[str] = KINDS,
    options: MapOptions | None = None,
    save_maps: Path | None = None,
    map_type: MapType = "float16",
    title: str = "evaluate",
) -> Scorecard:
    """Score every image of a split; under several processes each takes its share and the states are summed.

    Args:
        dataset: opened with `localization=True` and an `EvalTransform`.
        save_maps: folder for one `.npy` per image and kind, in wsolevaluation's layout.
        map_type: number format of these files; float32 scores exactly as the model does.

    Returns:
        the scorecard of the whole split, the same on every process.
    """
    state = process_state()
    share = Subset(dataset, range(state.process_index, len(dataset), state.num_processes))  # type: ignore[arg-type]
    card = Scorecard(dataset, kinds, device=next(model.parameters()).device)
    for items, maps, logits in maps_of(model, share, kinds, options or MapOptions(), title):
        card.update(maps, logits, items)
        if save_maps is not None:
            write_maps(save_maps, maps, items["image_id"], map_type)
    return card


def has_truth_for(metric: str, root: str) -> bool:
    """Whether `val` of a data set holds what `metric` needs: images at all, boxes, or masks."""
    if "val" not in splits(root):
        return False
    val = open_dataset(root, "val", localization=True)
    if metric == "top1":
        return len(val) > 0
    return val.has_masks if metric == "pxap" else val.has_boxes


def evaluate(
    model: FCAM,
    root: str,
    split: str = "test",
    size: int = 224,
    options: MapOptions | None = None,
    carry_from: str = "val",
    save_maps: Path | None = None,
    map_type: MapType = "float16",
) -> dict[str, Any]:
    """Score a split, and carry the best thresholds of another one over to it.

    Args:
        root: data set.
        split: split to report on.
        size: side that images are resized to.
        carry_from: split whose thresholds are carried over; they also become the model's own, for prediction.
        save_maps: as in `evaluate_split`, for `split` alone; `map_type` likewise.

    Returns:
        the content of `metrics.json`.
    """
    kinds = (*KINDS, FLOOR) if model.metadata.get("decoder_trained", True) else (KINDS[0], FLOOR)
    known = splits(root)
    cards = {}
    for name in dict.fromkeys((carry_from, split)):
        if name == carry_from != split and name not in known:
            continue
        dataset = open_dataset(root, name, transform=EvalTransform(size), localization=True)
        folder = save_maps if name == split else None
        cards[name] = evaluate_split(model, dataset, kinds, options, folder, map_type, f"evaluate {name}")
    carried = cards.get(carry_from)
    if carried is not None:
        model.metadata["thresholds"] = carried.thresholds()
    return cards[split].report(split, carried if carry_from != split else None)
