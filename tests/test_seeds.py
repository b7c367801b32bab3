"""Seeds against the golden values of the reference and against scikit-image."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.filters import threshold_otsu
from skimage.morphology import dilation

from fcam.config import SeedConfig
from fcam.errors import FcamError
from fcam.seeds import (
    IGNORE,
    draw_background,
    draw_foreground,
    foreground_region,
    otsu,
    quantize,
    sample_seeds,
)


def bump(center: int = 112, side: int = 224) -> torch.Tensor:
    """The analytic CAM of the reference's golden values, min-max normalised."""
    axis = torch.arange(side, dtype=torch.float64)
    cam = torch.exp(-((axis[:, None] - center) ** 2 + (axis[None] - center) ** 2) / 3000)
    cam = cam - cam.min()
    return (cam / cam.max()).float()[None]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_golden_regions_of_the_analytic_cam():
    cam = bump()
    assert otsu(quantize(cam).flatten(1)).item() == 88
    assert foreground_region(cam, SeedConfig(erosion=1)).sum().item() == 9925
    assert foreground_region(cam).sum().item() == 7769


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 256), st.integers(2, 900))
def test_otsu_equals_scikit_image(seed, spread, pixels):
    rng = np.random.default_rng(seed)
    levels = rng.integers(0, spread, (3, pixels)).astype(np.uint8)
    levels[1] = np.where(rng.random(pixels) < 0.3, levels[1] // 4, 255 - levels[1] // 8)
    expected = [threshold_otsu(row) if len(np.unique(row)) > 1 else None for row in levels]
    for ours, theirs in zip(otsu(torch.from_numpy(levels).long()).tolist(), expected, strict=True):
        assert theirs is None or ours == theirs


def test_border_does_not_erode_and_dilation_grows_back():
    cam = torch.zeros(1, 224, 224)
    cam[:, :30, :30] = 1.0
    region = foreground_region(cam)[0]
    rows, cols = region.nonzero(as_tuple=True)
    assert (rows.min(), rows.max(), cols.max()) == (0, 24, 24)
    everything = SeedConfig(foreground_pixels=900, background_pixels=0, dilation=3)
    rows, _ = (sample_seeds(cam, everything, generator())[0] == 1).nonzero(as_tuple=True)
    assert (rows.min(), rows.max()) == (0, 25)


@pytest.mark.parametrize("shape", [(32, 32), (3, 40), (1, 50)])
@pytest.mark.parametrize("side", [3, 5, 11])
def test_points_grow_to_squares(shape: tuple[int, int], side: int) -> None:
    cams = torch.rand(3, *shape, generator=generator(1))
    points, grown = (
        sample_seeds(
            cams, SeedConfig(foreground_pixels=3, background_pixels=0, erosion=1, dilation=d), generator()
        )
        for d in (1, side)
    )
    for own, square in zip(points, grown, strict=True):
        expected = dilation((own == 1).numpy(), np.ones((side, side)))
        np.testing.assert_array_equal((square == 1).numpy(), expected)


def test_region_that_erosion_would_empty_stays():
    cam = torch.zeros(1, 64, 64)
    cam[:, 20:28, 20:28] = 1.0
    assert foreground_region(cam).sum().item() == 64


def test_one_map_without_information_does_not_disturb_its_neighbours():
    maps = torch.stack(
        [torch.full((32, 32), 0.5), bump(16, 32)[0], torch.full((32, 32), float("nan")), torch.zeros(32, 32)]
    )
    labels = sample_seeds(maps, SeedConfig(), generator())
    assert [bool((row != IGNORE).any()) for row in labels] == [False, True, False, False]


def test_levels_zero_and_one_do_not_crash():
    cam = torch.zeros(1, 40, 40)
    cam[:, :20] = 1.4 / 255
    assert (sample_seeds(cam, SeedConfig(), generator()) == IGNORE).all()


def test_reference_count_of_labelled_pixels():
    labels = sample_seeds(bump().expand(64, -1, -1), SeedConfig(n_minus=0.3), generator())
    foreground = (labels == 1).flatten(1).sum(1)
    background = (labels == 0).flatten(1).sum(1)
    assert set(foreground.tolist()) == {9}
    assert set(background.tolist()) <= {4, 6, 9}


def test_conflicting_pixels_are_ignored():
    cam = bump(4, 9)
    config = SeedConfig(n_minus=1.0, foreground_pixels=81, background_pixels=81, erosion=1, dilation=1)
    labels = sample_seeds(cam, config, generator())
    region = foreground_region(cam, config)
    assert (labels[region] == IGNORE).all()
    assert (labels[~region] == 0).all()


@pytest.mark.parametrize("k", [1, 3, 50])
def test_draws_stay_inside_their_region_and_have_the_asked_number(k):
    torch.manual_seed(0)
    region = torch.rand(6, 20, 30) < 0.05
    region[0] = False
    drawn = draw_foreground(region, k, generator())
    assert not (drawn & ~region).any()
    expected = region.flatten(1).sum(1).clamp(max=k)
    assert torch.equal(drawn.flatten(1).sum(1), expected)
    cams = torch.rand(6, 20, 30)
    drawn = draw_background(cams, 0.2, k, generator())
    assert (drawn.flatten(1).sum(1) == k).all()
    lowest = cams.flatten(1).argsort(1).argsort(1).view(cams.shape) < int(0.2 * 600)
    assert not (drawn & ~lowest).any()


def test_draws_are_uniform_over_region_and_over_ties():
    """Every candidate is drawn equally often: half of C⁻ lies below the edge, half is admitted from 3x as many ties."""
    cams = torch.full((1, 10, 10), 0.5)
    cams[0, 0] = 0.0  # 10 pixels below the edge, 90 tied, C⁻ of 40
    counts = torch.zeros(10, 10)
    for seed in range(4000):
        counts += draw_background(cams, 0.4, 1, generator(seed))[0]
    assert abs(counts[0].sum().item() / 4000 - 10 / 40) < 0.03
    assert counts[1:].min() > 0.3 * counts[1:].mean()
    assert counts[0].min() > 0.5 * counts[0].mean()


def test_same_seed_same_labels_and_batch_size_one():
    cams = torch.cat([bump(60), bump(150)])
    first, second = (sample_seeds(cams, SeedConfig(), generator(5)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, sample_seeds(cams, SeedConfig(), generator(6)))
    assert (sample_seeds(cams[:1], SeedConfig(), generator()) == 1).any()


def test_sides_can_be_switched_off_and_sizes_need_not_be_square():
    cam = torch.rand(2, 48, 80, generator=generator())
    only_background = sample_seeds(cam, SeedConfig(foreground_pixels=0), generator())
    assert set(only_background.unique().tolist()) == {IGNORE, 0}
    only_foreground = sample_seeds(cam, SeedConfig(n_minus=0.0), generator())
    assert set(only_foreground.unique().tolist()) == {IGNORE, 1}


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (SeedConfig(n_minus=1.5), "n_minus"),
        (SeedConfig(erosion=4), "erosion"),
        (SeedConfig(background_pixels=-1), "background_pixels is -1; take 0 or more"),
    ],
)
def test_options_out_of_range_are_named(config, word):
    with pytest.raises(FcamError, match=word):
        sample_seeds(torch.rand(1, 8, 8), config)


def test_wrong_shape_is_shown():
    with pytest.raises(FcamError, match=r"\(1, 1, 8, 8\)"):
        sample_seeds(torch.rand(1, 1, 8, 8))
