"""Checkpoints that run code in a reader which unpickles them."""

from __future__ import annotations

import pickle
from pathlib import Path
from random import Random
from typing import Any

import torch
from judge import Violation


class _Evil:
    """Unpickled without care, it writes a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.target, "executed")


def evil_file(path: Path, rng: Random, state: Any, target: Path) -> None:
    """A checkpoint that runs code when it is unpickled: torch's zip, torch's old format, or a bare pickle."""
    evil = rng.choice((_Evil(target), {"state_dict": _Evil(target)}, {**state, "x": _Evil(target)}))
    if rng.random() < 0.4:
        path.write_bytes(pickle.dumps(evil, protocol=rng.choice((0, 2, 4))))
    else:
        torch.save(evil, path, _use_new_zipfile_serialization=rng.random() < 0.6)


def check_trap(trap: Path) -> None:
    if trap.exists():
        raise Violation("code in a file was executed")
