"""Names and integers as their owner has them, in a list, an array or a tensor, made plain: only such can be stored as JSON."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Sequence
from typing import Any

from fcam.errors import FcamError, shown


def class_names(values: Iterable[str]) -> list[str]:
    """Class names in label order, (K,), from any iterable or array; raises `FcamError` for what holds no names."""
    found = _entries(values)
    if found is None or not all(isinstance(name, str) for name in found):
        raise FcamError(f"classes are {shown(values)}; give a list of names in the order of the outputs")
    return [str(name) for name in found]


def integers(values: Iterable[Any], what: str) -> tuple[int, ...]:
    """Integers (N,) from any iterable, array or tensor; raises `FcamError`, which calls them `what`, for anything else."""
    found = _entries(values)
    with contextlib.suppress(TypeError):
        # A mask of True and False is not meant to say 1 and 0.
        if found is not None and not any(isinstance(value, bool) for value in found):
            return tuple(operator.index(value) for value in found)
    raise FcamError(f"{what} are {shown(values)}; give a list of integers")


def _entries(values: Any) -> Sequence[Any] | None:
    """What a list, array or tensor of one dimension holds; None for a single value, and a text is one."""
    plain = values.tolist() if hasattr(values, "tolist") else values
    return list(plain) if isinstance(plain, Iterable) and not isinstance(plain, str | bytes) else None
