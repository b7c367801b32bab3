"""Timing of calls on any device: warmed up, synchronised, medians with their quartiles."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch

from fcam.errors import FcamError
from fcam.progress import say

Call = Callable[[], object]
PATIENCE_MS = 5e3
"""Longer work is announced."""


def warm_up_calls(device: torch.device) -> int:
    """Untimed calls before the first timed one: kernels are chosen, compiled and their memory is found."""
    return 3 if device.type == "cuda" else 1


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of repeated measurements."""

    median: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise at least one value."""
        middle = statistics.median(values)
        if len(values) < 2:
            return cls(middle, middle, middle, len(values))
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high, len(values))

    def as_dict(self) -> dict[str, float]:
        """The fields as JSON values."""
        return asdict(self)


def pick_device(name: str) -> torch.device:
    """Return "cpu", "cuda", or for "auto" the GPU where there is one; raises `FcamError` without the GPU asked for."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise FcamError(
            "--device cuda was asked for, but torch sees no GPU; leave it off or take --device cpu"
        )
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def synchronize(device: torch.device) -> None:
    """Wait until everything queued on `device` is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def milliseconds(call: Call, device: torch.device) -> float:
    """Wall time of one call, from an idle device to an idle device."""
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    return 1e3 * (time.perf_counter() - start)


def processor_milliseconds(call: Call) -> float:
    """Processor time of one call, all threads together: what it costs however busy the machine is."""
    start = time.process_time()
    call()
    return 1e3 * (time.process_time() - start)


def repeat(call: Call, device: torch.device, repeats: int, warm_up: int = 1) -> Spread:
    """Time `call` `repeats` times after `warm_up` untimed calls, in milliseconds."""
    for _ in range(warm_up):
        call()
    return Spread.of([milliseconds(call, device) for _ in range(repeats)])


def side_by_side(
    calls: Mapping[str, Call], plain: str, device: torch.device, repeats: int, warm_up: int = 1
) -> dict[str, tuple[Spread, float]]:
    """Time all calls in turn, round after round, so that a machine that gets slower slows them alike.

    Returns:
        name -> (milliseconds, median over the rounds of the ratio to the call named `plain`).
    """
    round_ms = 0.0
    for _ in range(warm_up):
        round_ms = sum(milliseconds(call, device) for call in calls.values())
    if round_ms * repeats > PATIENCE_MS:
        # A live bar would draw while calls are timed.
        say(f"  about {round_ms * repeats / 1e3:.0f} s")
    rounds = [{name: milliseconds(call, device) for name, call in calls.items()} for _ in range(repeats)]
    return {
        name: (
            Spread.of([row[name] for row in rounds]),
            statistics.median(row[name] / row[plain] for row in rounds),
        )
        for name in calls
    }
