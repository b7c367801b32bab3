"""Thousands of damaged files for every reader: `python benchmarks/fuzz.py --cases 20000 --seed 0`.

Each input must end in a good result or in one sentence that names the file: no other exception, nothing else on the
terminal, no code run, no hang, no partial output. Prints counts per target and outcome, then what was violated and
the number by which that case can be run again; exits with 1 when anything was. What is fuzzed stands in tests/fuzz.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "fuzz"))

from targets import TARGETS, run_case  # pyright: ignore[reportMissingImports]

SHOWN = 5
"""Violations shown per target."""
MEMORY = 6 << 30
"""Bytes that a case may ask for; more is refused by the system instead of starving the machine."""


@dataclass
class Options:
    """Fuzz every reader of files."""

    cases: int = 20_000
    """Inputs over all targets."""
    seed: int = 0
    only: str = ""
    """Run one target, by name."""
    case: int = -1
    """With --only: run the one case of this number, with its traceback."""


def main(options: Options) -> int:
    asked = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (asked, resource.RLIM_INFINITY))
    names = [options.only] if options.only else list(TARGETS)
    share = sum(TARGETS[name][1] for name in names)
    violations, total = 0, 0
    print(
        "| target | inputs | good | refused | violations | slowest, s | in all, s |\n|---|--:|--:|--:|--:|--:|--:|"
    )
    with tempfile.TemporaryDirectory() as parent:
        for name in names:
            count = round(options.cases * TARGETS[name][1] / share)
            if name == names[-1]:
                count = options.cases - total
            numbers = [options.case] if options.case >= 0 else range(count)
            counts, slowest, started = Counter[str](), 0.0, time.perf_counter()
            found: list[str] = []
            for number in numbers:
                begun = time.perf_counter()
                try:
                    counts[
                        run_case(TARGETS[name][0], Path(parent), Random(f"{options.seed}/{name}/{number}"))
                    ] += 1
                except AssertionError as violation:
                    found.append(f"{name} {number}: {violation}")
                    if options.case >= 0:
                        traceback.print_exc()
                slowest = max(slowest, time.perf_counter() - begun)
            total += len(numbers)
            violations += len(found)
            seconds = time.perf_counter() - started
            print(
                f"| {name} | {len(numbers)} | {counts['good']} | {counts['refused']} | {len(found)} "
                f"| {slowest:.2f} | {seconds:.0f} |",
                flush=True,
            )
            for line in found[:SHOWN]:
                print(f"    {line}", flush=True)
    print(f"\n{total} inputs, {violations} violations, seed {options.seed}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
