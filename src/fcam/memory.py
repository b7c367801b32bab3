"""The C library's allocator during training on a CPU."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
"""Numbers of mallopt(3) in glibc."""


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, for the next allocation of that size.

    A training step allocates and frees the same maps, a hundred megabytes each, over and over. By default glibc takes
    each from the kernel anew, which clears it page by page: about a fifth of the step (benchmarks/allocator.py). The
    process stays as large as it has once been, so this is for a loop of equal steps and not for photos of any size.

    Returns:
        whether the setting was taken; False where the C library is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    taken = [
        mallopt(option, value)
        for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_TOP_PAD, 1 << 28))
    ]
    return all(taken)
