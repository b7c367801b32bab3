"""A sweep's table as Markdown, LaTeX and CSV: one row per map, CAM above the F-CAM maps that were learned from it."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from fcam.paper_tables import METHODS as PAPER_NAMES

TITLES = {
    "max_box_acc": "MaxBoxAcc@0.5",
    "max_box_acc_v2": "MaxBoxAccV2",
    "pxap": "PxAP",
    "top1_loc": "top-1 loc",
}
METHOD_TITLES = {method: name.rstrip("*") for method, name in PAPER_NAMES.items()}
MAPS = {"cam": "CAM", "fcam": "F-CAM"}
MISSING = "-"


def as_markdown(table: Mapping[str, Any]) -> str:
    """The whole table with what a reader needs to understand it."""
    parts = ["# Sweep", _preface(table)]
    for group in table["groups"]:
        head, rows = _grid(group, "±")
        lines = [head, ["---"] * len(head), *rows]
        parts.append(f"## {group['recipe']}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))
        parts.append(_choice(group))
    if table["means"]:
        parts.append(_means(table["means"]))
    if table["failed"]:
        parts.append(
            "## Failed\n\n" + "\n".join(f"- `{name}`: {text}" for name, text in table["failed"].items())
        )
    return "\n\n".join(parts) + "\n"


def as_latex(table: Mapping[str, Any]) -> str:
    """One `tabular` (booktabs) per recipe."""
    parts = [f"% {line}" for line in _preface(table).splitlines() if line]
    for group in table["groups"]:
        head, rows = _grid(group, r"$\pm$")
        columns = "ll" + "r" * (len(head) - 2)
        lines = [
            f"% {group['recipe']}: {_choice(group)}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            _line(head),
            r"\midrule",
            *(_line(row) for row in rows),
            r"\bottomrule",
            r"\end{tabular}",
        ]
        parts += ["", *lines]
    return "\n".join(parts) + "\n"


def as_csv(table: Mapping[str, Any]) -> str:
    """One row per variation and kind of map, with full precision."""
    metrics = list(TITLES)
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
    head += ["val_metric", "val_mean", "val_sd", "classification_top1"]
    for metric in metrics:
        head += [f"{metric}_mean", f"{metric}_sd", f"{metric}_at_val_threshold", f"{metric}_paper"]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(head)
    for group in table["groups"]:
        for row in group["rows"]:
            for kind in MAPS:
                cells = [group["recipe"], row["data_set"], row["backbone"], row["method"], row["label"], kind]
                cells += [" ".join(map(str, row["seeds"])), row["complete"], row["selected"], row["select"]]
                cells += [row["val"]["mean"], row["val"]["sd"], row["top1"]["mean"]]
                for metric in metrics:
                    own = row["maps"][kind][metric]
                    cells += [own["mean"], own["sd"], own["at_val_threshold"]["mean"]]
                    cells.append(row["paper"].get(kind, {}).get(metric))
                writer.writerow(["" if cell is None else cell for cell in cells])
    return stream.getvalue()


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


def _choice(group: Mapping[str, Any]) -> str:
    chosen = next((row for row in group["rows"] if row["selected"]), None)
    metric = TITLES.get(group["select"], group["select"])
    if chosen is None:
        return f"Nothing was chosen on val ({metric}): one variation only, or val could not be scored."
    name = ", ".join(filter(None, [METHOD_TITLES.get(chosen["method"], chosen["method"]), chosen["label"]]))
    return f"Chosen on val by {metric}: {name} ({_cell(chosen['val'], '±')})."


def _grid(group: Mapping[str, Any], plus_minus: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of text; metrics that no run has are left out, and so are empty columns of the paper."""
    rows = group["rows"]
    metrics = [
        m for m in TITLES if any(row["maps"][kind][m]["mean"] is not None for row in rows for kind in MAPS)
    ]
    from_paper = {m for m in metrics for row in rows for kind in MAPS if m in row["paper"].get(kind, {})}
    head = ["method", "map", "seeds", f"val {TITLES.get(group['select'], group['select'])}"]
    for metric in metrics:
        head += [TITLES[metric], *(["paper"] if metric in from_paper else [])]
    lines: list[list[str]] = []
    cams: list[Any] = []
    for row in rows:
        for kind in MAPS:
            own = (row["method"], row["maps"]["cam"])
            if kind == "cam" and (own in cams or not row["seeds"]):
                continue  # runs that share a classifier share its CAM
            if kind == "cam":
                cams.append(own)
            lines.append(_text_row(row, kind, metrics, from_paper, plus_minus))
    return head, lines


def _text_row(
    row: Mapping[str, Any], kind: str, metrics: Sequence[str], from_paper: set[str], plus_minus: str
) -> list[str]:
    name = MAPS[kind] if kind == "cam" else " ".join(filter(None, [MAPS[kind], row["label"]]))
    seeds = ", ".join(map(str, row["seeds"])) + ("" if row["complete"] else " (incomplete)")
    val = _cell(row["val"], plus_minus) + (" *" if row["selected"] else "") if kind == "fcam" else MISSING
    cells = [METHOD_TITLES.get(row["method"], row["method"]), name, seeds or MISSING, val]
    for metric in metrics:
        cells.append(_cell(row["maps"][kind][metric], plus_minus))
        if metric in from_paper:
            printed = row["paper"].get(kind, {}).get(metric)
            cells.append(MISSING if printed is None else f"{printed:.1f}")
    return cells


def _cell(spread: Mapping[str, Any], plus_minus: str) -> str:
    if spread["mean"] is None:
        return MISSING
    mean = f"{spread['mean']:.1f}"
    return mean if spread["sd"] is None else f"{mean} {plus_minus} {spread['sd']:.1f}"


def _means(means: Sequence[Mapping[str, Any]]) -> str:
    """Means over the paper's backbones, with a footnote where the printed one is not the mean of its cells."""
    lines = ["## Means over VGG16, InceptionV3 and ResNet50", ""]
    lines += ["| set | method | map | metric | mean | paper |", "|---|---|---|---|---|---|"]
    notes: list[str] = []
    for row in means:
        printed = MISSING if row["paper"] is None else f"{row['paper']:.1f}"
        if row["footnote"]:
            notes.append(row["footnote"])
            printed += f" [{len(notes)}]"
        names = [row["data_set"], METHOD_TITLES[row["method"]], MAPS[row["map"]], TITLES[row["metric"]]]
        lines.append("| " + " | ".join([*names, f"{row['mean']:.1f}", printed]) + " |")
    lines += [""] + [f"[{number}] {note}" for number, note in enumerate(notes, start=1)]
    return "\n".join(lines).rstrip()


def _line(cells: Sequence[str]) -> str:
    """One line of a tabular; what LaTeX would read as a command is escaped."""
    return " & ".join(_escaped(cell) for cell in cells) + r" \\"


def _escaped(text: str) -> str:
    if r"$\pm$" in text:
        return r"$\pm$".join(_escaped(part) for part in text.split(r"$\pm$"))
    for plain, code in (("\\", r"\textbackslash{}"), ("_", r"\_"), ("&", r"\&"), ("%", r"\%"), ("#", r"\#")):
        text = text.replace(plain, code)
    return text.replace("n⁻", "$n^-$").replace("α", r"$\alpha$").replace("*", r"$^*$")
