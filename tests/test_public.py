"""The public names of the package, and that asking for help does not load torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fcam


@pytest.mark.parametrize("name", fcam.__all__)
def test_every_public_name_is_there_and_documented(name):
    assert getattr(fcam, name).__doc__


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="nothing"):
        _ = fcam.nothing  # type: ignore[attr-defined]


def test_help_does_not_load_torch():
    code = "import sys; from fcam.cli import main; main(['--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
