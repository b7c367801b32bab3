"""Boxes and masks of the shipped model, or of a run, when its map is cut at several shares of its maximum; prints Markdown.

    python benchmarks/thresholds.py --data ../shared/data --split val

MaxBoxAcc at IoU 0.5 where the set has boxes, and the mean overlap of each photo's mask with the true one where it has masks.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from fcam.data import LocalizationDataset, collate
from fcam.metrics import MaxBoxAcc
from fcam.model import FCAM
from photo_sets import HEADLINE
from sizes import BATCH, SIDE, maps_at, opened


def rows(maps: Tensor, dataset: LocalizationDataset, shares: Sequence[float]) -> dict[str, list[float]]:
    """Percent at every share: "boxes" and "masks", as far as the set has them."""
    accuracy, overlaps = MaxBoxAcc(iou=(0.5,)), []
    for index, batch in enumerate(DataLoader(dataset, batch_size=BATCH, collate_fn=collate)):  # type: ignore[arg-type]
        own = maps[index * BATCH : (index + 1) * BATCH]
        if dataset.has_boxes:
            accuracy.update(own, batch["boxes"])
        if dataset.has_masks:
            overlaps.append(torch.stack([overlap(own, share, batch["mask"]) for share in shares]))
    found = {}
    if dataset.has_boxes:
        found["boxes"] = [accuracy.at_threshold(torch.tensor([share])).item() for share in shares]
    if overlaps:
        found["masks"] = (100 * torch.cat(overlaps, dim=1).mean(1)).tolist()
    return found


def overlap(maps: Tensor, share: float, masks: Tensor) -> Tensor:
    """IoU (B,) of maps (B, H, W) cut at a share of their maximum with masks (B, H, W), ignored pixels aside."""
    own, true, counts = maps >= share * maps.amax((1, 2), keepdim=True), masks == 1, masks != 255
    both, either = (own & true & counts).sum((1, 2)), ((own | true) & counts).sum((1, 2))
    return both / either.clamp(min=1)


def main() -> None:
    """One row per set and truth, one column per share."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the four sets")
    parser.add_argument("--split", default="val", choices=("val", "test"))
    parser.add_argument("--shares", type=float, nargs="+", default=(0.2, 0.35, 0.5, 0.7, 0.8, 0.9, 0.95))
    parser.add_argument("--model", default="lite0", help="run or model folder")
    parser.add_argument("--sets", nargs="+", default=list(HEADLINE), choices=list(HEADLINE))
    arguments = parser.parse_args()
    model = FCAM.from_pretrained(arguments.model).eval()
    print("| set | truth | " + " | ".join(f"{share:g}" for share in arguments.shares) + " |")
    print("|---|---|" + "--:|" * len(arguments.shares))
    for name in arguments.sets:
        dataset = opened(arguments.data / name, arguments.split, SIDE)
        maps, _ = maps_at(model, dataset, flips=False)
        for truth, values in rows(maps, dataset, arguments.shares).items():
            cells = " | ".join(f"{value:.1f}" for value in values)
            print(f"| {name} | {truth} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
