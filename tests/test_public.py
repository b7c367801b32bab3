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


def test_public_names_stay_what_they_are_when_their_modules_are_imported():
    code = (
        "import fcam, inspect, pkgutil, importlib\n"
        "before = {n: getattr(fcam, n) for n in fcam.__all__}\n"
        "[importlib.import_module(m.name) for m in pkgutil.iter_modules(fcam.__path__, 'fcam.') if m.name != 'fcam.__main__']\n"
        "assert all(getattr(fcam, n) is before[n] for n in before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
