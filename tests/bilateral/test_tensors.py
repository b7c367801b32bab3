"""The plain tensor path, which other devices take, gives what the CPU kernels give."""

from __future__ import annotations

import pytest
import torch

from fcam.bilateral.cpu import CpuGrid
from fcam.bilateral.exact import ExactSum
from fcam.bilateral.tensors import TensorGrid, TensorSum


def pictures(batch: int, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    coarse = torch.rand(batch, 3, 6, 6, generator=generator)
    images = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    images[:, :, : height // 3] = 1.0
    return images, torch.rand(batch, 2, height, width, generator=generator)


@pytest.mark.parametrize("sigmas", [(15.0, 100.0), (30.0, 20.0)])
def test_same_as_the_cpu_kernels(sigmas: tuple[float, float]) -> None:
    images, maps = pictures(2, 45, 33)
    tensors, kernels = TensorGrid(images, *sigmas).apply(maps), CpuGrid(images, *sigmas).apply(maps)
    assert ((tensors - kernels).norm() / kernels.norm()).item() < 2e-3


def test_batch_equals_single() -> None:
    images, maps = pictures(3, 32, 40)
    together = TensorGrid(images, 15.0, 100.0).apply(maps)
    for i in range(3):
        alone = TensorGrid(images[i : i + 1], 15.0, 100.0).apply(maps[i : i + 1])
        torch.testing.assert_close(together[i : i + 1], alone, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("sigmas", [(2.0, 50.0), (10.0, 2.0), (300.0, 300.0), (1.0, 1.0)])
def test_pairwise_sums_agree(sigmas: tuple[float, float]) -> None:
    images, maps = pictures(2, 35, 41)
    images[:, :, 20:] *= 0.3  # a colour range that does not reach 1 everywhere
    tensors, kernels = TensorSum(images, *sigmas).apply(maps), ExactSum(images, *sigmas).apply(maps)
    assert ((tensors - kernels).norm() / tensors.norm()).item() < 1e-3
