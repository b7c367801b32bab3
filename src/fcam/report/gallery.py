"""Panels of test images: photo, the CAM, F-CAM, and prediction against truth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fcam import draw
from fcam.data import LocalizationDataset, collate
from fcam.evaluate import KINDS, score_maps
from fcam.model import FCAM
from fcam.prediction import cut

TITLES = ("image", "CAM it learned from", "F-CAM", "CAM: mask and box", "F-CAM: mask and box")


def spread(dataset: LocalizationDataset, count: int) -> list[int]:
    """Positions of `count` images, classes in turn and the first of each first: chosen by order, not by result."""
    by_class: dict[int, list[int]] = {}
    for index, label in enumerate(dataset.labels):
        by_class.setdefault(label, []).append(index)
    rounds = zip(*(iter(own) for own in by_class.values()), strict=False)
    return [index for one_each in rounds for index in one_each][:count]


@torch.inference_mode()
def sample_rows(
    model: FCAM,
    dataset: LocalizationDataset,
    indices: Sequence[int],
    method: str,
    thresholds: dict[str, float],
) -> list[list[Image.Image]]:
    """One row of pictures per image, under `TITLES`.

    Args:
        model: in eval mode.
        dataset: opened with localization.
        indices: positions in the split.
        method: CAM method.
        thresholds: by kind of map, relative to the map's maximum.

    Returns:
        rows of RGB pictures of the dataset's size.
    """
    batch = collate([dataset[i] for i in indices])
    device = next(model.parameters()).device
    maps, _ = score_maps(
        model, batch["image"].to(device).float() / 255, batch["label"].to(device), KINDS, method
    )
    return [
        _row(
            batch["image"][i],
            {kind: maps[kind][i].cpu() for kind in KINDS},
            batch["mask"][i].numpy() == 1 if "mask" in batch else None,
            batch["boxes"][i].numpy() if "boxes" in batch else None,
            thresholds,
        )
        for i in range(len(indices))
    ]


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
        array = maps[kind].numpy()
        mask, found = cut(array, thresholds[kind])
        row.append(draw.comparison(photo, mask, true_mask, found, true_boxes))
    return row
