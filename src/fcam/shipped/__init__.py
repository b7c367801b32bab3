"""Models that come with the package: a folder each, with the decoder's weights and a card (README.md)."""

from __future__ import annotations

from pathlib import Path

NAMES = ("lite0",)
DEFAULT = "lite0"
"""What prediction takes when no model is named."""


def folder(name: str) -> Path:
    """The folder of a shipped model."""
    return Path(__file__).parent / name
