"""Line charts as inline SVG that follow the page's colours, and the figures of a report made of them."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fcam.report.collect import Finished, Group
from fcam.report.curves import THRESHOLDS, Survey, best_at
from fcam.scores import IOU, TITLES
from fcam.tables import METRIC_TITLES

WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 10, 40
POINTS = 201
METRIC_NAMES = {**METRIC_TITLES, "top1": "top-1 class"}
STYLE = {"cam": 0, "fcam": 1}
"""Number of the style of a kind of map: colour and dashes are in the style sheet."""


@dataclass(frozen=True)
class Line:
    """One curve: points, its name in the key, its style, dots to mark, and a band around it."""

    name: str
    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    style: int = 0
    dots: list[tuple[float, float]] = field(default_factory=list)
    band: tuple[np.ndarray, np.ndarray] | None = None


@dataclass(frozen=True)
class Chart:
    """A chart with its axes; `say` states in words what it shows, for those who cannot see it."""

    title: str
    x_label: str
    y_label: str
    lines: list[Line]
    x_range: tuple[float, float] = (0, 1)
    y_range: tuple[float, float] = (0, 100)
    log: bool = False
    say: str = ""


def as_svg(chart: Chart) -> str:
    """The chart as a figure element: SVG, key and caption; all text escaped."""
    parts = [*_axes(chart)]
    for line in chart.lines:
        if line.band is not None:
            low, high = line.band
            outline = [*zip(line.x, high, strict=True), *zip(line.x[::-1], low[::-1], strict=True)]
            parts.append(f'<path class="band s{line.style}" d="{_path(chart, outline)}Z"/>')
    for line in chart.lines:
        points = list(zip(line.x, line.y, strict=True))
        parts.append(f'<path class="line s{line.style}" d="{_path(chart, points)}"/>')
    for line in chart.lines:
        for x, y in line.dots:
            place = f'cx="{_x(chart, x):.1f}" cy="{_y(chart, y):.1f}"'
            parts.append(f'<circle class="dot s{line.style}" {place} r="4.5"/>')
    keys = dict.fromkeys((line.name, line.style) for line in chart.lines if line.name)
    key = "".join(
        f'<span class="key"><svg viewBox="0 0 28 8" aria-hidden="true"><path class="line s{style}" d="M0 4H28"/></svg>'
        f"{html.escape(name)}</span>"
        for name, style in keys
    )
    label = html.escape(f"{chart.title}. {chart.say}", quote=True)
    return (
        f'<figure class="chart"><figcaption>{html.escape(chart.title)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
        f'<div class="keys">{key}</div></figure>'
    )


def _axes(chart: Chart) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for value in _ticks(chart.y_range, chart.log):
        y = _y(chart, value)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{right}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in _ticks(chart.x_range, False):
        x = _x(chart, value)
        parts.append(f'<path class="axis" d="M{x:.1f} {bottom}v4"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{value:g}</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {bottom}H{right}"/>')
    middle = (LEFT + right) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{html.escape(chart.x_label)}</text>'
    )
    height = (TOP + bottom) / 2
    turn = f'transform="translate(12 {height}) rotate(-90)"'
    parts.append(f'<text {turn} text-anchor="middle">{html.escape(chart.y_label)}</text>')
    return parts


def _ticks(span: tuple[float, float], log: bool) -> list[float]:
    low, high = span
    if log:
        return [10.0**e for e in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    raw = (high - low) / 5
    step = 10 ** math.floor(math.log10(raw))
    step *= next(f for f in (1, 2, 5, 10) if f * step >= raw * 0.999)
    if high - low <= 8 and float(low).is_integer() and float(high).is_integer() and high - low > 1:
        step = 1
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _x(chart: Chart, value: float) -> float:
    low, high = chart.x_range
    return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)


def _y(chart: Chart, value: float) -> float:
    low, high = chart.y_range
    if chart.log:
        low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
    share = min(max((value - low) / (high - low), 0), 1)
    return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)


def _path(chart: Chart, points: Sequence[tuple[float, float]]) -> str:
    """Corners of a path; missing values leave a gap."""
    found, pen = [], "M"
    for x, y in points:
        if math.isnan(y):
            pen = "M"
            continue
        found.append(f"{pen}{_x(chart, x):.1f} {_y(chart, y):.1f}")
        pen = "L"
    return "".join(found)


def of_group(group: Group, surveys: Sequence[Survey]) -> list[Chart]:
    """All figures of one group: accuracy, precision and recall against the threshold, distributions, convergence."""
    charts = []
    if surveys:
        if surveys[0].measure == "box":
            charts.append(_box_accuracy(surveys))
        if any(own.pixels.any() for own in surveys[0].maps.values()):
            charts += [_pixel_curves(surveys), _precision_against_recall(surveys)]
        charts.append(_distributions(surveys))
    return [*charts, *_convergence(group.runs)]


def _mean_line(
    kind: str, name: str, curves: Sequence[np.ndarray], style: int, x: np.ndarray, dots: bool = True
) -> Line:
    """Mean over seeds with the range between them, thinned to what a chart can show."""
    stacked = np.stack(curves)
    mean = stacked.mean(0)
    keep = np.unique(np.linspace(0, len(x) - 1, POINTS).round().astype(int))
    band = (stacked.min(0)[keep], stacked.max(0)[keep]) if len(curves) > 1 else None
    marked = [best_at(mean, x)] if dots and not np.isnan(mean).all() else []
    return Line(name or TITLES[kind], x[keep], mean[keep], style, marked, band)


def _box_accuracy(surveys: Sequence[Survey]) -> Chart:
    lines, said = [], []
    grid = surveys[0].grid
    for kind in surveys[0].maps:
        for iou in sorted(IOU, key=lambda iou: iou != 0.5):
            curves = [s.maps[kind].accuracy(s.counted, iou) for s in surveys]
            main = iou == 0.5
            style = STYLE[kind] if main else STYLE[kind] + 4
            line = _mean_line(
                kind, TITLES[kind] + ("" if main else ", d = 0.3 and 0.7"), curves, style, grid, main
            )
            lines.append(line)
            if main:
                tau, value = line.dots[0]
                said.append(
                    f"{TITLES[kind]} is best at {tau:.2f} with {value:.1f} percent and stays within 5 points of that over "
                    f"{_width(np.mean(curves, 0)):.0f} percent of all thresholds"
                )
    title = "Box accuracy against the threshold (d = 0.5; dot: best)"
    return Chart(
        title, "threshold τ, share of each map’s maximum", "box accuracy, %", lines, say="; ".join(said) + "."
    )


def _width(curve: np.ndarray) -> float:
    return 100 * float((curve >= curve.max() - 5).mean())


def _pixel_curves(surveys: Sequence[Survey]) -> Chart:
    lines = []
    for kind in surveys[0].maps:
        pairs = [s.maps[kind].precision_recall() for s in surveys]
        for place, name in enumerate(("precision", "recall")):
            style = STYLE[kind] + 4 * place
            curves = [pair[place] for pair in pairs]
            lines.append(_mean_line(kind, f"{TITLES[kind]} {name}", curves, style, surveys[0].grid, False))
    title = "Precision and recall of pixels against the threshold"
    say = "Precision rises and recall falls with the threshold; the flatter a curve, the less the choice matters."
    return Chart(title, "threshold τ", "percent", lines, say=say)


def _precision_against_recall(surveys: Sequence[Survey]) -> Chart:
    lines = []
    keep = np.unique(np.linspace(0, THRESHOLDS - 1, POINTS).round().astype(int))
    for kind in surveys[0].maps:
        for own in surveys:
            precision, recall = own.maps[kind].precision_recall()
            lines.append(Line(TITLES[kind], recall[keep], precision[keep], STYLE[kind]))
    say = "The area under each curve is PxAP."
    return Chart(
        "Precision against recall (area: PxAP)", "recall, %", "precision, %", lines, (0, 100), say=say
    )


def _distributions(surveys: Sequence[Survey]) -> Chart:
    lines, said = [], []
    x = (np.arange(THRESHOLDS) + 0.5) / THRESHOLDS
    for kind in surveys[0].maps:
        curves = [s.maps[kind].distribution() for s in surveys]
        lines.append(_mean_line(kind, TITLES[kind], curves, STYLE[kind], x, False))
        share = np.mean(
            [s.maps[kind].activations / max(1, s.maps[kind].activations.sum()) for s in surveys], 0
        )
        ends = 100 * (share[: THRESHOLDS // 20].sum() + share[-THRESHOLDS // 20 :].sum())
        said.append(f"{ends:.0f} percent of {TITLES[kind]} pixels lie within 0.05 of 0 or 1")
    title = "Distribution of activations over all pixels"
    label = "% of pixels per 0.001"
    top = 10.0 ** math.ceil(math.log10(max(1, *(float(np.max(line.y)) for line in lines))))
    return Chart(title, "activation", label, lines, (0, 1), (1e-3, top), True, "; ".join(said) + ".")


def _convergence(runs: Sequence[Finished]) -> list[Chart]:
    """Scores on val by epoch, a line per seed, the kept epoch marked."""
    charts = []
    for stage in dict.fromkeys(record["stage"] for run in runs for record in run.records):
        title = _stage_title(stage)
        lines: list[Line] = []
        longest = 1
        for run in runs:
            own = [record for record in run.records if record["stage"] == stage and record.get("val")]
            if not own:
                continue
            select = (run.config.stage1 if stage == "classifier" else run.config.stage2).select
            longest = max(longest, own[-1]["epoch"])
            lines += _score_lines(own, select)
        if lines:
            say = "A dot marks the epoch that was kept."
            name = f"{title}, scores on val by epoch (dot: kept)"
            lowest = 10 * math.floor(min(min(line.y) for line in lines) / 10)
            span = (min(lowest, 90), 100)
            charts.append(Chart(name, "epoch", "percent on val", lines, (1, max(2, longest)), span, say=say))
    return charts


def _stage_title(stage: str) -> str:
    """What a reader calls the stage that the log calls `stage`: the last round is "decoder", those before have a number."""
    if stage == "classifier":
        return "Stage 1: classifier"
    number = stage.removeprefix("decoder").removeprefix("-round")
    return f"Stage 2, round {number}: decoder" if number else "Stage 2: decoder"


def _score_lines(records: Sequence[dict[str, Any]], select: str) -> list[Line]:
    """Classification and localization of one stage of one run."""
    metrics = [m for m in METRIC_NAMES if m in records[0]["val"] and m != "max_box_acc_v2"]
    lines = []
    for style, metric in enumerate(dict.fromkeys([*metrics, select])):
        points = [(r["epoch"], r["val"][metric]) for r in records if metric in r["val"]]
        if not points:
            continue
        kept = (records[-1].get("best") or {}).get("epoch")
        dots = [p for p in points if p[0] == kept] if metric == select else []
        x, y = [p[0] for p in points], [p[1] for p in points]
        lines.append(Line(METRIC_NAMES.get(metric, metric), x, y, {"top1": 2}.get(metric, style % 2), dots))
    return lines
