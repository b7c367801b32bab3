"""Fenced blocks of the language `math` become MathML when the site is built: browsers draw it without script or font.

The blocks hold LaTeX, so that code hosts render the same pages as they are.
"""

from __future__ import annotations

import re
from typing import Any

from latex2mathml.converter import convert

_BLOCK = re.compile(r"^```math\n(.*?)\n```$", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs for every page before Markdown is parsed."""
    return _BLOCK.sub(lambda block: _equation(block[1]), markdown)


def _equation(latex: str) -> str:
    return f'<div class="equation">{convert(" ".join(latex.split()), display="block")}</div>'
