"""Tables of numbers over seeds, the paper's beside ours: what sweeps and reports show; `formats` writes them down."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

METRIC_TITLES = {
    "max_box_acc": "MaxBoxAcc@0.5",
    "max_box_acc_v2": "MaxBoxAccV2",
    "pxap": "PxAP",
    "top1_loc": "top-1 loc",
    "top5_loc": "top-5 loc",
}
MAP_TITLES = {"cam": "CAM", "fcam": "F-CAM"}
MISSING = "–"


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; sd None for one seed."""

    mean: float
    sd: float | None

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Spread | None:
        """The spread of values, None where one is missing."""
        known = tuple(value for value in values if value is not None)
        if not known or len(known) < len(values):
            return None
        return cls(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None)


@dataclass(frozen=True)
class Number:
    """A cell: our percentage over seeds, the paper's beside it, and the number of a footnote."""

    ours: Spread | None
    paper: float | None = None
    note: int | None = None
    digits: int = 1

    def text(self) -> str:
        """Mean ± sd."""
        if self.ours is None:
            return MISSING
        mean = f"{self.ours.mean:.{self.digits}f}"
        return mean if self.ours.sd is None else f"{mean} ± {self.ours.sd:.{self.digits}f}"

    def beside(self) -> str:
        """The paper's number in words, or nothing."""
        mark = f" [{self.note}]" if self.note else ""
        return "" if self.paper is None else f"paper {self.paper:.1f}{mark}"


Cell = str | Number


@dataclass(frozen=True)
class Table:
    """One table: title, what it says, header, rows and footnotes; `strong` are numbers of rows to stand out."""

    name: str
    title: str
    caption: str
    head: list[str]
    rows: list[list[Cell]]
    strong: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def number(row: Mapping[str, Any], metric: str, iou: str = "0.5") -> float | None:
    """One percentage of a row of `metrics.json`; those by overlap at `iou`."""
    value = row.get(metric)
    return value.get(iou) if isinstance(value, dict) else value


def footnote(notes: list[str], text: str) -> int:
    """Number of a footnote from 1; a text that is not there yet is added to `notes`."""
    if text not in notes:
        notes.append(text)
    return notes.index(text) + 1
