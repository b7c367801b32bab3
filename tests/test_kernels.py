"""Compiled loops, also where nothing can be written."""

from __future__ import annotations

import pytest
from numba.core.caching import CompileResultCacheImpl

from fcam.kernels import kernel


def twice(x: int) -> int:
    return 2 * x


def test_without_a_folder_for_the_cache_kernels_are_compiled_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CompileResultCacheImpl, "_locator_classes", [])
    monkeypatch.delenv("NUMBA_CACHE_LOCATOR_CLASSES", raising=False)
    assert kernel()(twice)(21) == 42
