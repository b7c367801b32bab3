"""Is it F-CAM, or is it the further look? The CAM, F-CAM and their product, each refined and seen closer; prints Markdown.

    python benchmarks/looks.py RUN --data SET --split val

MaxBoxAcc at three overlaps and MaxBoxAccV2, each at the split's best threshold, as `fcam evaluate` has them. The CAM takes the
further looks that F-CAM takes with `fcam evaluate --refine --zoom`: by the same code, cut where one look is best on `val`.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fcam.data import EvalTransform, LocalizationDataset, open_dataset
from fcam.model import FCAM, FCAMOutput
from fcam.predict import Localizer
from fcam.predict.network import Network
from fcam.predict.ways import Ways
from fcam.run import load_config
from fcam.scores import IOU, Scorecard, title
from fcam.split_maps import MapOptions, looks_of

MAPS = ("cam", "fcam", "product")
WAYS = ("", "refine", "zoom", "refine zoom")
SURE = 30.0
"""Logit of a foreground of one."""


class Everywhere(Network):
    """A network whose own map is one everywhere: its product with the CAM is the CAM's root, which cuts as the CAM does."""

    def _forward(self, batch: torch.Tensor) -> FCAMOutput:
        out = super()._forward(batch)
        maps = torch.zeros_like(out.maps)
        maps[:, 1] = SURE
        return out._replace(maps=maps)


def localizer_of(model: FCAM, kind: str, way: str, size: int) -> Localizer:
    """Looks at one kind of map in one way; both thresholds are those of the run's card."""
    ways = Ways(product=kind != "fcam", **dict.fromkeys(way.split(), True))
    found = Localizer(model, size=size, **asdict(ways))
    if kind == "cam":
        own = found.network
        found.network = Everywhere(
            model,
            own.module,
            own.device,
            own.dtype,
            own.cam_method,
            model.metadata.get("variant", "published"),
        )
        found.first_cut = model.metadata["thresholds"]["cam"]["max_box_acc"]["0.5"] ** 0.5
    return found


def score(
    localizer: Localizer, dataset: LocalizationDataset, options: MapOptions, name: str
) -> dict[str, Any]:
    """The row of `metrics.json` for maps that are looked at so."""
    kind = localizer.ways.kind
    card = Scorecard(dataset, (kind,), localizer.device)
    for items, maps, logits in looks_of(localizer, dataset, range(len(dataset)), options, name):
        card.update(maps, logits, items)
    return card.report(dataset.split.name)["maps"][kind]


def main() -> None:
    """One row per map and way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--split", default="val", choices=("val", "test"))
    parser.add_argument("--maps", nargs="+", default=list(MAPS), choices=MAPS)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), help="options, several of one way in quotes")
    arguments = parser.parse_args()
    config = load_config(arguments.run)
    model = FCAM.from_pretrained(arguments.run).eval()
    transform = EvalTransform(config.crop)
    dataset = open_dataset(arguments.data, arguments.split, transform=transform, localization=True)
    options = MapOptions(config.method, config.variant, workers=0, seed=config.seed)
    print(
        f"| {arguments.split}, {len(dataset)} images | 0.3 | 0.5 | 0.7 | V2 |\n|---|--:|--:|--:|--:|",
        flush=True,
    )
    for kind in arguments.maps:
        for way in arguments.ways:
            row = score(localizer_of(model, kind, way, config.crop), dataset, options, f"{kind} {way}")
            cells = [row["max_box_acc"][f"{iou:g}"] for iou in IOU] + [row["max_box_acc_v2"]]
            name = title("+".join([kind, *way.split()]))
            print(f"| {name} | " + " | ".join(f"{cell:.1f}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
