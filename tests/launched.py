"""Two processes on CPUs, as `accelerate launch` starts them: without `--multi_gpu` it starts one there whatever it is told."""

from __future__ import annotations

import os
import subprocess
import sys


def in_two_processes(*arguments: str) -> str:
    """Run a script, or `-m` and a module, with its arguments in two processes; returns what they printed."""
    launch = "--multi_gpu --num_machines 1 --num_processes 2 --mixed_precision no --dynamo_backend no"
    command = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        *launch.split(),
        "--main_process_port",
        "0",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
