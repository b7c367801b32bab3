"""Train and evaluate F-CAM on the four small photo sets, several seeds, and fill in docs/results.md.

    python benchmarks/photo_sets.py --data ../shared/data --out runs/photo_sets
    python benchmarks/photo_sets.py --data ... --out ... --sets cub10 cub10-slow --seeds 0 1 2

Each set is trained by its recipe, and the decoder then sharpened. `cub10-slow` is cub10 on a classifier whose head learned at a
tenth of the recipe's rate, for a few epochs: one whose CAM is weak.

Every choice (recipe, epoch, threshold carried over) is made on val; test is read once, at the end of each run. A run that is
finished is not repeated, one that was interrupted goes on, so the command may be stopped and given again. Only runs of the
present recipe enter the table. Sharpening needs the extra grabcut.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from fcam import files, recipes
from fcam.config import TrainConfig
from fcam.errors import FcamError
from fcam.grabcut import load_opencv
from fcam.recipes import recipe
from fcam.sweep.execute import is_finished
from fcam.train import train

HEADLINE = {"cub10": "max_box_acc", "butterfly10": "pxap", "pets3": "pxap", "imagenette10": "max_box_acc"}
"""The sets, and the metric that each is judged by."""
NAMES = {"max_box_acc": "MaxBoxAcc @0.5", "pxap": "PxAP"}
SLOW = "-slow"
"""What the name of a row ends with whose classifier's head learned slowly."""
ROWS = ["cub10", f"cub10{SLOW}", "butterfly10", "pets3", "imagenette10"]
METHODS = {"cub10": ["cam", "gradcam"]}
"""Whose maps teach, where it is not the CAM alone."""
SEEDS = [0, 1, 2]
SHARPEN = 3
"""Epochs of sharpening."""
RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results.md"


def settings(row: str, method: str, seed: int, data: Path, out: Path) -> TrainConfig:
    """Configuration of one run."""
    data_set = row.removesuffix(SLOW)
    config = recipe(f"{data_set}-lite0-{method}")
    if row != data_set:
        optimizer = dataclasses.replace(
            config.stage1.optimizer, late_ratio=config.stage1.optimizer.late_ratio / 10
        )
        config = dataclasses.replace(config, stage1=dataclasses.replace(config.stage1, optimizer=optimizer))
    folder = out / f"{row}-{method}-{seed}"
    return dataclasses.replace(config, data=str(data / data_set), out=str(folder), seed=seed, resume=True)


def sharpened(config: TrainConfig) -> TrainConfig:
    """Configuration of the run in which the decoder of another one goes on with its own sharper maps."""
    return dataclasses.replace(
        config,
        out=f"{config.out}-sharpened",
        stages="decoder",
        decoder_from=config.out,
        stage2=dataclasses.replace(config.stage2, epochs=0),
        sharpen=SHARPEN,
        sharpen_by="grabcut",
    )


def number(map: dict[str, Any], metric: str) -> float:
    """One percentage of one kind of map of a metrics.json."""
    value = map[metric]
    return value["0.5"] if isinstance(value, dict) else value


