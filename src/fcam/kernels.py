"""Loops that numba compiles: without the GIL, and kept on disk where there is a folder to keep them in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def kernel(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator: numba's `njit` with `options`, compiled once per installation.

    Where neither the package's folder nor the user's cache can be written to, as in a container that runs as nobody,
    numba refuses to keep anything; then it is compiled once per process.
    """

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            return njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:  # no folder
            return njit(nogil=True, **options)(function)

    return compiled
