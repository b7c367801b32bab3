"""Results as tables: one form for the terminal, one for Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table as RichTable

from fcam.benchmark.published import AUTHORS_LABEL, AUTHORS_NOTE, P100_NOTE
from fcam.benchmark.train_step import PARTS
from fcam.progress import wide_console

WIDTH = 130
SPREAD = "quartiles"


@dataclass
class Table:
    """Cells as text, and sentences below them."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)

    def without_empty_columns(self) -> Table:
        """Drop the columns that have nothing to say."""
        kept = [i for i in range(len(self.columns)) if any(row[i] for row in self.rows)]
        rows = [[row[i] for i in kept] for row in self.rows]
        return Table(self.title, [self.columns[i] for i in kept], rows, self.notes)

    def markdown(self) -> str:
        """The table as Markdown."""
        lines = [f"## {self.title}", "", _line(self.columns)]
        lines += [_line([":--", *["--:"] * (len(self.columns) - 1)]), *(_line(row) for row in self.rows)]
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes)]) + "\n"

    def rich(self) -> RichTable:
        """The table for a terminal."""
        shown = RichTable(title=self.title, caption="\n".join(self.notes) or None, caption_justify="left")
        for place, name in enumerate(self.columns):
            shown.add_column(name, justify="right" if place else "left", no_wrap=True)
        for row in self.rows:
            shown.add_row(*row)
        return shown


def tables(result: Mapping[str, Any]) -> list[Table]:
    """Every table that a result of `fcam benchmark` holds."""
    found = [_runtime(one) for one in result.get("runtime", [])]
    found += [_step(one) for one in result.get("train_step", [])]
    if "crf" in result:
        found += _crf(result["crf"])
    return [table.without_empty_columns() for table in found]


def headline(environment: Mapping[str, Any]) -> str:
    """The device and what else figures depend on, as one line."""
    device, cpu = environment["device"], environment["cpu"]
    host = "" if device == cpu else f" (host: {cpu})"
    return (
        f"{device}{host}, {environment['threads']} CPU threads, {environment['precision']}, "
        f"torch {environment['torch']}, fcam {environment['fcam']}"
    )


def as_markdown(result: Mapping[str, Any]) -> str:
    """The whole result as a Markdown page."""
    head = f"# fcam benchmark\n\n{headline(result['environment'])}\n"
    return "\n".join([head, *(table.markdown() for table in tables(result))])


def show(result: Mapping[str, Any]) -> None:
    """Print the tables."""
    output = wide_console(WIDTH)
    output.print(headline(result["environment"]), markup=False, highlight=False)
    for table in tables(result):
        output.print(table.rich())


def _runtime(one: Mapping[str, Any]) -> Table:
    rows = []
    for row in one["rows"]:
        map_ = row["map"]
        rows.append(
            [
                row["title"] + (" *" if row["extrapolated_from_channels"] else ""),
                _ms(row["ms"]["median"]),
                _spread(row["ms"]),
                f"{row['ratio']:.2f}",
                f"{row['parameters'] / 1e6:.1f}",
                f"{map_[0]}x{map_[1]}" if map_ else "",
                "" if row["paper_p100_ms"] is None else _ms(row["paper_p100_ms"]),
            ]
        )
    parameters, features = one["parameters"], one["features"]
    notes = [
        f"Classifier {parameters['classifier'] / 1e6:.1f} M parameters, decoder {parameters['decoder'] / 1e6:.1f} M; "
        f"top features {features['channels']} maps of {features['map'][0]}x{features['map'][1]}. Ratios are to the "
        "classifier's forward in the same precision; every row includes its forward and a map at the size of the image."
    ]
    channels = [row["extrapolated_from_channels"] for row in one["rows"] if row["extrapolated_from_channels"]]
    if channels:
        notes.append(f"* timed on {channels[0]} channels and extrapolated to all {features['channels']}.")
    if any(row["paper_p100_ms"] is not None for row in one["rows"]):
        notes.append(P100_NOTE)
    title = f"{one['backbone']}, batch {one['batch_size']}, {one['size']}x{one['size']}"
    columns = ["method", "ms", SPREAD, "ratio", "M parameters", "map", "paper, P100 (ms)"]
    return Table(title, columns, rows, notes)


