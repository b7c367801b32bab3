"""The allocator's setting."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

GROWTH = """
import resource, sys
import torch
from fcam.memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
for _ in range(30):
    torch.ones(12_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(12_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_equal_allocations_stop_asking_the_kernel_for_pages():
    def faults(keep: str) -> int:
        command = [sys.executable, "-c", GROWTH, keep]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert faults("keep") < 100
    assert faults("leave") > 1000
