"""What `fcam predict` gains by mirrored, refined and closer looks and by the CAM, filled in or multiplied; prints Markdown.

    python benchmarks/ways.py --data ../shared/data --split test

Boxes: share of photos whose one predicted box overlaps a true box by half or more. Masks: mean overlap with the true mask. Both
at the photo's own size and the model's own threshold, once per set and once by the share of the photo that its largest true box
fills. Time: of all photos in one process, from the photo to its boxes, as a multiple of the first way's.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import fcam
from fcam.boxes import box_iou
from fcam.data import LocalizationDataset, open_dataset
from fcam.predict import Prediction
from fcam.predict.ways import Ways
from photo_sets import HEADLINE

WAYS = ("", "fill", "flip", "refine", "zoom", "refine zoom", "flip refine zoom", "fill flip refine zoom")
SIZES = (0.1, 0.25, 0.5)
Values = dict[tuple[str, str], list[float]]


def measure(localizer: fcam.Localizer, dataset: LocalizationDataset, name: str, values: Values) -> float:
    """Add the results of all photos of a split to `values`; return the seconds that the predictions took."""
    spent = 0.0
    for start in range(0, len(dataset), localizer.batch_size):
        items = [dataset[i] for i in range(start, min(start + localizer.batch_size, len(dataset)))]
        began = time.perf_counter()
        found = localizer([item["image"] for item in items])
        spent += time.perf_counter() - began
        for item, prediction in zip(items, found, strict=True):
            compare(item, prediction, name, values)
    return spent


def compare(item: dict[str, Any], found: Prediction, name: str, values: Values) -> None:
    """Add a photo's result to the rows of its set and, where it has boxes, of its object's size."""
    true = item.get("boxes", ())
    if len(true):
        box = torch.from_numpy(found.boxes) - torch.tensor([0, 0, 1, 1])
        right = 100.0 * bool(len(box) and (box_iou(box, true) >= 0.5).any())
        values[name, "boxes"].append(right)
        area = ((true[:, 2] - true[:, 0] + 1) * (true[:, 3] - true[:, 1] + 1)).max().item()
        share = area / (found.size[0] * found.size[1])
        values[_sized(sum(share > limit for limit in SIZES)), "boxes"].append(right)
    if "mask" in item:
        own, counts = torch.from_numpy(found.mask), item["mask"] != 255
        mask = item["mask"] == 1
        both, either = (own & mask & counts).sum().item(), ((own | mask) & counts).sum().item()
        values[name, "masks"].append(100 * both / max(either, 1))


def _sized(place: int) -> str:
    """What the photos between two neighbours of `SIZES` and the ends, 0 and 1, are called."""
    low, high = (0.0, *SIZES)[place], (*SIZES, 1.0)[place]
    return f"objects of {100 * low:.0f} to {100 * high:.0f} %"


def main() -> None:
    """One row per set and truth and per size of object, one column per way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the four sets")
    parser.add_argument("--split", default="val", choices=("val", "test"))
    parser.add_argument("--model", default="lite0", help="run or model folder")
    parser.add_argument("--sets", nargs="+", default=list(HEADLINE), choices=list(HEADLINE))
    parser.add_argument("--ways", nargs="+", default=list(WAYS), help="options, several of one way in quotes")
    arguments = parser.parse_args()
    columns: list[Values] = []
    seconds: list[float] = []
    for way in arguments.ways:
        localizer = fcam.Localizer(arguments.model, **asdict(Ways(**dict.fromkeys(way.split(), True))))
        values: Values = defaultdict(list)
        spent = 0.0
        for name in arguments.sets:
            dataset = open_dataset(str(arguments.data / name), arguments.split, localization=True)
            spent += measure(localizer, dataset, name, values)
        columns.append(values)
        seconds.append(spent)
        print(f"{way or 'one look'}: {spent:.0f} s", flush=True)
    print("| photos | images | what | " + " | ".join(way or "one look" for way in arguments.ways) + " |")
    print("|---|--:|---|" + "--:|" * len(columns))
    order = [*arguments.sets, *(_sized(place) for place in range(len(SIZES) + 1))]
    for (name, what), first in sorted(columns[0].items(), key=lambda row: order.index(row[0][0])):
        cells = " | ".join(f"{sum(own := values[name, what]) / len(own):.1f}" for values in columns)
        print(f"| {name} | {len(first)} | {what} | {cells} |")
    print("| time | | | " + " | ".join(f"{spent / seconds[0]:.1f}" for spent in seconds) + " |")


if __name__ == "__main__":
    main()
