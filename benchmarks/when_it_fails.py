"""Why F-CAM gains on one set and not on another; prints Markdown.

    python benchmarks/when_it_fails.py RUN --data SET --split val

Tables for one run: how often CAM, F-CAM and a centre Gaussian find a box (IoU 0.5, each at its own best threshold of the
split) by size, number and class of the true objects; how clean the seeds are; how large the maps' boxes are. All is measured
against the boxes of the split, which training never sees; use `val` while anything is still to be chosen.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fcam import boxes as box_tools
from fcam.config import SeedConfig
from fcam.data import EvalTransform, collate, open_dataset
from fcam.metrics.box_acc import best_iou, threshold_grid
from fcam.model import FCAM
from fcam.run import load_config
from fcam.seeds import foreground_region
from fcam.split_maps import score_maps

KINDS = ("cam", "fcam", "center")
COMBINED = ("product", "mean")
"""Of CAM and F-CAM, S · C and (S + C) / 2."""
GRID = threshold_grid(1000)
SHARES = ((0.0, 0.1), (0.1, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.01))


@dataclass
class Seen:
    """What is kept of every image; lists run over the images of the split."""

    iou: dict[str, list[np.ndarray]] = field(
        default_factory=lambda: {kind: [] for kind in (*KINDS, *COMBINED)}
    )
    predicted: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    area: list[float] = field(default_factory=list)
    share: list[float] = field(default_factory=list)
    objects: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    foreground: list[float] = field(default_factory=list)
    background: list[float] = field(default_factory=list)
    eroded_away: list[bool] = field(default_factory=list)

    def chosen(self, kind: str) -> int:
        """Index of the threshold that is best for this kind on the whole split."""
        return int((np.stack(self.iou[kind]) >= 0.5).mean(0).argmax())

    def right(self, kind: str) -> np.ndarray:
        """Whether each image's box is right at that threshold."""
        return np.stack(self.iou[kind])[:, self.chosen(kind)] >= 0.5


def inside(boxes: Tensor, height: int, width: int) -> Tensor:
    """(H, W) bool: pixels in any of the boxes."""
    region = torch.zeros(height, width, dtype=torch.bool)
    for x0, y0, x1, y1 in boxes.tolist():
        region[y0 : y1 + 1, x0 : x1 + 1] = True
    return region


def note_seeds(seen: Seen, cam: Tensor, truth: Tensor, config: SeedConfig) -> None:
    """Purity of the regions that seeds are drawn from, C⁺ and C⁻, for one image."""
    region = foreground_region(cam[None], config)[0]
    whole = foreground_region(cam[None], SeedConfig(**{**vars(config), "erosion": 1}))[0]
    lowest = cam.flatten().argsort()[: int(config.n_minus * cam.numel())]
    seen.foreground.append(float(truth[region].float().mean()) if region.any() else float("nan"))
    seen.background.append(float((~truth).flatten()[lowest].float().mean()))
    seen.eroded_away.append(config.erosion > 1 and bool((region == whole).all()))


@torch.inference_mode()
def look(run: Path, data: Path, split: str) -> tuple[Seen, SeedConfig, list[str]]:
    """Go once through the split; also returns the settings of the seeds and the names of the classes."""
    config = load_config(run)
    model = FCAM.from_pretrained(run).eval()
    dataset = open_dataset(data, split, transform=EvalTransform(config.crop), localization=True)
    seen = Seen()
    for batch in torch.utils.data.DataLoader(dataset, batch_size=32, collate_fn=collate):  # type: ignore[arg-type]
        images = batch["image"].float().div_(255)
        maps, _ = score_maps(model, images, batch["label"], KINDS, config.method, config.variant)
        height, width = images.shape[-2:]
        maps |= {"product": maps["cam"] * maps["fcam"], "mean": (maps["cam"] + maps["fcam"]) / 2}
        for kind in (*KINDS, *COMBINED):
            seen.iou[kind].extend(best_iou(maps[kind], batch["boxes"], GRID))
        for i, true_boxes in enumerate(batch["boxes"]):
            truth = inside(true_boxes, height, width)
            sides = (true_boxes[:, 2:] - true_boxes[:, :2] + 1).double()
            seen.share.append(float(sides.prod(1).max()) / (height * width))
            seen.area.append(float((maps["cam"][i] > 0.3).float().mean()))
            seen.objects.append(len(true_boxes))
            seen.labels.append(int(batch["label"][i]))
            note_seeds(seen, maps["cam"][i], truth, config.seeds)
        for kind in KINDS:
            seen.predicted[kind].extend(_map_of(maps[kind]))
    return seen, config.seeds, dataset.classes


