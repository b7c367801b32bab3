"""What verifying a data set found, and how it is printed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fcam.errors import one_line


@dataclass(frozen=True)
class SplitSummary:
    """One row of the report: what a split holds."""

    split: str
    images: int
    classes: int
    images_per_class: tuple[int, int]
    boxes: int
    masks: int
    sizes: tuple[int, int, int, int]
    """Smallest width, smallest height, largest width, largest height in pixels; zeros without readable
    images.
    """


@dataclass
class Report:
    """What `check` found: `problems` make results wrong or training fail, `notes` are only worth knowing."""

    root: Path
    layout: str
    rows: list[SplitSummary] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def print_report(report: Report, console: Console | None = None, limit: int = 50) -> None:
    """Print the summary table, then at most `limit` notes and problems, each on a line, whatever bytes names are made of."""
    console = console or Console()
    table = Table(title=f"{escape(one_line(str(report.root)))} ({report.layout})")
    for name in ("split", "images", "classes", "per class", "boxes", "masks", "sizes"):
        table.add_column(name, justify="left" if name == "split" else "right")
    for row in report.rows:
        fewest, most = row.images_per_class
        small, large = f"{row.sizes[0]}x{row.sizes[1]}", f"{row.sizes[2]}x{row.sizes[3]}"
        table.add_row(
            row.split,
            str(row.images),
            str(row.classes),
            str(most) if fewest == most else f"{fewest} to {most}",
            str(row.boxes or "-"),
            str(row.masks or "-"),
            small if small == large else f"{small} to {large}",
        )
    console.print(table)
    for note in report.notes[:limit]:
        console.print(f"[yellow]note[/] {escape(one_line(note))}", soft_wrap=True)
    for problem in report.problems[:limit]:
        console.print(f"[red]problem[/] {escape(one_line(problem))}", soft_wrap=True)
    if len(report.problems) > limit:
        console.print(f"[red]problem[/] and {len(report.problems) - limit} more")
    count = len(report.problems)
    console.print("no problems" if not count else f"{count} problem{'s' if count > 1 else ''}")
