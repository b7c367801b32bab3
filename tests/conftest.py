"""Fixtures that several test files need."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of golden values and photo sets that lies beside the checkout; skip only where it is absent outside CI."""
    folder = Path(__file__).resolve().parents[1].parent / "shared"
    if not folder.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"CI is set but the folder of golden values is missing: {folder}")
        pytest.skip("the folder of golden values is not beside this checkout")
    return folder