def _map_of(maps: Tensor) -> list[float]:
    """Share of the image that the largest box at half of the maximum covers."""
    shares = []
    for one in maps:
        found = box_tools.from_map(one, 0.5).double()
        area = float((found[:, 2:] - found[:, :2]).prod(1).max()) if len(found) else 0.0
        shares.append(area / one.numel())
    return shares


def grouped(seen: Seen, names: list[str], which: Callable[[int], np.ndarray]) -> str:
    """Share of right boxes by group."""
    lines = ["| images | number | CAM | F-CAM | centre | lost | won |", "|---|--:|--:|--:|--:|--:|--:|"]
    right = {kind: seen.right(kind) for kind in KINDS}
    for index, name in enumerate(names):
        group = which(index)
        if not group.any():
            continue
        lost = int((right["cam"] & ~right["fcam"] & group).sum())
        won = int((~right["cam"] & right["fcam"] & group).sum())
        cells = [f"{100 * right[kind][group].mean():.1f}" for kind in KINDS]
        lines.append(f"| {name} | {group.sum()} | {' | '.join(cells)} | {lost} | {won} |")
    return "\n".join(lines)


def seed_table(seen: Seen, seeds: SeedConfig) -> str:
    """Purity of seeds by size of the largest object."""
    lines = [
        "| largest object | number | C⁺ inside a box | C⁻ outside all boxes | C⁺ too small to erode |",
        "|---|--:|--:|--:|--:|",
    ]
    share = np.array(seen.share)
    for low, high in (*SHARES, (0.0, 1.01)):
        group = (share >= low) & (share < high)
        if group.any():
            means = [
                np.nanmean(np.array(v)[group]) for v in (seen.foreground, seen.background, seen.eroded_away)
            ]
            name = "all" if (low, high) == (0.0, 1.01) else f"{low:.0%} to {min(high, 1):.0%}"
            lines.append(
                f"| {name} | {group.sum()} | " + " | ".join(f"{100 * m:.0f} %" for m in means) + " |"
            )
    return "\n".join(lines)


def combined(seen: Seen) -> str:
    """Box accuracy at three overlaps of both maps and of their combinations, each at its own best threshold."""
    lines = ["| map | 0.3 | 0.5 | 0.7 |", "|---|--:|--:|--:|"]
    for kind in ("cam", "fcam", *COMBINED):
        best = [100 * (np.stack(seen.iou[kind]) >= iou).mean(0).max() for iou in (0.3, 0.5, 0.7)]
        lines.append(f"| {kind} | " + " | ".join(f"{value:.1f}" for value in best) + " |")
    return "\n".join(lines)


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Spearman's, without ties."""
    ranks = [np.argsort(np.argsort(values)) for values in (a, b)]
    return float(torch.corrcoef(torch.from_numpy(np.stack(ranks)).double())[0, 1])


def main() -> None:
    """Look, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--split", default="val", choices=("val", "test"))
    arguments = parser.parse_args()
    seen, seeds, classes = look(arguments.run, arguments.data, arguments.split)
    share, objects = np.array(seen.share), np.array(seen.objects)
    print(
        f"{len(share)} images of {arguments.split}\n\nBy size of the largest true box, as a share of the image:\n"
    )
    names = [f"{low:.0%} to {min(high, 1):.0%}" for low, high in SHARES] + ["all"]
    spans = (*SHARES, (0.0, 1.01))
    print(grouped(seen, names, lambda i: (share >= spans[i][0]) & (share < spans[i][1])))
    print("\nBy number of true boxes:\n")
    print(grouped(seen, ["1", "2", "3 and more"], lambda i: np.minimum(objects, 3) == i + 1))
    print("\nBy class:\n")
    print(grouped(seen, classes, lambda i: np.array(seen.labels) == i))
    print("\nBoth maps together:\n")
    print(combined(seen))
    rho = rank_correlation(seen.area, seen.share)
    print(f"\nRank correlation of the CAM's area above 0.3 with the size of the largest object: {rho:.2f}")
    print("\nSeeds:\n")
    print(seed_table(seen, seeds))
    quartiles = {"true": share} | {kind: np.array(seen.predicted[kind]) for kind in ("cam", "fcam")}
    print("\nShare of the image that a box covers (true: the largest; maps: at half of the maximum):\n")
    print("| box of | lower quartile | median | upper quartile |\n|---|--:|--:|--:|")
    for name, values in quartiles.items():
        print(f"| {name} | " + " | ".join(f"{q:.2f}" for q in np.quantile(values, (0.25, 0.5, 0.75))) + " |")


if __name__ == "__main__":
    main()
