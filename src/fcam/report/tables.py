"""The tables of a report as data; `fcam.tables.formats` writes them down."""

from __future__ import annotations

from collections.abc import Sequence

from fcam import paper_tables
from fcam.report.collect import Group, papers_number
from fcam.scores import IOU, TITLES
from fcam.sharpen import sharpening
from fcam.tables import (
    MAP_TITLES,
    METRIC_TITLES,
    MISSING,
    Cell,
    Number,
    Spread,
    Table,
    footnote,
    number,
    paper,
)

COLUMNS = (
    *((f"box@{iou:g}", "max_box_acc", f"{iou:g}") for iou in IOU),
    ("V2", "max_box_acc_v2", ""),
    ("top-1 loc", "top1_loc", ""),
    ("top-5 loc", "top5_loc", ""),
    ("PxAP", "pxap", ""),
    ("PIoU", "piou", ""),
)
PAPER = {("max_box_acc", "0.5"), ("max_box_acc_v2", ""), ("top1_loc", ""), ("top5_loc", ""), ("pxap", "")}
"""Columns that the paper prints."""


def localization(groups: Sequence[Group], split: str) -> Table:
    """Every kind of map of every group under both threshold rules, the paper's numbers beside ours."""
    shown = [c for c in COLUMNS if any(_spread(g, kind, c) for g in groups for kind in _kinds(g))]
    rows: list[list[Cell]] = []
    strong, notes = set(), []
    for group in groups:
        for kind in _kinds(group):
            for rule, carried in ((f"best on {split}", False), ("best on val", True)):
                cells: list[Cell] = []
                for column in shown:
                    printed = (
                        None if carried or column[1:] not in PAPER else papers_number(group, kind, column[1])
                    )
                    note = None
                    if printed is not None and (kind, column[1]) == ("center", "max_box_acc_v2"):
                        note = footnote(notes, paper_tables.CENTER_FOOTNOTE)
                    cells.append(Number(_spread(group, kind, column, carried), printed, note))
                if carried and all(isinstance(c, Number) and c.ours is None for c in cells):
                    continue
                if kind == "fcam":
                    strong.add(len(rows))
                threshold = Number(_threshold(group, kind, carried), digits=2)
                rows.append([group.label, TITLES[kind], rule, threshold, *cells])
    head = ["runs", "map", "threshold chosen as", "τ", *(title for title, _, _ in shown)]
    caption = (
        f"Percent on the {split} split, mean ± sample standard deviation over seeds. box@d is MaxBoxAcc: the share of images "
        "whose box overlaps a true box by at least d; V2 is MaxBoxAccV2, its mean over the three d with a box for every part; "
        "top-1 and top-5 ask for the right class as well; PxAP is the area under the precision-recall curve of all "
        f"pixels and needs no threshold; PIoU is the overlap of the masks. “Best on {split}” picks the threshold τ on the very "
        "images that are scored, as the benchmark and the paper do; “best on val” carries over the threshold that was best "
        "on other images, which is what a user gets. Every column has its own; the τ shown is that of box@0.5, or of PIoU "
        "where there are no boxes."
    )
    return Table("localization", "Localization", caption, head, rows, strong, notes)


def classifiers(groups: Sequence[Group]) -> Table:
    """One row per run: seed, selected epochs with their value on val, time, classification."""
    rows: list[list[Cell]] = []
    for group in groups:
        for run in group.runs:
            row: list[Cell] = [run.name, group.label, str(run.config.seed)]
            last = sharpening(run.config).stage2 if run.config.sharpen else run.config.stage2
            for stage, settings in (("classifier", run.config.stage1), ("decoder", last)):
                best = run.selected(stage)
                chosen = MISSING if best is None else f"{best['epoch']} of {settings.epochs}"
                if best is not None and best.get("value") is not None:
                    metric = (
                        "top-1"
                        if settings.select == "top1"
                        else METRIC_TITLES.get(settings.select, settings.select)
                    )
                    chosen += f" ({metric} {best['value']:.1f})"
                row.append(chosen)
            row.append(duration(run.seconds))
            printed = paper.papers_accuracy(run.config) if run.report["split"] == "test" else None
            scores = run.report["classification"]
            row.append(Number(Spread.of([scores["top1"]]), printed))
            row.append(Number(Spread.of([scores["top5"]])))
            rows.append(row)
    head = ["run", "settings", "seed", "classifier epoch", "decoder epoch", "training"]
    head += ["top-1 class", "top-5 class"]
    caption = (
        "The epoch that each stage kept, chosen on val by the metric in brackets; training time without validation; "
        "classification accuracy in percent on the reported split."
    )
    return Table("runs", "Runs", caption, head, rows)


def backbone_means(groups: Sequence[Group]) -> Table | None:
    """Means over the paper's three backbones, beside its printed means; None unless all three are there."""
    cells: paper.BackboneCells = {}
    for group in groups:
        config = group.first.config
        for kind in MAP_TITLES:
            for metric in METRIC_TITLES:
                spread = _spread(group, kind, ("", metric, "0.5" if metric == "max_box_acc" else ""))
                paper.add_cell(cells, config, kind, metric, spread and spread.mean)
    means = paper.backbone_means(cells)
    return paper.means_table(means) if means else None


def duration(seconds: float) -> str:
    """Seconds in words of two units."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _kinds(group: Group) -> list[str]:
    return [kind for kind in TITLES if all(kind in run.report["maps"] for run in group.runs)]


def _spread(group: Group, kind: str, column: tuple[str, str, str], carried: bool = False) -> Spread | None:
    rows = [run.report["maps"].get(kind, {}) for run in group.runs]
    if carried:
        rows = [row.get("transferred") or {} for row in rows]
    return Spread.of([number(row, column[1], column[2]) for row in rows])


def _threshold(group: Group, kind: str, carried: bool) -> Spread | None:
    """The threshold of MaxBoxAcc at overlap 0.5, or of the pixels' overlap where there are no boxes."""
    rows = [run.report["maps"][kind] for run in group.runs]
    found = [((row.get("transferred") or {}) if carried else row).get("threshold") or {} for row in rows]
    by_boxes = Spread.of([number(own, "max_box_acc") for own in found])
    return by_boxes or Spread.of([number(own, "piou") for own in found])
