"""`fcam simulate`: numbers, a table and a figure of what resolution costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcam import files
from fcam.errors import FcamError, escaped
from fcam.progress import say
from fcam.simulate.simulation import FACTORS, measured, simulate, truths_of_dataset, truths_of_folder

METRICS = {"pxap": "PxAP", "max_box_acc": "MaxBoxAcc at 0.5"}
WAYS = {"averaged": "area averaged (antialiased)", "sampled": "sampled (not antialiased)"}
LINES = {"averaged": ("#0072B2", "-", "o"), "sampled": ("#D55E00", "--", "s")}
"""Colour, line and marker: blue and vermilion are told apart by every kind of colour vision, and the rest in print."""
MARKERS = {"cam": ("^", "#009E73", "CAM"), "fcam": ("*", "#CC79A7", "F-CAM")}


@dataclass(frozen=True)
class SimulateConfig:
    """Score true masks that were made small by a factor z and large again: an upper bound for maps of that resolution.

    Writes simulation.json, simulation.md and simulation.png. MaxBoxAcc is against the boxes of the data set, or against
    those around the parts of the masks where it has none.
    """

    data: str = ""
    """Data set with masks."""
    split: str = "test"
    masks: Path | None = None
    """Folder of mask PNG files instead of a data set."""
    out: Path = Path("simulation")
    """Folder for the three files."""
    z: tuple[float, ...] = FACTORS
    """Factors."""
    size: int = 224
    """Side at which maps are scored."""
    runs: tuple[Path, ...] = ()
    """Finished runs whose CAM and F-CAM are drawn on the same axes."""


def run_simulate(config: SimulateConfig) -> Path:
    """Do what `fcam simulate` was asked for; returns the folder of results."""
    if (config.masks is None) == (config.data == ""):
        raise FcamError("name either a data set with --data, or a folder of masks with --masks")
    runs = [measured(folder) for folder in config.runs]  # a wrong folder ends here, before the work
    for run in runs:
        if run["side"] != config.size:
            raise FcamError(
                f"{run['run']} was scored at {run['side']} pixels a side, the masks would be at {config.size}, where its z is "
                f"another; add --size {run['side']}"
            )
    if config.masks is not None:
        truths, total = truths_of_folder(config.masks, config.size)
        name = config.masks.resolve().name
    else:
        truths, total = truths_of_dataset(config.data, config.split, config.size)
        data = Path(config.data).resolve().name
        name = f"{config.split} of {data}"
        for run in runs:
            if (run["data"], run["split"]) != (data, config.split):
                raise FcamError(
                    f"{run['run']} was scored on {run['split']} of {run['data']}, the masks are those of {name}; "
                    "draw them in separate figures"
                )
    files.check_writable(config.out / "simulation.json")
    result = {"masks": name, **simulate(truths, config.z, total), "runs": runs}
    files.write_json(config.out / "simulation.json", result)
    files.write_text(config.out / "simulation.md", as_markdown(result))
    draw(result, config.out / "simulation.png")
    say(as_markdown(result))
    say(f"numbers, table and figure in {config.out}")
    return config.out


def as_markdown(result: Mapping[str, Any]) -> str:
    """The curve as a table, and the runs below it."""
    side = result["side"]
    left = result["without_mask"]
    left_out = f"; {left} more without a mask are left out" if left else ""
    lines = [
        f"True masks of {result['images']} images ({result['masks']}) at {side}x{side}, made small by z and bilinearly large "
        f"again{left_out}. Percent; boxes of {result['boxes']}.",
        "",
        "| z | map | PxAP, averaged | PxAP, sampled | MaxBoxAcc@0.5, averaged | MaxBoxAcc@0.5, sampled |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["curve"]:
        numbers = [_number(row[metric][way]) for metric in METRICS for way in WAYS]
        lines.append(f"| {row['z']:g} | {row['map_side']}x{row['map_side']} | " + " | ".join(numbers) + " |")
    if result["runs"]:
        lines += ["", "| run | map | z | PxAP | MaxBoxAcc@0.5 |", "|---|---|---|---|---|"]
    for run in result["runs"]:
        for kind, row in run["maps"].items():
            cells = [
                run["run"],
                MARKERS[kind][2],
                f"{row['z']:g}",
                *(_number(row[metric]) for metric in METRICS),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw both metrics against z, with the runs' CAM and F-CAM as single points, into a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2)
    for axes, (metric, title) in zip(panels, METRICS.items(), strict=True):
        z = [row["z"] for row in result["curve"]]
        for way, label in WAYS.items():
            color, line, marker = LINES[way]
            values = [row[metric][way] for row in result["curve"]]
            if None not in values:
                axes.plot(z, values, line, marker=marker, color=color, label=f"true mask, {label}")
        _draw_runs(axes, result["runs"], metric)
        axes.set_xscale("log", base=2)
        axes.set_xticks(z, [f"{value:g}" for value in z])
        axes.minorticks_off()
        axes.set_xlabel("down-scaling factor z")
        axes.set_ylabel(f"{title} (%)")
        axes.grid(alpha=0.3)
    panels[0].legend(fontsize=8)
    title = f"Upper bound by resolution: {result['masks']}, {result['images']} images"
    # A dollar in a folder's name begins no formula, and its bytes may be no text.
    figure.suptitle(escaped(title), fontsize=11, parse_math=False)
    with files.write_atomic(path) as temporary:
        figure.savefig(temporary, dpi=150)


def _draw_runs(axes: Any, runs: Sequence[Mapping[str, Any]], metric: str) -> None:
    for run in runs:
        for kind, row in run["maps"].items():
            if row[metric] is None:
                continue
            marker, color, name = MARKERS[kind]
            size = 13 if kind == "fcam" else 8
            axes.plot(
                [row["z"]], [row[metric]], marker, color=color, markersize=size, markeredgecolor="black"
            )
            axes.annotate(
                escaped(f"{name} {run['run']}"),
                (row["z"], row[metric]),
                xytext=(7, -9),
                textcoords="offset points",
                fontsize=7,
                parse_math=False,
            )
