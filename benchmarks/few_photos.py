"""How far a handful of photos goes: a recipe on the first N training photos of every class; prints a Markdown row.

    python benchmarks/few_photos.py cub10-lite0-cam --data ../shared/data/cub10 --per-class 10 --out runs/few

`val` and `test` stay whole; the row is on `test`. A finished run is not repeated, an interrupted one goes on.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path

from fcam import files
from fcam.config import StageConfig
from fcam.data import wsol
from fcam.recipes import recipe
from fcam.train import train
from photo_sets import number


def take(source: Path, root: Path, count: int) -> None:
    """Write `root`: `source`, in the layout of wsolevaluation, with `count` training photos of every class."""
    if (root / "classes.txt").exists():
        return
    root.mkdir(parents=True, exist_ok=True)
    for name in ("metadata", "metadata_masks"):
        if (source / name).is_dir():
            shutil.copytree(source / name, root / name, dirs_exist_ok=True)
    lists = source / "metadata" / "train"
    labels, seen, kept = wsol.read_labels(lists), Counter(), []
    for image_id in wsol.read_ids(lists):
        seen[labels[image_id]] += 1
        if seen[labels[image_id]] <= count:
            kept.append(image_id)
    files.write_text(root / "metadata/train/image_ids.txt", "".join(f"{i}\n" for i in kept))
    for entry in source.iterdir():
        if entry.is_dir() and not entry.name.startswith("metadata"):
            (root / entry.name).symlink_to(entry.resolve(), target_is_directory=True)
    shutil.copy(source / "classes.txt", root / "classes.txt")


def more_epochs(stage: StageConfig, factor: float) -> StageConfig:
    """The same number of steps although an epoch has fewer."""
    return dataclasses.replace(stage, epochs=round(stage.epochs * factor))


def main() -> None:
    """Take, train, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--per-class", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs-factor", type=float, default=2.0, help="more passes over fewer photos")
    arguments = parser.parse_args()
    root = arguments.out / f"{arguments.data.name}-{arguments.per_class}"
    take(arguments.data, root, arguments.per_class)
    start = recipe(arguments.recipe)
    run = arguments.out / f"{arguments.recipe}-{arguments.per_class}-{arguments.seed}"
    config = dataclasses.replace(
        start,
        data=str(root),
        out=str(run),
        seed=arguments.seed,
        resume=True,
        stage1=more_epochs(start.stage1, arguments.epochs_factor),
        stage2=more_epochs(start.stage2, arguments.epochs_factor),
    )
    if not (run / "metrics.json").exists():
        train(config)
    report = json.loads((run / "metrics.json").read_text())
    metric = start.stage2.select
    cells = [f"{number(report['maps'][kind], metric):.1f}" for kind in ("center", "cam", "fcam")]
    top1 = report["classification"]["top1"]
    print(
        "| recipe | photos a class | metric | centre | CAM | F-CAM | top-1 | seed |\n|---|--:|---|--:|--:|--:|--:|--:|"
    )
    print(
        f"| {arguments.recipe} | {arguments.per_class} | {metric} | {' | '.join(cells)} | {top1:.1f} | {arguments.seed} |"
    )


if __name__ == "__main__":
    main()
