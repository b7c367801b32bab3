"""The Triton kernel: in Triton's interpreter everywhere, on the GPU where there is one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from fcam import bilateral
from fcam.bilateral.tensors import TensorSum

INTERPRETED = """
import torch
from fcam.bilateral.cuda import TileSum
from fcam.bilateral.tensors import TensorSum

generator = torch.Generator().manual_seed(0)
# The last case is the hardest for float32: blocks of random colours, hundreds of sigmas from each other.
for size, count, sigmas, tolerance in (
    ((13, 20), 2, (15.0, 100.0), 1e-4),
    ((8, 17), 3, (6.0, 5.0), 1e-4),
    ((9, 9), 1, (1.0, 2.0), 1e-2),
):
    images = torch.rand(2, 3, *size, generator=generator)
    images[:, :, :, : size[1] // 2] = 1.0
    maps = torch.rand(2, count, *size, generator=generator)
    result, truth = TileSum(images, *sigmas).apply(maps), TensorSum(images, *sigmas).apply(maps)
    error = ((result - truth).norm() / truth.norm()).item()
    assert error < tolerance, (size, count, sigmas, error)
print("agrees")
"""


def test_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", INTERPRETED]
    outcome = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert outcome.stdout.strip() == "agrees", outcome.stderr


def test_importable_without_triton() -> None:
    script = "import sys; sys.modules['triton'] = None; import fcam.bilateral; print('imported')"
    outcome = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert outcome.stdout.strip() == "imported", outcome.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("sigmas", [(15.0, 100.0), (3.0, 5.0)])
def test_on_the_gpu(sigmas: tuple[float, float]) -> None:
    generator = torch.Generator().manual_seed(0)
    images, maps = (
        torch.rand(2, 3, 60, 52, generator=generator),
        torch.rand(2, 2, 60, 52, generator=generator),
    )
    truth = TensorSum(images, *sigmas).apply(maps)
    result = bilateral.filter(images.cuda(), maps.cuda(), *sigmas)
    assert ((result.cpu() - truth).norm() / truth.norm()).item() < 1e-3
