"""A sweep's table as Markdown, LaTeX and CSV: one row per map, CAM above the F-CAM maps that were learned from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fcam.cams import METHODS
from fcam.tables import (
    MAP_TITLES,
    METRIC_TITLES,
    MISSING,
    Cell,
    Number,
    Spread,
    Table,
    formats,
)
from fcam.tables.paper import means_table


def as_markdown(table: Mapping[str, Any]) -> str:
    """The whole table with what a reader needs to understand it."""
    parts = ["# Sweep", _preface(table), formats.as_markdown(_tables(table)).rstrip()]
    if table["failed"]:
        parts.append(
            "## Failed\n\n" + "\n".join(f"- `{name}`: {text}" for name, text in table["failed"].items())
        )
    return "\n\n".join(parts) + "\n"


def as_latex(table: Mapping[str, Any]) -> str:
    """One `tabular` (booktabs) per recipe."""
    preface = "\n".join(f"% {line}" for line in _preface(table).splitlines())
    return f"{preface}\n\n{formats.as_latex(_tables(table))}"


def as_csv(table: Mapping[str, Any]) -> str:
    """One row per variation and kind of map, with full precision."""
    head = [
        "recipe",
        "data_set",
        "backbone",
        "method",
        "variation",
        "map",
        "seeds",
        "complete",
        "selected_on_val",
    ]
    head += ["val_metric", "val", "classification_top1"]
    for metric in METRIC_TITLES:
        head += [metric, f"{metric}_at_val_threshold"]
    rows: list[list[Cell]] = []
    for group in table["groups"]:
        for row in group["rows"]:
            for kind in MAP_TITLES:
                cells: list[Cell] = [
                    group["recipe"],
                    row["data_set"],
                    row["backbone"],
                    row["method"],
                    row["label"],
                ]
                cells += [kind, " ".join(map(str, row["seeds"])), str(row["complete"]), str(row["selected"])]
                cells += [row["select"], _on_val(row, kind), Number(_spread(row["top1"]))]
                for metric, own in row["maps"][kind].items():
                    cells += [_number(row, kind, metric), Number(_spread(own["at_val_threshold"]))]
                rows.append(cells)
    return formats.as_csv(Table("sweep", "Sweep", "", head, rows))


def _preface(table: Mapping[str, Any]) -> str:
    lines = [
        f"{table['finished']} of {table['runs']} runs are finished. Percentages on {table['split']} at "
        f"{table['threshold_rule']}; mean ± {table['spread']}. Chosen on val: {table['selection']}."
    ]
    if table["fixed"]:
        lines.append("In all runs: " + ", ".join(f"{k} = {v}" for k, v in table["fixed"].items()) + ".")
    if any(row["paper"] for group in table["groups"] for row in group["rows"]):
        lines.append("The paper's numbers are single runs without a spread.")
    return "\n".join(lines)


def _tables(table: Mapping[str, Any]) -> list[Table]:
    """One table per recipe, and the means over backbones where a sweep has all three."""
    found = [_recipe_table(group) for group in table["groups"]]
    return found + ([means_table(table["means"])] if table["means"] else [])


def _recipe_table(group: Mapping[str, Any]) -> Table:
    """Metrics that no run has are left out."""
    metrics = [
        metric
        for metric in METRIC_TITLES
        if any(row["maps"][kind][metric]["mean"] is not None for row in group["rows"] for kind in MAP_TITLES)
    ]
    val = f"val {METRIC_TITLES.get(group['select'], group['select'])}"
    rows: list[list[Cell]] = []
    strong: set[int] = set()
    cams: list[Any] = []
    for row in group["rows"]:
        for kind in MAP_TITLES:
            own = (row["method"], row["maps"]["cam"])
            if kind == "cam" and (own in cams or not row["seeds"]):
                continue  # runs that share a classifier share its CAM
            if kind == "cam":
                cams.append(own)
            elif row["selected"]:
                strong.add(len(rows))
            rows.append([*_names(row, kind), *(_number(row, kind, metric) for metric in metrics)])
    head = ["method", "map", "seeds", val, *(METRIC_TITLES[metric] for metric in metrics)]
    return Table(group["recipe"], group["recipe"], _choice(group), head, rows, strong)


def _names(row: Mapping[str, Any], kind: str) -> list[Cell]:
    """Method, map, seeds and the value on `val`."""
    seeds = ", ".join(map(str, row["seeds"])) or MISSING
    return [
        METHODS[row["method"]].title,
        f"{MAP_TITLES[kind]} {row['label']}".rstrip() if kind == "fcam" else MAP_TITLES[kind],
        seeds if row["complete"] else f"{seeds} (incomplete)",
        _on_val(row, kind),
    ]


def _on_val(row: Mapping[str, Any], kind: str) -> Number:
    """The value on `val` that was selected by, which is F-CAM's alone."""
    return Number(_spread(row["val"]) if kind == "fcam" else None)


def _choice(group: Mapping[str, Any]) -> str:
    chosen = next((row for row in group["rows"] if row["selected"]), None)
    metric = METRIC_TITLES.get(group["select"], group["select"])
    if chosen is None:
        return f"Nothing was chosen on val ({metric}): one variation only, or val could not be scored."
    name = ", ".join(filter(None, [METHODS[chosen["method"]].title, chosen["label"]]))
    return f"Chosen on val by {metric}: {name} ({Number(_spread(chosen['val'])).text()})."


def _spread(own: Mapping[str, Any]) -> Spread | None:
    return None if own["mean"] is None else Spread(own["mean"], own["sd"])


def _number(row: Mapping[str, Any], kind: str, metric: str) -> Number:
    """Ours over seeds with the paper's beside it."""
    return Number(_spread(row["maps"][kind][metric]), row["paper"].get(kind, {}).get(metric))
