"""The lattice against values computed with the authors' compiled filter (reference 6.2, 14.8)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fcam import bilateral
from fcam.errors import FcamError


def lattice(images: torch.Tensor, maps: torch.Tensor, sigma_rgb: float = 15, sigma_xy: float = 100):
    return bilateral.filter(images, maps, sigma_rgb, sigma_xy, method="lattice")


def ramp() -> tuple[torch.Tensor, torch.Tensor]:
    """A 64 x 64 colour ramp and a soft disc of radius 16 with its complement."""
    y, x = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    image = torch.stack([4 * x, 4 * y, torch.full_like(x, 128)]) / 255
    inside = torch.sigmoid((16 - torch.hypot(x - 32, y - 32)) / 2)
    return image[None], torch.stack([1 - inside, inside])[None]


def test_colour_ramp() -> None:
    images, maps = ramp()
    result = lattice(images, maps)
    assert (maps.double() * result).sum().item() == pytest.approx(141108.04, rel=1e-5)
    assert result[0, 1, 32, 32].item() == pytest.approx(43.342, abs=6e-4)
    assert result[0, 0, 0, 0].item() == pytest.approx(14.512, abs=6e-4)


def test_exact_sum_of_the_same_ramp() -> None:
    images, maps = ramp()
    value = (maps.double() * bilateral.filter(images, maps)).sum().item()
    assert value == pytest.approx(284254.59, rel=5e-3)


def test_impulse_on_a_constant_image() -> None:
    images = torch.full((1, 3, 64, 64), 128 / 255)
    maps = torch.zeros(1, 1, 64, 64)
    maps[..., 32, 32] = 1
    result = lattice(images, maps, sigma_xy=10)[0, 0]
    got = [result[32, 32], result[32, 42], result[32, 52], result.sum()]
    for value, expected in zip(got, [0.5711, 0.3318, 0.1049, 358.76], strict=True):
        assert value.item() == pytest.approx(expected, rel=5e-4)


def test_constant_image_of_the_paper_size() -> None:
    images = torch.full((1, 3, 224, 224), 128 / 255)
    assert lattice(images, torch.ones(1, 1, 224, 224)).double().sum().item() == pytest.approx(
        6.6777e8, rel=1e-4
    )


@pytest.mark.parametrize("size", ["s64", "s224"])
def test_golden_photos(shared: Path, size: str) -> None:
    golden = np.load(shared / "golden" / "crf.npz")
    images = torch.from_numpy(golden[f"{size}_image_u8"]).permute(0, 3, 1, 2) / 255.0
    maps = torch.from_numpy(golden[f"{size}_S"])
    result = lattice(images, maps).double()
    gradient = torch.from_numpy(golden[f"{size}_ref_grad"]).double()
    assert ((-result / 2 - gradient).norm() / gradient.norm()).item() < 1e-5
    loss = -(maps.double() * result).flatten(1).sum(1)
    reference = torch.from_numpy(golden[f"{size}_ref_loss_per_image"])
    assert torch.allclose(loss, reference, rtol=1e-5)
    assert loss.mean().item() == pytest.approx(float(golden[f"{size}_ref_loss"]), rel=1e-5)


def test_batch_equals_single() -> None:
    images = torch.rand(3, 3, 32, 40, generator=torch.Generator().manual_seed(0))
    maps = torch.rand(3, 2, 32, 40, generator=torch.Generator().manual_seed(1))
    together = lattice(images, maps)
    for i in range(3):
        alone = lattice(images[i : i + 1], maps[i : i + 1])
        torch.testing.assert_close(together[i : i + 1], alone, rtol=1e-5, atol=1e-5)


def test_vanishing_sigma_is_refused() -> None:
    with pytest.raises(FcamError, match="too small"):
        lattice(torch.rand(1, 3, 32, 32), torch.rand(1, 2, 32, 32), sigma_rgb=1e-3)
