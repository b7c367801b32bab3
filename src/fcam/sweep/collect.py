"""The one table of a sweep: mean ± sd over seeds per variation, the choice made on `val`, the paper's numbers beside ours.

Nothing that differs between two executions of the same plan (times, machines) enters, so an interrupted sweep ends
with the same files as one that ran through.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fcam import files
from fcam.config import TrainConfig
from fcam.run import Run
from fcam.sweep.execute import is_finished
from fcam.sweep.plan import Plan, Planned
from fcam.sweep.tables import as_csv, as_latex, as_markdown
from fcam.tables import MAP_TITLES, METRIC_TITLES, Spread, number
from fcam.tables.paper import (
    CHOSEN_ON_VAL,
    BackboneCells,
    add_cell,
    backbone_means,
    data_set,
    papers_number,
)


def collect(plan: Plan, failed: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Read the finished runs of a plan and write `sweep.json`, `sweep.csv`, `sweep.md` and `sweep.tex`.

    Args:
        failed: messages of runs that failed, by name.

    Returns:
        the content of `sweep.json`.
    """
    finished = {run.name for run in plan.runs if is_finished(run.config)}
    groups: list[dict[str, Any]] = []
    cells: BackboneCells = {}
    for recipe in dict.fromkeys(run.recipe for run in plan.runs):
        variations = _by_variation(plan, recipe)
        rows = [_row(runs, finished) for runs in variations]
        _select(rows)
        for row, runs in zip(rows, variations, strict=True):
            _set_beside_the_paper(row, runs[0].config, cells)
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
        "means": backbone_means(cells),
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


def _row(runs: Sequence[Planned], finished: Collection[str]) -> dict[str, Any]:
    """What the seeds of one variation have in common, and their numbers."""
    done = [run for run in runs if run.name in finished]
    first = runs[0].config
    reports = [report for run in done if (report := Run(run.config.out).report()) is not None]
    return {
        "label": runs[0].label,
        "ablation": runs[0].ablation,
        "overrides": runs[0].overrides,
        "data_set": data_set(first),
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
        "maps": {kind: _numbers([report["maps"][kind] for report in reports]) for kind in MAP_TITLES},
    }


def _numbers(maps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Every metric of one kind of map over seeds, at its own best threshold and at the one carried over from `val`."""
    carried = [row["transferred"] or {} for row in maps]
    return {
        metric: _spread([number(row, metric) for row in maps])
        | {"at_val_threshold": _spread([number(row, metric) for row in carried])}
        for metric in METRIC_TITLES
    }


def selected_value(config: TrainConfig) -> float | None:
    """Value on `val` of the epoch that stage 2 selected; None where `val` could not be scored."""
    records = [record for record in Run(config.out).records() if record["stage"] == "decoder"]
    return records[-1]["best"]["value"] if records else None


def _spread(values: Sequence[float | None]) -> dict[str, Any]:
    """`Spread` as JSON holds it, with the values of the seeds."""
    own = Spread.of(values)
    return {"mean": own and own.mean, "sd": own and own.sd, "values": list(values)}


def _select(rows: list[dict[str, Any]]) -> None:
    """Mark the variation that is best on `val`; the first one wins a tie, and only complete ones compete."""
    for row in rows:
        row["selected"] = False
    able = [row for row in rows if row["complete"] and row["val"]["mean"] is not None]
    if len(rows) > 1 and able:
        max(able, key=lambda row: row["val"]["mean"])["selected"] = True


def _set_beside_the_paper(row: dict[str, Any], config: TrainConfig, cells: BackboneCells) -> None:
    """Give a row the paper's numbers that belong beside it, and its own to the means over backbones."""
    # Of values that the paper chose on `val`, the one chosen here is the paper's method; the others are not.
    passed_over = bool(set(row["overrides"]) & CHOSEN_ON_VAL) and not row["selected"]
    row["paper"] = {}
    for kind, metrics in row["maps"].items():
        for metric, own in metrics.items():
            printed = papers_number(config, kind, metric)
            if printed is not None and not (kind == "fcam" and passed_over):
                row["paper"].setdefault(kind, {})[metric] = printed
            if row["complete"] and not passed_over:
                add_cell(cells, config, kind, metric, own["mean"])
