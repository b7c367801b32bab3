"""Pools of plain threads for kernels that release the GIL: unlike numba's own they survive a fork and concurrent callers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def run(task: Callable[[Item], Result], items: Iterable[Item], threads: int | None = None) -> list[Result]:
    """Return [task(item) for item in items], computed on `threads` threads; by default on as many as torch uses.

    A task must not call `run` itself. A pool belongs to one process, so that a forked data loader worker never waits
    for threads that stayed with its parent; one item or one thread needs no pool at all.
    """
    items = list(items)
    threads = torch.get_num_threads() if threads is None else threads
    if threads == 1 or len(items) <= 1:
        return [task(item) for item in items]
    key = os.getpid(), threads
    pool = _pools.get(key)
    if pool is None:
        pool = _pools.setdefault(key, ThreadPoolExecutor(threads, thread_name_prefix="fcam"))
    return list(pool.map(task, items))
