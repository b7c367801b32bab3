"""Tables as HTML, Markdown, LaTeX and CSV; whatever comes from users is escaped."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Sequence
from typing import Any

from fcam.tables import Cell, Number, Table


def as_html(table: Table) -> str:
    """The table with its title, caption and footnotes; all text escaped."""
    lines = ["<tr>" + "".join(f'<th scope="col">{html.escape(c)}</th>' for c in table.head) + "</tr>"]
    previous: Cell = ""
    for place, row in enumerate(table.rows):
        mark = ' class="strong"' if place in table.strong else ""
        name = ""
        if row[0] != previous:  # rows of one group share its name
            rows = next(
                (i for i, own in enumerate(table.rows[place:]) if own[0] != row[0]), len(table.rows) - place
            )
            name = f'<th scope="rowgroup" rowspan="{rows}">{html.escape(str(row[0]))}</th>'
        previous = row[0]
        lines.append(f"<tr{mark}>{name}" + "".join(_html_cell(cell) for cell in row[1:]) + "</tr>")
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in table.notes)
    return (
        f'<div class="scroll"><table id="table-{table.name}"><caption>{html.escape(table.caption)}</caption>'
        f"<thead>{lines[0]}</thead><tbody>{''.join(lines[1:])}</tbody></table></div>"
        + (f'<ol class="notes">{notes}</ol>' if notes else "")
    )


def _html_cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return f"<td>{html.escape(cell)}</td>"
    beside = f"<small>{html.escape(cell.beside())}</small>" if cell.beside() else ""
    return f'<td class="n">{html.escape(cell.text())}{beside}</td>'


def as_markdown(tables: Sequence[Table]) -> str:
    """All tables as Markdown."""
    parts = []
    for table in tables:
        lines = [table.head, ["---"] * len(table.head), *(_texts(row) for row in table.rows)]
        grid = "\n".join("| " + " | ".join(_markdown(c) for c in line) + " |" for line in lines)
        notes = "\n".join(f"[{i}] {note}" for i, note in enumerate(table.notes, start=1))
        parts.append("\n\n".join(filter(None, [f"## {table.title}", table.caption, grid, notes])))
    return "\n\n".join(parts) + "\n"


def as_latex(tables: Sequence[Table]) -> str:
    """All tables as LaTeX `tabular`s with booktabs rules."""
    parts = ["% needs \\usepackage{booktabs}"]
    for table in tables:
        numbers = [isinstance(cell, Number) for cell in (table.rows[0] if table.rows else [])]
        lines = [
            f"% {table.title}: {table.caption}",
            rf"\begin{{tabular}}{{{''.join('r' if n else 'l' for n in numbers)}}}",
            r"\toprule",
            " & ".join(_latex(cell) for cell in table.head) + r" \\",
            r"\midrule",
            *(" & ".join(_latex(cell) for cell in _texts(row)) + r" \\" for row in table.rows),
            r"\bottomrule",
            r"\end{tabular}",
            *(f"% [{i}] {note}" for i, note in enumerate(table.notes, start=1)),
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def as_csv(table: Table) -> str:
    """One table with full precision: mean, sd and the paper's number in columns of their own."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    numbers = {i for row in table.rows for i, cell in enumerate(row) if isinstance(cell, Number)}
    head: list[str] = []
    for i, title in enumerate(table.head):
        head += [title, f"{title} sd", f"{title} paper"] if i in numbers else [title]
    writer.writerow(head)
    for row in table.rows:
        cells: list[Any] = []
        for cell in row:
            if isinstance(cell, str):
                cells.append(plain(cell))
            else:
                cells += [cell.ours and cell.ours.mean, cell.ours and cell.ours.sd, cell.paper]
        writer.writerow(["" if cell is None else cell for cell in cells])
    return stream.getvalue()


def plain(text: str) -> str:
    """A spreadsheet must not take the name of a class or folder for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def _texts(row: Sequence[Cell]) -> list[str]:
    """Cells as plain text, the paper's number in brackets."""
    return [cell if isinstance(cell, str) else _both(cell) for cell in row]


def _both(cell: Number) -> str:
    return f"{cell.text()} ({cell.beside()})" if cell.beside() else cell.text()


def _markdown(text: str) -> str:
    """Text in which Markdown sees no table, emphasis, code or link."""
    escaped = re.sub(r"([\\|*_`]|(?<=\])\()", r"\\\1", text.replace("\n", " "))
    return html.escape(escaped, quote=False)


_LATEX = {"\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}"}
_LATEX |= {"^": r"\textasciicircum{}", "±": r"$\pm$", "τ": r"$\tau$", "–": "--", "·": r"$\cdot$", "⁻": "$^-$"}
_LATEX |= {sign: "\\" + sign for sign in "_&%#$"} | {
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "α": r"$\alpha$",
}


def _latex(text: str) -> str:
    """Text in which LaTeX sees no command."""
    return "".join(_LATEX.get(sign, sign) for sign in text)
