"""The maps of every image of a split: the CAM, F-CAM as it is or looked at in other ways, and the floor below both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from fcam.cams import center_gaussian, interpolated, normalize
from fcam.cams.forward import evaluating
from fcam.config import Precision
from fcam.data import LocalizationDataset, collate
from fcam.data.workers import deaths_explained
from fcam.model import FCAM, foreground
from fcam.precision import autocast
from fcam.predict.localizer import Localizer
from fcam.predict.network import NetworkOutput
from fcam.predict.prediction import to_size
from fcam.predict.ways import product
from fcam.processes import process_state
from fcam.progress import epoch_bar
from fcam.quiet import quiet_decoders

KINDS = ("cam", "fcam")


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
        kinds: of "cam", "fcam", "product", F-CAM's map where the CAM is, and "center", the centre Gaussian that needs no model.

    Returns:
        maps by kind, each (B, H, W) float32 in [0, 1], and logits (B, K) float32.
    """
    maps: dict[str, Tensor] = {}
    if "fcam" in kinds or "product" in kinds:
        out = model(images)
        logits, features = out.logits, out.features
        maps["fcam"] = foreground(out.maps)
    else:
        logits, features = model.classifier(images)
    if "center" in kinds:
        floor = normalize(center_gaussian(*images.shape[-2:], device=images.device)[None])
        maps["center"] = floor.expand(len(images), -1, -1)
    if "cam" in kinds or "product" in kinds:
        maps["cam"] = interpolated(model.classifier, images, features[-1], labels, method, variant, generator)
    if "product" in kinds:
        maps["product"] = product(maps["fcam"], maps["cam"])
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
    loader = _loader(dataset, options)
    shown = process_state().is_main_process
    with evaluating(model), epoch_bar(title, len(loader), shown) as bar, deaths_explained():
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


@torch.inference_mode()
def looks_of(
    localizer: Localizer, dataset: LocalizationDataset, share: Sequence[int], options: MapOptions, title: str
) -> Iterator[MapBatch]:
    """Go through images as `maps_of` does, and look at each in the localizer's ways, at its true class.

    The one kind of map is `localizer.ways.kind`; what was seen closer is put in at the photo's own size, and the whole
    brought to the size of the others.

    Args:
        share: places in `dataset` of the images to go through.
    """
    loader = _loader(Subset(dataset, share), options)  # type: ignore[arg-type]
    with epoch_bar(title, len(loader), process_state().is_main_process) as bar, deaths_explained():
        for batch in loader:
            logits, maps, _ = localizer.see(batch["image"], batch["label"])
            if localizer.ways.zoom:
                maps = _closer(localizer, dataset, batch, maps)
            yield MapBatch(batch, {localizer.ways.kind: maps}, logits)
            bar.advance(len(maps))


def _closer(
    localizer: Localizer, dataset: LocalizationDataset, batch: dict[str, Any], maps: Tensor
) -> Tensor:
    """Maps (B, h, w) with what a closer look at the photos of the batch saw."""
    photos = [dataset.photo(place) for place in batch["index"].tolist()]
    first = [
        NetworkOutput(label, 1.0, map, None)
        for label, map in zip(batch["label"].tolist(), maps.cpu(), strict=True)
    ]
    side, found = (maps.shape[2], maps.shape[1]), []
    for photo, output in zip(photos, localizer.look_closer(photos, first), strict=True):
        whole = torch.from_numpy(localizer.map_of(photo.size, output))
        found.append(to_size(whole, side))
    return torch.from_numpy(np.stack(found)).to(maps.device)


def _loader(dataset: Dataset[Any], options: MapOptions) -> DataLoader[Any]:
    return DataLoader(
        dataset,
        batch_size=options.batch_size,
        collate_fn=collate,
        num_workers=options.workers,
        worker_init_fn=quiet_decoders,
    )
