"""The one table of a sweep: mean ± sd over seeds per variation, the choice made on `val`, the paper's numbers beside ours.

Nothing that differs between two executions of the same plan (times, machines) enters, so an interrupted sweep ends
with the same files as one that ran through.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fcam import files, paper_tables
from fcam.config import TrainConfig
from fcam.run import Run
from fcam.sweep.execute import is_finished
from fcam.sweep.plan import Plan, Planned
from fcam.sweep.tables import as_csv, as_latex, as_markdown

METRICS = ("max_box_acc", "max_box_acc_v2", "pxap", "top1_loc")
KINDS = ("cam", "fcam")
STILL_THE_PAPERS = {"method", "seeds.n_minus", "loss.alpha"}
"""Fields that the paper chose on `val`: its number belongs beside the variation that was chosen."""


def collect(plan: Plan, failed: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Read the finished runs of a plan and write `sweep.json`, `sweep.csv`, `sweep.md` and `sweep.tex`.

    Args:
        failed: messages of runs that failed, by name.

    Returns:
        the content of `sweep.json`.
    """
    finished = {run.name for run in plan.runs if is_finished(run.config)}
    groups = []
    for recipe in dict.fromkeys(run.recipe for run in plan.runs):
        rows = [_row(runs, finished) for runs in _by_variation(plan, recipe)]
        _select(rows)
        for row in rows:
            row["paper"] = _paper(row)
        groups.append({"recipe": recipe, "select": rows[0]["select"], "rows": rows})
    table = {
        "runs": len(plan.names()),
        "finished": len(finished),
        "failed": dict(sorted((failed or {}).items())),
        "fixed": plan.fixed,
        "split": next((row["split"] for group in groups for row in group["rows"] if row["split"]), "test"),
        "threshold_rule": "the split's own best threshold (the benchmark's rule)",
        "selection": "the variation with the highest mean over seeds of the selected epoch's value on val",
        "spread": "sample standard deviation over seeds",
        "groups": groups,
        "means": _means(groups),
    }
    files.write_json(plan.out / "sweep.json", table)
    files.write_text(plan.out / "sweep.csv", as_csv(table))
    files.write_text(plan.out / "sweep.md", as_markdown(table))
    files.write_text(plan.out / "sweep.tex", as_latex(table))
    return table


def _by_variation(plan: Plan, recipe: str) -> list[list[Planned]]:
    """Runs of a recipe, those that differ only in the seed together."""
    groups: dict[str, list[Planned]] = {}
    for run in plan.runs:
        if run.recipe == recipe:
            groups.setdefault(json.dumps([run.label, run.ablation, run.overrides]), []).append(run)
    return list(groups.values())


def _row(runs: Sequence[Planned], finished: Iterable[str]) -> dict[str, Any]:
    """What the seeds of one variation have in common, and their numbers."""
    done = [run for run in runs if run.name in set(finished)]
    first = runs[0].config
    reports = [json.loads(Run(run.config.out).metrics.read_text(encoding="utf-8")) for run in done]
    return {
        "label": runs[0].label,
        "ablation": runs[0].ablation,
        "overrides": runs[0].overrides,
        "data_set": first.name.partition("-")[0],
        "backbone": first.model.backbone,
        "method": first.method,
        "runs": [run.name for run in done],
        "seeds": [run.config.seed for run in done],
        "classifiers": [run.classifier for run in done],
        "complete": len(done) == len(runs),
        "split": next((report["split"] for report in reports), None),
        "select": first.stage2.select,
        "val": _spread([selected_value(run.config) for run in done]),
        "top1": _spread([report["classification"]["top1"] for report in reports]),
        "maps": {
            kind: {
                metric: {
                    **_spread([number(report["maps"][kind], metric) for report in reports]),
                    "at_val_threshold": _spread(
                        [number(report["maps"][kind]["transferred"] or {}, metric) for report in reports]
                    ),
                }
                for metric in METRICS
            }
            for kind in KINDS
        },
    }


def number(row: Mapping[str, Any], metric: str) -> float | None:
    """One percentage of a row of `metrics.json`; MaxBoxAcc is the one at overlap 0.5."""
    value = row.get(metric)
    return value["0.5"] if isinstance(value, dict) else value


def selected_value(config: TrainConfig) -> float | None:
    """Value on `val` of the epoch that stage 2 selected; None where `val` could not be scored."""
    records = [record for record in Run(config.out).records() if record["stage"] == "decoder"]
    return records[-1]["best"]["value"] if records else None


def _spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean and sample standard deviation; None where a value is missing."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return {"mean": None, "sd": None, "values": list(values)}
    sd = statistics.stdev(known) if len(known) > 1 else None
    return {"mean": statistics.fmean(known), "sd": sd, "values": known}


def _select(rows: list[dict[str, Any]]) -> None:
    """Mark the variation that is best on `val`; the first one wins a tie, and only complete ones compete."""
    for row in rows:
        row["selected"] = False
    able = [row for row in rows if row["complete"] and row["val"]["mean"] is not None]
    if len(rows) > 1 and able:
        max(able, key=lambda row: row["val"]["mean"])["selected"] = True


def _is_the_papers(row: Mapping[str, Any]) -> bool:
    """Whether a variation is the paper's whole method: untouched, or chosen on `val` as the paper chose."""
    fields = set(row["overrides"])
    return fields <= {"method"} or (row["selected"] and fields <= STILL_THE_PAPERS)


def _paper(row: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The paper's numbers that belong beside this variation, by kind of map and metric."""
    whole = _is_the_papers(row)
    found: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        for metric in METRICS:
            if not (kind == "cam" or whole or row["ablation"]):
                continue
            value = paper_tables.printed(
                metric, row["data_set"], row["backbone"], row["method"], kind, row["ablation"]
            )
            if value is not None:
                found.setdefault(kind, {})[metric] = value
    return found


def _means(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Means over the paper's three backbones where a sweep holds all of them, as the paper's tables have them."""
    cells: dict[tuple[str, str, str, str], dict[str, float]] = {}
    for group in groups:
        for row in group["rows"]:
            if not (row["complete"] and _is_the_papers(row)):
                continue
            for kind in KINDS:
                for metric in METRICS:
                    mean = row["maps"][kind][metric]["mean"]
                    if mean is not None:
                        key = (row["data_set"], row["method"], kind, metric)
                        cells.setdefault(key, {})[row["backbone"]] = mean
    found = []
    for (data_set, method, kind, metric), by_backbone in cells.items():
        if set(paper_tables.BACKBONES) <= set(by_backbone):
            ours = statistics.fmean(by_backbone[name] for name in paper_tables.BACKBONES)
            printed, note = paper_tables.printed_mean(metric, data_set, method, kind)
            found.append(
                {"data_set": data_set, "method": method, "map": kind, "metric": metric, "mean": ours}
                | {"paper": printed, "footnote": note}
            )
    return found
