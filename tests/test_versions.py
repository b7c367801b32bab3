"""The versions that `make oldest` installs are the oldest that pyproject.toml admits."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("lite0", "tensorboard", "export", "grabcut")
"""Those that `make oldest` installs."""


def test_the_oldest_versions_are_those_that_are_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(d for extra in EXTRAS for d in project["optional-dependencies"][extra]),
    ]
    lines = (ROOT / "tests" / "oldest.txt").read_text(encoding="utf-8").splitlines()
    tried = [line for line in lines if not line.startswith("#")]
    assert sorted(tried) == sorted(d.replace(">=", "==") for d in wanted)
    assert all("==" in line for line in tried)
