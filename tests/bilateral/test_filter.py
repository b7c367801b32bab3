"""The Gaussian filter against the exact sum, on photos and on the images that a colour grid finds hard."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fcam import bilateral
from fcam.errors import FcamError

TOLERANCE = 0.02


def exact(images: torch.Tensor, maps: torch.Tensor, sigma_rgb: float, sigma_xy: float) -> torch.Tensor:
    """W S by the full N x N matrix in float64."""
    _, _, height, width = images.shape
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    result = []
    for image, map_ in zip(images.double(), maps.double(), strict=True):
        place = torch.stack([rows / sigma_xy, columns / sigma_xy]).double()
        features = torch.cat([place, image * 255 / sigma_rgb]).flatten(1).T
        kernel = torch.exp(-0.5 * torch.cdist(features, features) ** 2)
        result.append((map_.flatten(1) @ kernel).view_as(map_))
    return torch.stack(result)


def relative(result: torch.Tensor, truth: torch.Tensor) -> float:
    """Largest relative L2 error over the images of a batch."""
    error = (result.double() - truth.double()).flatten(1).norm(dim=1)
    return float((error / truth.double().flatten(1).norm(dim=1)).max())


def smooth_images(batch: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    """Coloured blobs with a little noise: many colours, spread over the whole cube."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(batch, 3, 5, 5, generator=generator)
    image = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic", align_corners=False)
    return (image + 0.02 * torch.randn(image.shape, generator=generator)).clamp(0, 1)


