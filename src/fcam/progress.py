"""What long work shows: a bar with rate and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

console = Console(stderr=True, soft_wrap=True)


class _Rate(ProgressColumn):
    """Items per second since the start."""

    def render(self, task: Task) -> Text:
        rate = task.finished_speed or task.speed
        return Text(
            f"{task.fields.get('items', 0) / task.elapsed:.1f} img/s" if rate and task.elapsed else ""
        )


class Bar:
    """Handle that `epoch_bar` yields."""

    def __init__(self, progress: Progress | None, task: int | None) -> None:
        self.progress, self.task, self.items = progress, task, 0

    def advance(self, items: int) -> None:
        """Count one step of `items` images."""
        self.items += items
        if self.progress is not None and self.task is not None:
            self.progress.update(self.task, advance=1, items=self.items)  # type: ignore[arg-type]


@contextmanager
def epoch_bar(title: str, steps: int, shown: bool = True) -> Iterator[Bar]:
    """A bar over `steps` steps; silent when the output is not a terminal or `shown` is False."""
    if not (shown and console.is_terminal):
        yield Bar(None, None)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield Bar(progress, progress.add_task(title, total=steps, items=0))


def wide_console(width: int) -> Console:
    """The terminal for tables, at least `width` wide: a pipe has no width of its own, and numbers must not be cut there."""
    return Console(width=max(Console().width, width))


def say(line: str) -> None:
    """One line of news."""
    console.print(line, markup=False, highlight=False)
