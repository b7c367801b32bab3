"""A small set in the benchmark's layout that tests may break."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fcam.data.synthetic import draw_set


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_set(tmp_path_factory.mktemp("drawn"), images_per_class=(4, 2, 2), classes=3, seed=7, size=72)


@pytest.fixture
def wsol_set(drawn: Path, tmp_path: Path) -> Path:
    return shutil.copytree(drawn, tmp_path / "set")
