"""What a figure depends on beside the code: the machine, the number format, the versions."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch

from fcam import __version__
from fcam.config import Precision
from fcam.precision import resolve


def environment(device: torch.device, precision: Precision) -> dict[str, Any]:
    """Device, threads, number format and versions, as JSON values."""
    facts: dict[str, Any] = {
        "device": device_name(device),
        "cpu": _cpu_name(),
        "threads": torch.get_num_threads(),
        "precision": describe_precision(precision, device),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "fcam": __version__,
    }
    if device.type == "cuda":
        facts |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    return facts


def device_name(device: torch.device) -> str:
    """Name of the GPU, or of the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()


def describe_precision(precision: Precision, device: torch.device) -> str:
    """The number format in words; on a GPU "float32" convolutions may be multiplied in TF32."""
    name = {"no": "float32", "bf16": "bfloat16 autocast", "fp16": "float16 autocast"}[
        resolve(precision, device)
    ]
    if name == "float32" and device.type == "cuda" and torch.backends.cudnn.allow_tf32:
        return "float32 (convolutions in TF32, torch's default)"
    return name


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
