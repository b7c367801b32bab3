"""Time a stage-2 training step on a CPU with glibc's allocator as it is, and with freed memory kept (fcam.memory).

    python benchmarks/allocator.py

Each setting runs in a process of its own, in turns; printed are the fastest step, the processor time of a step spent in the
program and in the kernel, and page faults.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import torch

from fcam.memory import keep_freed_memory
from fcam.recipes import recipe
from fcam.registry import create_model
from fcam.stages import DecoderStage


def measure(keep: bool, batch: int, steps: int) -> dict[str, float]:
    """Seconds and page faults of one step."""
    if keep and not keep_freed_memory():
        raise SystemExit("this C library has no mallopt")
    config = recipe("cub10-lite0-cam")
    torch.manual_seed(0)
    model = create_model(config.model.backbone, num_classes=10, pretrained=False, output_stride=16)
    stage = DecoderStage(model.to(memory_format=torch.channels_last), config)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(stage.parameter_groups(config.stage2.optimizer), lr=0.01, fused=True)
    stage.train()
    images = torch.rand(batch, 3, 224, 224).to(memory_format=torch.channels_last)
    labels, generator = torch.randint(0, 10, (batch,)), torch.Generator().manual_seed(0)
    walls = []
    for number in range(steps + 2):
        if number == 2:
            before = resource.getrusage(resource.RUSAGE_SELF)
        start = time.perf_counter()
        torch.stack(list(stage(images, labels, 1, generator).values())).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        walls.append(time.perf_counter() - start)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "step": min(walls[2:]),
        "program": (after.ru_utime - before.ru_utime) / steps,
        "kernel": (after.ru_stime - before.ru_stime) / steps,
        "faults": (after.ru_minflt - before.ru_minflt) / steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--keep", choices=("yes", "no"), help="one setting, as JSON")
    options = parser.parse_args()
    if options.keep:
        print(json.dumps(measure(options.keep == "yes", options.batch, options.steps)))
        return
    best: dict[str, dict[str, float]] = {}
    for keep in ("no", "yes") * options.turns:
        command = [sys.executable, __file__, "--keep", keep, "--batch", str(options.batch)]
        output = subprocess.run(
            [*command, "--steps", str(options.steps)], check=True, capture_output=True, text=True
        )
        found = json.loads(output.stdout.splitlines()[-1])
        best[keep] = min(best.get(keep, found), found, key=lambda one: one["step"])
    for keep, one in best.items():
        name = "memory kept" if keep == "yes" else "as it is"
        print(
            f"{name:12} step {one['step']:.2f} s, program {one['program']:.2f} s, "
            f"kernel {one['kernel']:.2f} s, {one['faults']:.0f} page faults"
        )
    print(f"ratio {best['no']['step'] / best['yes']['step']:.2f}")


if __name__ == "__main__":
    main()
