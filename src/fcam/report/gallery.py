"""Panels of test images: photo, the CAM, F-CAM, and prediction against truth."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fcam import draw
from fcam.config import TrainConfig
from fcam.data import LocalizationDataset, collate
from fcam.model import FCAM
from fcam.predict.prediction import cut
from fcam.report.curves import Measure
from fcam.split_maps import KINDS, score_maps

TITLES = ("image", "CAM it learned from", "F-CAM", "CAM: mask and box", "F-CAM: mask and box")


def spread(dataset: LocalizationDataset, count: int) -> list[int]:
    """Positions of `count` images, classes in turn and the first of each first: chosen by order, not by result."""
    by_class: dict[int, list[int]] = {}
    for index, label in enumerate(dataset.labels):
        by_class.setdefault(label, []).append(index)
    rounds = itertools.zip_longest(*by_class.values())
    return [index for one_each in rounds for index in one_each if index is not None][:count]


@torch.inference_mode()
def sample_rows(
    model: FCAM,
    dataset: LocalizationDataset,
    indices: Sequence[int],
    config: TrainConfig,
    thresholds: dict[str, float],
    measure: Measure,
) -> list[list[Image.Image]]:
    """One row of pictures per image, under `TITLES`.

    Args:
        model: in eval mode.
        dataset: opened with localization.
        indices: positions in the split.
        config: of the run: method, variant and seed of its CAM.
        thresholds: by kind of map, as `measure` has them: relative to the map's maximum for boxes, values for masks.

    Returns:
        rows of RGB pictures of the dataset's size.
    """
    batch = collate([dataset[i] for i in indices])
    device = next(model.parameters()).device
    images, labels = batch["image"].to(device).float() / 255, batch["label"].to(device)
    generator = torch.Generator(device=device).manual_seed(config.seed)
    maps, _ = score_maps(model, images, labels, KINDS, config.method, config.variant, generator)
    return [
        _row(
            batch["image"][i],
            {kind: maps[kind][i].cpu() for kind in KINDS},
            batch["mask"][i].numpy() == 1 if "mask" in batch else None,
            batch["boxes"][i].numpy() if "boxes" in batch else None,
            thresholds if measure == "box" else {k: _share(maps[k][i], t) for k, t in thresholds.items()},
        )
        for i in range(len(indices))
    ]


def _share(one: Tensor, value: float) -> float:
    """What share of a map's maximum `value` is; 1 where the map does not reach it, so that nothing lies above."""
    return min(value / max(float(one.max()), 1e-12), 1.0)


def _row(
    image: Tensor,
    maps: dict[str, Tensor],
    true_mask: np.ndarray | None,
    true_boxes: np.ndarray | None,
    thresholds: dict[str, float],
) -> list[Image.Image]:
    photo = Image.fromarray(image.permute(1, 2, 0).numpy())
    row = [photo, *(draw.heat(photo, maps[kind].numpy()) for kind in KINDS)]
    for kind in KINDS:
        array, threshold = maps[kind].numpy(), thresholds[kind]
        mask, found = cut(array, threshold) if threshold < 1 else cut(np.zeros_like(array), 0.0)
        row.append(draw.comparison(photo, mask, true_mask, found, true_boxes))
    return row