def _step(one: Mapping[str, Any]) -> Table:
    authors = one["authors_parts_ms"] or {}
    rows = [
        _part(title, one["parts"][name], one["whole"]["median"], authors.get(name))
        for name, title in PARTS.items()
    ]
    total = sum(part["median"] for part in one["parts"].values())
    rows.append(["sum of parts", _ms(total), "", f"{100 * total / one['whole']['median']:.0f} %", "", ""])
    rows.append(_part("whole step", one["whole"], one["whole"]["median"], one["authors_ms"]))
    notes = [
        f"{one['images_per_second']:.1f} images/s. Parts are timed with a synchronisation after each, the whole step "
        "without."
    ]
    if one["gpu_busy"] is not None:
        notes.append(f"The GPU was busy {100 * one['gpu_busy']:.0f} % of the whole step.")
    if one["gpu_peak_memory_bytes"] is not None:
        notes.append(f"Peak GPU memory {one['gpu_peak_memory_bytes'] / 2**30:.2f} GiB.")
    if one["compile"]:
        notes.append("The whole step is compiled with torch.compile; the parts are not.")
    if one["authors_ms"] is not None:
        notes.append(AUTHORS_NOTE)
    title = f"stage-2 step, {one['backbone']}, batch {one['batch_size']}, {one['size']}x{one['size']}"
    columns = ["part", "ms", SPREAD, "share", f"{AUTHORS_LABEL} (ms)"]
    return Table(title, [*columns, "theirs / ours"], rows, notes)


def _part(title: str, ms: Mapping[str, float], whole: float, authors: float | None) -> list[str]:
    theirs = ["", ""] if authors is None else [_ms(authors), f"{authors / ms['median']:.1f}"]
    return [title, _ms(ms["median"]), _spread(ms), f"{100 * ms['median'] / whole:.0f} %", *theirs]


def _crf(result: Mapping[str, Any]) -> list[Table]:
    size = result["times"][0]["side"]
    times = [
        [
            row["method"],
            str(row["batch_size"]),
            _ms(row["ms"]["median"]),
            _spread(row["ms"]),
            _ms(row["ms_per_image"]),
            "" if row["authors_ms"] is None else _ms(row["authors_ms"] / row["batch_size"]),
        ]
        for row in result["times"]
    ]
    growth = [
        [f"{row['side']}x{row['side']}", _ms(row["ms_per_image"]), f"{row['ns_per_pixel']:.3g}"]
        for row in result["growth"]
    ]
    errors = [[row["method"], f"{row['error']:.2g}", f"{row['gain']:.2f}"] for row in result["errors"]]
    batch = result["growth"][0]["batch_size"] if result["growth"] else 0
    images = result["images"]
    columns = ["method", "batch", "ms per batch", SPREAD, "ms per image"]
    columns.append("authors' C++ lattice, 2 CPU cores (ms per image)")
    return [
        Table(f"CRF loss, value and gradient, {size}x{size}, 2 maps, {images}", columns, times),
        Table(
            f"CRF loss by image size, gaussian, batch {batch}",
            ["side", "ms per image", "ns per pixel"],
            growth,
        ),
        Table(
            f"Filter against the exact sum, {result['errors'][0]['images']} {images}, {size}x{size}",
            ["method", "largest relative L2 error", "gain"],
            errors,
            ["The gain is the factor on the true sum that the filter returns; 1 is right."],
        ),
    ]


def _ms(value: float) -> str:
    """Three significant digits, without exponents."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _spread(ms: Mapping[str, float]) -> str:
    return f"{_ms(ms['low'])}–{_ms(ms['high'])}"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