def reports(configs: Sequence[TrainConfig]) -> list[dict[str, Any]]:
    """The metrics.json of those runs."""
    return [json.loads((Path(c.out) / "metrics.json").read_text(encoding="utf-8")) for c in configs]


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation over seeds."""
    mean = statistics.fmean(values)
    return f"{mean:.1f}" if len(values) < 2 else f"{mean:.1f} ± {statistics.stdev(values):.1f}"


def finished(configs: Sequence[TrainConfig]) -> list[Sequence[TrainConfig]]:
    """Those runs and, where all of them are there, the sharpened ones."""
    again = [sharpened(config) for config in configs]
    return [configs, again] if all(map(is_finished, again)) else [configs]


def row(name: str, method: str, configs: Sequence[TrainConfig]) -> str:
    """One line of the table."""
    metric = HEADLINE[name.removesuffix(SLOW)]
    stages = finished(configs)
    found = reports(configs)
    cam = [number(r["maps"]["cam"], metric) for r in found]
    cells = [name, method, NAMES[metric], spread(cam)]
    for own in stages:
        fcam = [number(r["maps"]["fcam"], metric) for r in reports(own)]
        cells += [spread(fcam), spread([b - a for a, b in zip(cam, fcam, strict=True)])]
    cells += ["-", "-"] * (2 - len(stages))
    cells += [spread([r["classification"]["top1"] for r in found]), ", ".join(str(c.seed) for c in configs)]
    cells.append(" + ".join(f"{statistics.fmean(map(minutes, own)):.0f}" for own in stages))
    return "| " + " | ".join(cells) + " |"


def threshold_row(data_set: str, configs: Sequence[TrainConfig]) -> str:
    """One line of the table of thresholds: MaxBoxAcc at the best one of `test`, and at the best one of `val`."""
    cells, stages = [data_set], finished(configs)
    for kind, own in (("cam", configs), *(("fcam", own) for own in stages)):
        maps = [r["maps"][kind] for r in reports(own)]
        for rule in (maps, [m["transferred"] for m in maps]):
            cells.append(spread([number(m, "max_box_acc") for m in rule]))
    cells += ["-", "-"] * (2 - len(stages))
    return "| " + " | ".join(cells) + " |"


def minutes(config: TrainConfig) -> float:
    """How long the epochs of a run took, without validation."""
    lines = (Path(config.out) / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return sum(json.loads(line)["seconds"] for line in lines) / 60


HEAD = (
    "set",
    "CAM method",
    "metric",
    "CAM",
    "F-CAM",
    "gain",
    "sharpened",
    "gain",
    "top-1",
    "seeds",
    "minutes",
)
THRESHOLD_HEAD = (
    "set",
    *(f"{map}, {rule}" for map in ("CAM", "F-CAM", "sharpened") for rule in ("best", "from val")),
)


def table(head: Sequence[str], rows: Sequence[str]) -> str:
    """A Markdown table."""
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *rows])


def insert(page: Path, mark: str, text: str) -> None:
    """Put `text` where `page` has `<!-- mark -->`, in place of all up to the next `<!-- end -->`."""
    before, _, rest = page.read_text(encoding="utf-8").partition(f"<!-- {mark} -->")
    after = rest.partition("<!-- end -->")[2]
    files.write_text(page, f"{before}<!-- {mark} -->\n{text}\n<!-- end -->{after}")


def run(config: TrainConfig) -> None:
    """Train what is not finished, and say why where that fails; the others go on."""
    try:
        if not is_finished(config):
            train(config)
    except FcamError as error:
        print(f"{config.out}: {error}")


def main() -> None:
    """Run what is missing, then write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the sets")
    parser.add_argument("--out", type=Path, default=Path("runs/photo_sets"))
    parser.add_argument("--sets", nargs="+", default=ROWS, choices=ROWS)
    parser.add_argument(
        "--methods", nargs="+", choices=recipes.METHODS, help="default: cam, on cub10 gradcam too"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--table-only", action="store_true", help="only collect what is finished")
    arguments = parser.parse_args()
    out: Path = arguments.out
    load_opencv()

    def configs(name: str, method: str, seeds: Iterable[int]) -> list[TrainConfig]:
        return [settings(name, method, seed, arguments.data, out) for seed in seeds]

    for name in arguments.sets if not arguments.table_only else []:
        for method in arguments.methods or METHODS.get(name, ["cam"]):
            for first in configs(name, method, arguments.seeds):
                run(first)
                if is_finished(first):
                    run(sharpened(first))
    # Whatever is finished stands in the tables, also what was not asked for this time.
    rows, thresholds = [], []
    for name, method in product(ROWS, recipes.METHODS):
        done = [c for c in configs(name, method, sorted({*SEEDS, *arguments.seeds})) if is_finished(c)]
        rows += [row(name, method, done)] if done else []
        thresholds += [threshold_row(name, done)] if done and method == "cam" else []
    print(table(HEAD, rows))
    if RESULTS.exists() and rows:
        insert(RESULTS, "photo_sets", table(HEAD, rows))
        insert(RESULTS, "transferred", table(THRESHOLD_HEAD, thresholds))


if __name__ == "__main__":
    main()
