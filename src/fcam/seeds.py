"""Sampling regions and partial labels: from a CAM C to the pseudo-label map Y (paper, eq. 1 and 2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fcam.config import SeedConfig, wrong_numbers
from fcam.errors import FcamError

IGNORE = -255
LEVELS = 256
SeedMaps = Callable[[Tensor, Sequence[Tensor], Tensor], Tensor]
"""Maps to sample seeds in: images (B, 3, H, W), features f1..fD, labels (B,) -> (B, H, W) in [0, 1]."""


def quantize(cams: Tensor) -> Tensor:
    """8-bit levels floor(255 C) as int64; non-finite values count as 0.

    Args:
        cams: any shape, float in [0, 1].
    """
    cams = torch.nan_to_num(cams.float(), nan=0.0, posinf=1.0, neginf=0.0)
    return (cams * 255).floor().clamp_(0, 255).long()


def otsu(levels: Tensor) -> Tensor:
    """Otsu's threshold of each map: the first level that maximises the between-class variance of {<= t} and {> t}.

    Args:
        levels: (B, N) int64 in 0..255.

    Returns:
        (B,) int64; 0 for a constant map.

    Source: Otsu 1979; equal to scikit-image's `threshold_otsu` on uint8 images.
    """
    counts = torch.zeros(levels.shape[0], LEVELS, dtype=torch.int64, device=levels.device)
    counts.scatter_add_(1, levels, torch.ones_like(levels))
    # Sums stay integers so that equal splits (empty levels between two modes) compare equal and the first one wins.
    precise = torch.float32 if levels.device.type == "mps" else torch.float64
    values = torch.arange(LEVELS, device=levels.device)
    below = counts.cumsum(1)
    below_sum = (counts * values).cumsum(1)
    above = below[:, -1:] - below
    above_sum = below_sum[:, -1:] - below_sum
    mean_below = below_sum.to(precise) / below.clamp(min=1)
    mean_above = above_sum.to(precise) / above.clamp(min=1)
    variance = below.to(precise) * above * (mean_below - mean_above) ** 2
    return variance.argmax(1)


def foreground_region(cams: Tensor, config: SeedConfig = SeedConfig()) -> Tensor:
    """C⁺ = ψ⁺(C): pixels above Otsu's threshold, eroded away from the border of the region (paper, eq. 1).

    Args:
        cams: (B, H, W) in [0, 1].

    Returns:
        (B, H, W) bool; all False for a map without information.
    """
    levels = quantize(cams).flatten(1)
    lowest, highest = levels.amin(1), levels.amax(1)
    if config.foreground_rule == "otsu":
        # The reference keeps both classes possible by moving a threshold off the ends of the scale.
        threshold = otsu(levels).clamp(1, LEVELS - 2)
    else:
        threshold = (config.peak * highest).floor().long()
    region = (levels > threshold[:, None]) & (lowest < highest)[:, None]
    region = region.view(cams.shape)
    for _ in range(config.erosion_iterations if config.erosion > 1 else 0):
        region = _erode_unless_empty(region, config.erosion)
    return region


def _erode_unless_empty(region: Tensor, side: int) -> Tensor:
    """Erode by a flat square; the outside of the image does not erode, and a region that would vanish stays."""
    radius = side // 2
    # Box sums by an integral image: constant cost whatever the side, where a min-pool costs side² per pixel.
    holes = F.pad((~region).to(torch.int32), (radius + 1, side - 1 - radius, radius + 1, side - 1 - radius))
    integral = holes.cumsum(1, dtype=torch.int32).cumsum(2, dtype=torch.int32)
    inside = (
        integral[:, side:, side:]
        - integral[:, :-side, side:]
        - integral[:, side:, :-side]
        + integral[:, :-side, :-side]
    )
    eroded = inside == 0
    kept = eroded.flatten(1).any(1)[:, None, None]
    return torch.where(kept, eroded, region)


def _draw(region: Tensor, k: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Draw up to k pixels of each row of `region` (B, N) uniformly without replacement: indices (B, k) and which are real."""
    keys = torch.rand(region.shape, device=region.device, generator=generator)
    keys = keys.masked_fill(~region, -1.0)
    top = keys.topk(min(k, region.shape[1]), dim=1)
    return top.indices, top.values >= 0


