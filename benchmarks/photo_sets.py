"""Train and evaluate F-CAM on the four small photo sets, several seeds, and fill in docs/results.md.

    python benchmarks/photo_sets.py --data ../shared/data --out runs/photo_sets
    python benchmarks/photo_sets.py --data ... --out ... --sets cub10 --seeds 0 1 2

Every choice (recipe, epoch, threshold carried over) is made on val; test is read once, at the end of each run. A run that is
finished is not repeated, one that was interrupted goes on, so the command may be stopped and given again. Only runs of the
present recipe enter the table.
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

from fcam import files
from fcam.config import TrainConfig
from fcam.errors import FcamError
from fcam.recipes import recipe
from fcam.run import config_to_dict, load_config
from fcam.train import train

HEADLINE = {"cub10": "max_box_acc", "butterfly10": "pxap", "pets3": "pxap", "imagenette10": "max_box_acc"}
"""The sets, and the metric that each is judged by."""
NAMES = {"max_box_acc": "MaxBoxAcc @0.5", "pxap": "PxAP"}
SEEDS = [0, 1, 2]
RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results.md"


def settings(data_set: str, method: str, seed: int, data: Path, out: Path) -> TrainConfig:
    """Configuration of one run."""
    folder = out / f"{data_set}-{method}-{seed}"
    return dataclasses.replace(
        recipe(f"{data_set}-lite0-{method}"),
        data=str(data / data_set),
        out=str(folder),
        seed=seed,
        resume=True,
    )


def is_of(config: TrainConfig) -> bool:
    """Whether the run of `config` is finished and was made with the present recipe."""
    if not (Path(config.out) / "metrics.json").exists():
        return False
    free = {"data", "out", "workers", "resume", "name", "compile", "tensorboard"}
    now, then = config_to_dict(config), config_to_dict(load_config(config.out))
    return all(then[name] == now[name] for name in now if name not in free)


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


def row(data_set: str, method: str, configs: Sequence[TrainConfig]) -> str:
    """One line of the table."""
    metric = HEADLINE[data_set]
    found = reports(configs)
    cam, fcam = ([number(r["maps"][kind], metric) for r in found] for kind in ("cam", "fcam"))
    gain = spread([b - a for a, b in zip(cam, fcam, strict=True)])
    top1 = spread([r["classification"]["top1"] for r in found])
    minutes = statistics.fmean(sum(e["seconds"] for e in log(c)) / 60 for c in configs)
    seeds = ", ".join(str(c.seed) for c in configs)
    cells = [data_set, method, NAMES[metric], spread(cam), spread(fcam), gain, top1, seeds, f"{minutes:.0f}"]
    return "| " + " | ".join(cells) + " |"


def threshold_row(data_set: str, configs: Sequence[TrainConfig]) -> str:
    """One line of the table of thresholds: MaxBoxAcc at the best one of `test`, and at the best one of `val`."""
    cells = [data_set]
    for kind in ("cam", "fcam"):
        maps = [r["maps"][kind] for r in reports(configs)]
        for own in (maps, [m["transferred"] for m in maps]):
            cells.append(f"{statistics.fmean(number(m, 'max_box_acc') for m in own):.1f}")
    return "| " + " | ".join(cells) + " |"


def log(config: TrainConfig) -> list[dict[str, Any]]:
    """Epochs of a run."""
    return [json.loads(line) for line in (Path(config.out) / "log.jsonl").read_text().splitlines()]


HEAD = ("set", "CAM method", "metric", "CAM", "F-CAM", "gain", "top-1", "seeds", "minutes of training")
THRESHOLD_HEAD = ("set", "CAM, best", "CAM, from val", "F-CAM, best", "F-CAM, from val")


def table(head: Sequence[str], rows: Sequence[str]) -> str:
    """A Markdown table."""
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *rows])


def insert(page: Path, mark: str, text: str) -> None:
    """Put `text` where `page` has `<!-- mark -->`, in place of all up to the next `<!-- end -->`."""
    before, _, rest = page.read_text(encoding="utf-8").partition(f"<!-- {mark} -->")
    after = rest.partition("<!-- end -->")[2]
    files.write_text(page, f"{before}<!-- {mark} -->\n{text}\n<!-- end -->{after}")


def main() -> None:
    """Run what is missing, then write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the sets")
    parser.add_argument("--out", type=Path, default=Path("runs/photo_sets"))
    parser.add_argument("--sets", nargs="+", default=list(HEADLINE))
    parser.add_argument("--methods", nargs="+", default=["cam"])
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--table-only", action="store_true", help="only collect what is finished")
    arguments = parser.parse_args()
    out: Path = arguments.out

    def configs(data_set: str, method: str, seeds: Iterable[int]) -> list[TrainConfig]:
        return [settings(data_set, method, seed, arguments.data, out) for seed in seeds]

    for data_set, method in product(arguments.sets, arguments.methods) if not arguments.table_only else []:
        for config in configs(data_set, method, arguments.seeds):
            if not is_of(config):
                try:
                    train(config)
                except FcamError as error:
                    print(f"{config.out}: {error}")
    # Whatever is finished stands in the tables, also what was not asked for this time.
    rows, thresholds = [], []
    for data_set, method in product(HEADLINE, arguments.methods):
        done = [c for c in configs(data_set, method, sorted({*SEEDS, *arguments.seeds})) if is_of(c)]
        rows += [row(data_set, method, done)] if done else []
        thresholds += [threshold_row(data_set, done)] if done and method == "cam" else []
    print(table(HEAD, rows))
    if RESULTS.exists() and rows:
        insert(RESULTS, "photo_sets", table(HEAD, rows))
        insert(RESULTS, "transferred", table(THRESHOLD_HEAD, thresholds))


if __name__ == "__main__":
    main()
