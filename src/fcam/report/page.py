"""One self-contained HTML page: text, tables and pictures, no network, light and dark."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from fcam import files

STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { line-height: 1.2; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
tr.strong td { font-weight: 600; }
img { max-width: 100%; height: auto; border-radius: 6px; } small, figcaption { opacity: .75; } figure { margin: 1rem 0; }
"""


def text(paragraph: str) -> str:
    """A paragraph; the text is escaped."""
    return f"<p>{html.escape(paragraph)}</p>"


def heading(title: str) -> str:
    """A section title; the text is escaped."""
    return f"<h2>{html.escape(title)}</h2>"


def table(rows: Sequence[Sequence[str]], strong: str = "F-CAM") -> str:
    """A table whose first row is the header; rows that start with `strong` are set in bold."""
    head, *body = [[html.escape(cell) for cell in row] for row in rows]
    lines = ["<tr>" + "".join(f"<th>{cell}</th>" for cell in head) + "</tr>"]
    for row in body:
        mark = ' class="strong"' if row[0] == strong else ""
        lines.append(f"<tr{mark}>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>")
    return '<div class="scroll"><table>' + "".join(lines) + "</table></div>"


def picture(image: Image.Image, caption: str) -> str:
    """A picture inside the page, with its caption below."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    label = html.escape(caption)
    return f'<figure><img alt="{label}" src="data:image/png;base64,{data}"><figcaption>{label}</figcaption></figure>'


def write_page(path: Path, title: str, parts: Sequence[str]) -> None:
    """Write the page, whole or not at all."""
    name = html.escape(title)
    files.write_text(
        path,
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{name}</title><style>{STYLE}</style></head><body><h1>{name}</h1>{''.join(parts)}</body></html>\n",
    )