def draw_foreground(region: Tensor, k: int, generator: torch.Generator | None = None) -> Tensor:
    """U(C⁺): k pixels of each region, uniformly (paper, eq. 2).

    Args:
        region: (B, H, W) bool.

    Returns:
        (B, H, W) bool with at most k True per image; fewer where the region is smaller.
    """
    flat = region.flatten(1)
    index, real = _draw(flat, k, generator)
    return torch.zeros_like(flat).scatter_(1, index, real).view(region.shape)


def draw_background(cams: Tensor, n_minus: float, k: int, generator: torch.Generator | None = None) -> Tensor:
    """U(C⁻) with C⁻ = ψ⁻(C, n⁻): k of the n⁻ · H · W pixels with the lowest activation, uniformly (paper, eq. 1 and 2).

    Pixels that tie at the edge of C⁻ are admitted by chance, so large plateaus (a ReLU'd CAM is mostly zeros) are drawn
    from evenly; the reference leaves such ties to its sort kernel.

    Args:
        cams: (B, H, W) in [0, 1].

    Returns:
        (B, H, W) bool with k True per image, none when n⁻ is 0.
    """
    flat = torch.nan_to_num(cams.float(), nan=0.0, posinf=1.0, neginf=0.0).flatten(1)
    batch, pixels = flat.shape
    size = int(n_minus * pixels)
    if size == 0 or k == 0:
        return torch.zeros_like(cams, dtype=torch.bool)
    k = min(k, size)
    edge = flat.kthvalue(size, dim=1, keepdim=True).values
    below, tied = flat < edge, flat == edge
    # k distinct ranks of C⁻; those under the number of pixels below the edge fall there, the others among the ties.
    ranks = torch.rand(batch, size, device=flat.device, generator=generator).topk(k, dim=1).indices
    from_below = (ranks < below.sum(1, keepdim=True)).sum(1, keepdim=True)
    order = torch.arange(k, device=flat.device)[None]
    below_index, below_real = _draw(below, k, generator)
    tied_index, tied_real = _draw(tied, k, generator)
    drawn = torch.zeros_like(below)
    drawn.scatter_(1, below_index, below_real & (order < from_below))
    return drawn.scatter(
        1, tied_index, drawn.gather(1, tied_index) | (tied_real & (order < k - from_below))
    ).view(cams.shape)


def _dilate(points: Tensor, side: int) -> Tensor:
    """Grow points (B, H, W) to squares; `side` is odd."""
    radius = side // 2
    for dim in (1, 2):
        grown = points.clone()
        for shift in range(1, min(radius, points.shape[dim] - 1) + 1):
            length = points.shape[dim] - shift
            grown.narrow(dim, 0, length).logical_or_(points.narrow(dim, shift, length))
            grown.narrow(dim, shift, length).logical_or_(points.narrow(dim, 0, length))
        points = grown
    return points


def _check(cams: Tensor, config: SeedConfig) -> None:
    if cams.ndim != 3:
        raise FcamError(
            f"seeds need CAMs of shape (B, H, W), got {tuple(cams.shape)}; upsample them to the image first"
        )
    if not torch.compiler.is_compiling():  # which would trace every look at a setting
        for name, value, rule in wrong_numbers(config):
            raise FcamError(f"{name} is {value}; {rule}")


@torch.no_grad()
def sample_seeds(
    cams: Tensor,
    config: SeedConfig = SeedConfig(),
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw the pseudo-label map Y of a batch from its CAMs (paper, eq. 1 and 2).

    A map without information (constant, or not finite) gives an all-ignored Y. Pixels that both sides claim are ignored.

    Args:
        cams: (B, H, W) in [0, 1], at the resolution of the loss.
        config: regions and numbers of pixels.
        generator: source of randomness on the device of `cams`; None uses the global one.

    Returns:
        (B, H, W) int64 with 1 foreground, 0 background, `IGNORE` elsewhere.

    Raises:
        FcamError: for a wrong shape or an option out of range.
    """
    _check(cams, config)
    region = foreground_region(cams, config)
    informative = region.flatten(1).any(1)[:, None, None]
    foreground = _dilate(draw_foreground(region, config.foreground_pixels, generator), config.dilation)
    background = _dilate(
        draw_background(cams, config.n_minus, config.background_pixels, generator), config.dilation
    )
    labels = torch.full(cams.shape, IGNORE, dtype=torch.int64, device=cams.device)
    labels.masked_fill_(foreground & ~background & informative, 1)
    return labels.masked_fill_(background & ~foreground & informative, 0)
