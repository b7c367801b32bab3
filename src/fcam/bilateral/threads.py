"""A pool of plain threads for kernels that release the GIL, as many as torch uses."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def run(task: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return [task(item) for item in items], computed on `torch.get_num_threads()` threads.

    The pool belongs to one process, so that a forked data loader worker never waits for threads that stayed
    with its parent; one item or one thread needs no pool at all.
    """
    items = list(items)
    threads = torch.get_num_threads()
    if threads == 1 or len(items) == 1:
        return [task(item) for item in items]
    key = os.getpid(), threads
    pool = _pools.get(key)
    if pool is None:
        pool = _pools.setdefault(key, ThreadPoolExecutor(threads, thread_name_prefix="fcam-bilateral"))
    return list(pool.map(task, items))
