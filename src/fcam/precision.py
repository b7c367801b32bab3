"""Which number format a network runs in."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from fcam.config import Precision

_DTYPES = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def fast_dtype(device: torch.device) -> torch.dtype:
    """Return the precision a network runs fastest in on `device` without loss that maps would show.

    bfloat16 on CPUs that multiply it natively (AMX, AVX512-BF16) and on GPUs that do, float32 elsewhere: a CPU that
    emulates bfloat16 runs convolutions several times slower than in float32.
    """
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability(device)[0] >= 8 else torch.float32
    if device.type == "cpu":
        native = [getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("amx_tile", "avx512_bf16")]
        return torch.bfloat16 if any(check is not None and check() for check in native) else torch.float32
    return torch.float32


def resolve(precision: Precision, device: torch.device) -> Precision:
    """ "auto" as what it means on `device`; anything else as it is."""
    if precision != "auto":
        return precision
    return "bf16" if fast_dtype(device) == torch.bfloat16 else "no"


def dtype_of(precision: Precision, device: torch.device) -> torch.dtype:
    """The number format that `precision` means on `device`."""
    return _DTYPES[resolve(precision, device)]


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Autocast of `precision` on `device`; nothing for "no"."""
    dtype = dtype_of(precision, device)
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype=dtype)
