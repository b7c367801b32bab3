"""Two processes on CPUs, as `torchrun` starts them; `accelerate launch` without MPI starts one there whatever it is told."""

from __future__ import annotations

import os
import subprocess
import sys


def in_two_processes(*arguments: str) -> str:
    """Run a script, or `-m` and a module, with its arguments in two processes; returns what they printed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
