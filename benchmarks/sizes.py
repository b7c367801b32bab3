"""What the shipped model, or a run, gains and loses on larger images, and by averaging over mirrored ones; prints Markdown.

    python benchmarks/sizes.py --data ../shared/data --split val
    python benchmarks/sizes.py --data ../shared/data --split val --model runs/photo_sets/cub10-cam-0 --sets cub10

Maps of the four photo sets at several sizes of the network's input, brought back to 224x224 and scored there, and the
share of `imagenette10`'s photos whose first class of all 1000 is right. Flips: the mean of the map and the mirrored map
of the mirrored photo.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from timm.data import ImageNetInfo  # pyright: ignore[reportPrivateImportUsage]
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

from fcam.data import EvalTransform, LocalizationDataset, collate, open_dataset
from fcam.model import FCAM
from fcam.progress import say
from fcam.scores import MapScores
from photo_sets import HEADLINE, number

SIDE = 224
BATCH = 16


def opened(root: Path, split: str, size: int) -> LocalizationDataset:
    """A split at one size of the network's input."""
    return open_dataset(str(root), split, transform=EvalTransform(size), localization=True)


@torch.inference_mode()
def maps_at(model: FCAM, dataset: LocalizationDataset, flips: bool) -> tuple[Tensor, Tensor]:
    """Maps (N, 224, 224) of all images of `dataset`, and the classes ranked first (N,)."""
    maps, first = [], []
    for batch in DataLoader(dataset, batch_size=BATCH, collate_fn=collate):  # type: ignore[arg-type]
        images = batch["image"].to(memory_format=torch.channels_last).float().div_(255)
        out = model(images)
        one = out.maps.softmax(1)[:, 1:]
        if flips:
            one = (one + model(images.flip(-1)).maps.softmax(1)[:, 1:].flip(-1)) / 2
        maps.append(F.interpolate(one, (SIDE, SIDE), mode="bilinear", antialias=True)[:, 0].clamp(0, 1))
        first.append(out.logits.argmax(1))
    return torch.cat(maps), torch.cat(first)


def score(maps: Tensor, dataset: LocalizationDataset, metric: str) -> float:
    """The set's metric of maps (N, 224, 224) at the split's own best threshold, in percent."""
    card = MapScores(dataset.has_boxes, dataset.has_masks, torch.device("cpu"), classes=False)
    for index, batch in enumerate(DataLoader(dataset, batch_size=BATCH, collate_fn=collate)):  # type: ignore[arg-type]
        card.update(maps[index * BATCH : (index + 1) * BATCH], None, None, batch)
    return number(card.report(), metric)


def imagenet_accuracy(first: Tensor, dataset: LocalizationDataset) -> float:
    """Share of first classes that are right, in percent; classes are named by their WordNet ids."""
    known = {name: i for i, name in enumerate(ImageNetInfo().label_names())}
    right = [known[dataset.classes[label].split("_")[0]] for label in dataset.labels]
    return 100 * float((first == torch.tensor(right)).float().mean())


def main() -> None:
    """One row per set, one column per size and way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the four sets")
    parser.add_argument("--split", default="val", choices=("val", "test"))
    parser.add_argument("--sizes", type=int, nargs="+", default=(224, 256, 288, 352))
    parser.add_argument("--model", default="lite0", help="run or model folder")
    parser.add_argument("--sets", nargs="+", default=list(HEADLINE), choices=list(HEADLINE))
    arguments = parser.parse_args()
    model = FCAM.from_pretrained(arguments.model).eval()
    ways = [(size, flips) for flips in (False, True) for size in arguments.sizes]
    print("| set | metric | " + " | ".join(f"{size}{', flips' if f else ''}" for size, f in ways) + " |")
    print("|---|---|" + "--:|" * len(ways))
    for name in arguments.sets:
        metric = HEADLINE[name]
        truth = opened(arguments.data / name, arguments.split, SIDE)
        values: list[float] = []
        labels: list[float] = []
        for size, flips in ways:
            maps, first = maps_at(model, opened(arguments.data / name, arguments.split, size), flips)
            values.append(score(maps, truth, metric))
            if name == "imagenette10" and model.classifier.num_classes == 1000:
                labels.append(imagenet_accuracy(first, truth))
            say(f"{name} at {size}, flips {flips}: {values[-1]:.1f}")
        print(f"| {name} | {metric} | " + " | ".join(f"{value:.1f}" for value in values) + " |", flush=True)
        if labels:
            print(f"| {name} | top-1 of 1000 | " + " | ".join(f"{value:.1f}" for value in labels) + " |")


if __name__ == "__main__":
    main()
