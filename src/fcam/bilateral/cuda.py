"""The exact Gaussian sum on a GPU: a tiled Triton kernel that never forms the N x N matrix.

The pixels of an image are sorted along a space-filling curve through the colour cube, so that a block of
pixels has similar colours; tiles whose blocks are too far apart to matter are skipped. Sums are taken in a
fixed order, hence equal from run to run.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fcam.bilateral.tensors import pixel_features

BLOCK = 64
WARPS = 8  # 16 pairs of a tile per thread: fewer warps spill registers on sm_80 and sm_90
SIGHT = 4.5  # blocks of colours further apart than this many sigmas are skipped: their pairs weigh < 5e-5
CURVE_BITS = 6


@triton.jit
def _sum_tiles(features, bounds, maps, result, pixels, blocks, count, cutoff, BLOCK: tl.constexpr):
    """Sum W S for one block of pixels, one image and two maps.

    features (B, 5, N) are scaled such that W_ij = 2^-|f_i - f_j|^2; bounds (B, 6, blocks): lowest, then
    highest red, green, blue of each block; maps and result (B, T, N).
    """
    block, pair, image = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    features += image * 5 * pixels
    bounds += image * 6 * blocks
    maps += (image * count + 2 * pair) * pixels
    result += (image * count + 2 * pair) * pixels
    second = 2 * pair + 1 < count
    lane = tl.arange(0, BLOCK)
    i = block * BLOCK + lane
    inside = i < pixels
    # Differences to the block's first pixel: large common parts would cost the squares their digits.
    y0 = tl.load(features + block * BLOCK)
    x0 = tl.load(features + pixels + block * BLOCK)
    r0 = tl.load(features + 2 * pixels + block * BLOCK)
    g0 = tl.load(features + 3 * pixels + block * BLOCK)
    b0 = tl.load(features + 4 * pixels + block * BLOCK)
    y = tl.load(features + i, mask=inside, other=0.0) - y0
    x = tl.load(features + pixels + i, mask=inside, other=0.0) - x0
    r = tl.load(features + 2 * pixels + i, mask=inside, other=0.0) - r0
    g = tl.load(features + 3 * pixels + i, mask=inside, other=0.0) - g0
    b = tl.load(features + 4 * pixels + i, mask=inside, other=0.0) - b0
    square = y * y + x * x + r * r + g * g + b * b
    y, x, r, g, b = 2 * y, 2 * x, 2 * r, 2 * g, 2 * b
    low_r, high_r = tl.load(bounds + block), tl.load(bounds + 3 * blocks + block)
    low_g, high_g = tl.load(bounds + blocks + block), tl.load(bounds + 4 * blocks + block)
    low_b, high_b = tl.load(bounds + 2 * blocks + block), tl.load(bounds + 5 * blocks + block)
    total_0 = tl.zeros((BLOCK, BLOCK), tl.float32)
    total_1 = tl.zeros((BLOCK, BLOCK), tl.float32)
    for other in range(blocks):
        there = bounds + other
        gap_r = tl.maximum(tl.load(there) - high_r, low_r - tl.load(there + 3 * blocks))
        gap_g = tl.maximum(tl.load(there + blocks) - high_g, low_g - tl.load(there + 4 * blocks))
        gap_b = tl.maximum(tl.load(there + 2 * blocks) - high_b, low_b - tl.load(there + 5 * blocks))
        gap_r, gap_g, gap_b = tl.maximum(gap_r, 0.0), tl.maximum(gap_g, 0.0), tl.maximum(gap_b, 0.0)
        if gap_r * gap_r + gap_g * gap_g + gap_b * gap_b < cutoff:
            j = other * BLOCK + lane
            present = j < pixels
            v = tl.load(features + j, mask=present, other=0.0) - y0
            u = tl.load(features + pixels + j, mask=present, other=0.0) - x0
            p = tl.load(features + 2 * pixels + j, mask=present, other=0.0) - r0
            q = tl.load(features + 3 * pixels + j, mask=present, other=0.0) - g0
            s = tl.load(features + 4 * pixels + j, mask=present, other=0.0) - b0
            power = -square[:, None] - (v * v + u * u + p * p + q * q + s * s)[None, :]
            power += y[:, None] * v[None, :]
            power += x[:, None] * u[None, :]
            power += r[:, None] * p[None, :]
            power += g[:, None] * q[None, :]
            power += b[:, None] * s[None, :]
            weight = tl.exp2(power)
            total_0 += weight * tl.load(maps + j, mask=present, other=0.0)[None, :]
            total_1 += weight * tl.load(maps + pixels + j, mask=present & second, other=0.0)[None, :]
    tl.store(result + i, tl.sum(total_0, 1), mask=inside)
    tl.store(result + pixels + i, tl.sum(total_1, 1), mask=inside & second)


def _curve(colours: Tensor) -> Tensor:
    """Return the place (B, N) of colours (B, 3, N) in [0, 1] on a Z-order curve through the colour cube."""
    levels = (colours.float().clamp(0, 1) * (2**CURVE_BITS - 1)).long()
    place = torch.zeros_like(levels[:, 0])
    for bit in range(CURVE_BITS):
        for axis in range(3):
            place |= (levels[:, axis] >> bit & 1) << (3 * bit + axis)
    return place


class TileSum:
    """The sorted pixels of a batch of images on a GPU, and the colour bounds of their blocks."""

    def __init__(self, images: Tensor, sigma_rgb: float, sigma_xy: float) -> None:
        batch = len(images)
        self._order = _curve(images.flatten(2)).argsort(stable=True, dim=1)[:, None]
        features = pixel_features(images, sigma_rgb, sigma_xy) * math.sqrt(0.5 * math.log2(math.e))
        self._features = features.gather(2, self._order.expand_as(features)).contiguous()
        pixels = features.shape[2]
        self._blocks = math.ceil(pixels / BLOCK)
        colours = self._features[:, 2:]
        padding = colours[:, :, -1:].expand(-1, -1, self._blocks * BLOCK - pixels)
        blocks = torch.cat([colours, padding], 2).view(batch, 3, self._blocks, BLOCK)
        self._bounds = torch.cat([blocks.amin(3), blocks.amax(3)], 1).contiguous()

    def apply(self, maps: Tensor) -> Tensor:
        """Return W S for maps (B, T, H, W) on the images' device, float32."""
        flat = maps.float().flatten(2)
        batch, count, pixels = flat.shape
        order = self._order.expand_as(flat)
        flat = flat.gather(2, order).contiguous()
        summed = torch.empty_like(flat)
        grid = (self._blocks, math.ceil(count / 2), batch)
        cutoff = 0.5 * math.log2(math.e) * SIGHT**2
        launch: Any = _sum_tiles[grid]
        sizes = pixels, self._blocks, count, cutoff
        launch(self._features, self._bounds, flat, summed, *sizes, BLOCK=BLOCK, num_warps=WARPS)
        return torch.empty_like(flat).scatter_(2, order, summed).view(maps.shape)