def soft_maps(batch: int, height: int, width: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    coarse = 3 * torch.randn(batch, 2, 4, 4, generator=generator)
    return torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear").softmax(1)


def hard_images() -> dict[str, torch.Tensor]:
    """Pictures with large areas of one colour, at and between grid nodes."""
    base = smooth_images(1, 40, 40)
    white, black, frame = base.clone(), base.clone(), base.clone()
    white[..., 8:] = 1.0
    black[..., :30, :] = 0.0
    frame[:, 0, 5:, 5:] = 129 / 255
    return {
        "saturated": white,
        "black": black,
        "one channel constant": frame,
        "constant": torch.full((1, 3, 40, 40), 131 / 255),
        "clipped": (base * 3 - 1).clamp(0, 1),
        "two colours": torch.where(base[:, :1] > 0.5, 200 / 255, 87 / 255).expand(1, 3, 40, 40),
    }


@pytest.mark.parametrize("size", ["s64", "s224"])
def test_golden_photos(shared: Path, size: str) -> None:
    golden = np.load(shared / "golden" / "crf.npz")
    images = torch.from_numpy(golden[f"{size}_image_u8"]).permute(0, 3, 1, 2) / 255.0
    maps = torch.from_numpy(golden[f"{size}_S"])
    sigmas = float(golden[f"{size}_sigma_rgb"]), float(golden[f"{size}_sigma_xy"])
    result = bilateral.filter(images, maps, *sigmas)
    truth = torch.from_numpy(golden[f"{size}_exact_grad"]) * -2
    assert relative(result, truth) < TOLERANCE
    loss = -(maps.double() * result).flatten(1).sum(1)
    assert torch.allclose(loss, torch.from_numpy(golden[f"{size}_exact_loss_per_image"]), rtol=5e-3)


@pytest.mark.parametrize("name", list(hard_images()))
def test_large_areas_of_one_colour(name: str) -> None:
    images, maps = hard_images()[name], soft_maps(1, 40, 40)
    assert relative(bilateral.filter(images, maps), exact(images, maps, 15, 100)) < TOLERANCE


@pytest.mark.parametrize(("height", "width"), [(32, 32), (32, 57), (64, 33)])
def test_any_size(height: int, width: int) -> None:
    images, maps = smooth_images(2, height, width), soft_maps(2, height, width)
    result = bilateral.filter(images, maps)
    assert result.shape == maps.shape
    assert result.dtype == torch.float32
    assert relative(result, exact(images, maps, 15, 100)) < TOLERANCE


@pytest.mark.parametrize("sigma_rgb", [0.5, 3.0, 6.0, 15.0, 40.0, 500.0])
@pytest.mark.parametrize("sigma_xy", [0.5, 4.0, 7.0, 30.0, 1000.0])
def test_any_sigma(sigma_rgb: float, sigma_xy: float) -> None:
    images, maps = smooth_images(1, 36, 48), soft_maps(1, 36, 48)
    result = bilateral.filter(images, maps, sigma_rgb, sigma_xy)
    assert relative(result, exact(images, maps, sigma_rgb, sigma_xy)) < TOLERANCE


def test_number_of_maps_is_free() -> None:
    images, maps = smooth_images(2, 32, 40), soft_maps(2, 32, 40)
    many = torch.cat([maps, maps.flip(3), maps[:, :1]], 1)
    result = bilateral.filter(images, many)
    torch.testing.assert_close(result[:, :2], bilateral.filter(images, maps), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(result[:, 4], result[:, 0])


def test_batch_equals_single() -> None:
    images, maps = smooth_images(3, 40, 32), soft_maps(3, 40, 32)
    together = bilateral.filter(images, maps)
    for i in range(3):
        alone = bilateral.filter(images[i : i + 1], maps[i : i + 1])
        torch.testing.assert_close(together[i : i + 1], alone, rtol=1e-5, atol=1e-4)


def test_symmetric() -> None:
    images = smooth_images(1, 40, 40)
    a, b = soft_maps(1, 40, 40, seed=2), soft_maps(1, 40, 40, seed=3)
    left = (a.double() * bilateral.filter(images, b)).sum()
    right = (b.double() * bilateral.filter(images, a)).sum()
    assert abs(left - right) < 1e-5 * abs(left)


def test_one_filter_serves_many_maps() -> None:
    images, maps = smooth_images(2, 32, 32), soft_maps(2, 32, 32)
    operator = bilateral.Filter(images)
    torch.testing.assert_close(operator.apply(maps), bilateral.filter(images, maps))
    torch.testing.assert_close(operator.apply(maps), bilateral.filter(images, maps))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    images, maps = smooth_images(1, 32, 32).to(dtype), soft_maps(1, 32, 32).to(dtype)
    result = bilateral.filter(images, maps)
    assert result.dtype == torch.float32
    assert relative(result, exact(images, maps, 15, 100)) < TOLERANCE


def test_other_memory_layouts() -> None:
    images, maps = smooth_images(2, 32, 40), soft_maps(2, 32, 40)
    result = bilateral.filter(images, maps)
    last = torch.channels_last
    strided = bilateral.filter(images.to(memory_format=last), maps.to(memory_format=last))
    torch.testing.assert_close(strided, result)
    turned = bilateral.filter(images.transpose(2, 3), maps.transpose(2, 3))
    torch.testing.assert_close(turned.transpose(2, 3), result, rtol=1e-3, atol=1e-2)


def test_no_gradient_flows() -> None:
    images, maps = smooth_images(1, 32, 32).requires_grad_(), soft_maps(1, 32, 32).requires_grad_()
    assert not bilateral.filter(images, maps).requires_grad


def test_threads_are_left_alone() -> None:
    """The reference's filter leaves one thread after calls with batches of 4, 1, 4 (reference 14.14)."""
    before = torch.get_num_threads()
    for batch in (4, 1, 4):
        bilateral.filter(smooth_images(batch, 32, 32), soft_maps(batch, 32, 32))
        assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("images", "maps", "options", "words"),
    [
        (torch.zeros(1, 1, 8, 8), torch.zeros(1, 2, 8, 8), {}, r"\(1, 1, 8, 8\)"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), torch.zeros(1, 2, 8, 8), {}, "uint8"),
        (torch.zeros(1, 3, 8, 8), torch.zeros(1, 2, 8, 9), {}, r"\(1, 2, 8, 9\)"),
        (torch.zeros(2, 3, 8, 8), torch.zeros(1, 2, 8, 8), {}, r"\(1, 2, 8, 8\)"),
        (torch.zeros(1, 3, 8, 8), torch.zeros(1, 2, 8, 8), {"sigma_rgb": 0.0}, "sigma_rgb"),
        (torch.zeros(1, 3, 8, 8), torch.zeros(1, 2, 8, 8), {"sigma_xy": -1.0}, "sigma_xy"),
        (torch.zeros(1, 3, 8, 8), torch.zeros(1, 2, 8, 8), {"method": "exact"}, "lattice"),
    ],
)
def test_mistakes_are_named(images, maps, options, words) -> None:
    with pytest.raises(FcamError, match=words):
        bilateral.filter(images, maps, **options)
