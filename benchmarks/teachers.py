"""How good the masks are that a run's decoder would learn from if it were sharpened; prints Markdown.

    python benchmarks/teachers.py runs/photo_sets/cub10-cam-0 runs/photo_sets/cub10-slow-cam-0 --split val

A teacher's mask is cut once, at the run's own threshold, and compared with the truth of a split: the share of photos whose box
overlaps a true one by 0.5 and by 0.7, and the mean overlap of masks where the set has them. Three masks: that of the map as it
is, the one cut out of its photo, and the one whose map was raised by the CAM of the photo's class before. Takes the extra
grabcut.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from fcam.config import Sharpener
from fcam.data import EvalTransform, collate, open_dataset
from fcam.metrics import MaxBoxAcc
from fcam.model import FCAM
from fcam.model_card import card_threshold
from fcam.run import load_config
from fcam.seeds import SeedMaps
from fcam.sharpen import cut_maps, sharp_maps
from fcam.stages import class_maps_of, maps_of
from thresholds import overlap

OVERLAPS = (0.5, 0.7)
BATCH = 16


def teachers(model: FCAM, run: Path, by: Sharpener) -> dict[str, SeedMaps]:
    """The three kinds of mask by name."""
    threshold, own = card_threshold(model.metadata), maps_of(model.decoder)
    cams = class_maps_of(model, load_config(run))

    def nothing(images: Tensor, *_: object) -> Tensor:
        return images.new_zeros((len(images), *images.shape[-2:]))

    def cut(images: Tensor, features: Sequence[Tensor], labels: Tensor) -> Tensor:
        return cut_maps(own(images, features, labels), threshold)

    return {
        "map": cut,
        by: sharp_maps(own, nothing, threshold, by),
        f"raised by CAM, {by}": sharp_maps(own, cams, threshold, by),
    }


@torch.inference_mode()
def scores(run: Path, data: str, split: str, by: Sharpener) -> dict[str, list[float]]:
    """Percentages of each kind of mask: boxes at both overlaps, then masks, as far as the split has them."""
    config, model = load_config(run), FCAM.from_pretrained(str(run)).eval()
    dataset = open_dataset(
        data or config.data, split, transform=EvalTransform(config.crop), localization=True
    )
    kinds = teachers(model, run, by)
    boxes = {kind: MaxBoxAcc(iou=OVERLAPS) for kind in kinds}
    masks: dict[str, list[Tensor]] = {kind: [] for kind in kinds}
    for batch in DataLoader(dataset, batch_size=BATCH, collate_fn=collate):  # type: ignore[arg-type]
        images = batch["image"].contiguous(memory_format=torch.channels_last).float() / 255
        features = model.classifier(images).features
        for kind, teacher in kinds.items():
            own = teacher(images, features, batch["label"])
            if dataset.has_boxes:
                boxes[kind].update(own, batch["boxes"])
            if dataset.has_masks:
                masks[kind].append(overlap(own, 0.5, batch["mask"]))
    found: dict[str, list[float]] = {}
    for kind in kinds:
        found[kind] = boxes[kind].at_threshold(torch.tensor([0.5] * 2)).tolist() if dataset.has_boxes else []
        found[kind] += [100 * torch.cat(masks[kind]).mean().item()] if dataset.has_masks else []
    return found


def main() -> None:
    """One row per run and kind of mask."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, help="runs before they are sharpened")
    parser.add_argument("--data", default="", help="data set; default: that of each run")
    parser.add_argument("--split", default="val", choices=("val", "test"))
    parser.add_argument("--by", default="grabcut", choices=("refine", "grabcut"))
    arguments = parser.parse_args()
    print(f"| run | mask | boxes @{OVERLAPS[0]}, @{OVERLAPS[1]}, masks |\n|---|---|---|")
    for run in arguments.runs:
        for kind, values in scores(run, arguments.data, arguments.split, arguments.by).items():
            print(
                f"| {run.name} | {kind} | " + ", ".join(f"{value:.1f}" for value in values) + " |", flush=True
            )


if __name__ == "__main__":
    main()
