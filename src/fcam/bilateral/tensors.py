"""The Gaussian filter in plain tensor operations, for any torch device."""

from __future__ import annotations

import torch
from torch import Tensor

from fcam.bilateral import factors

CHUNK = 2**24  # pairs of pixels at a time


def pixel_features(images: Tensor, sigma_rgb: float, sigma_xy: float) -> Tensor:
    """Return (B, 5, N) float32 on the images' device: y, x, red, green, blue, each in units of its sigma."""
    batch, _, height, width = images.shape
    ys = torch.arange(height, device=images.device).repeat_interleave(width) / sigma_xy
    xs = torch.arange(width, device=images.device).repeat(height) / sigma_xy
    places = torch.stack([ys, xs]).float().expand(batch, -1, -1)
    return torch.cat([places, images.float().flatten(2) * (255 / sigma_rgb)], 1)


class TensorSum:
    """The sum over all pairs, in chunks of rows: for sigmas that are too small for the grid."""

    def __init__(self, images: Tensor, sigma_rgb: float, sigma_xy: float) -> None:
        self._features = pixel_features(images, sigma_rgb, sigma_xy)

    def apply(self, maps: Tensor) -> Tensor:
        """Return W S for maps (B, T, H, W) on the images' device, float32."""
        flat = maps.float().flatten(2)
        batch, count = flat.shape[0], flat.shape[2]
        rows = max(1, CHUNK // (batch * count))
        parts = []
        for first in range(0, count, rows):
            # Differences axis by axis: |a|^2 - 2 ab + |b|^2 loses its digits where colours are close.
            distance = torch.zeros(batch, count, min(rows, count - first), device=maps.device)
            for axis in self._features.unbind(1):
                distance += (axis[:, :, None] - axis[:, None, first : first + rows]) ** 2
            parts.append(flat @ (-0.5 * distance).exp_())
        return torch.cat(parts, 2).view(maps.shape)


def fit_nodes(images: Tensor, sigma_rgb: float) -> Tensor:
    """Return the node matrices B (b, 3, n, n), float32, for images (b, 3, H, W) in [0, 1].

    Per axis, B = M F F' M' where M is the least-squares projection onto the nodes, weighted by the image's
    own histogram: a level that fills half of the picture (white paper, a black border) is then met almost
    exactly.
    """
    nodes = factors.node_count(sigma_rgb)
    levels = (images.float().clamp(0, 1) * (factors.LEVELS - 1)).round().long().flatten(2)
    ones = torch.ones((), device=images.device).expand(levels.shape)
    histogram = torch.zeros(*levels.shape[:2], factors.LEVELS, device=images.device).scatter_add_(
        2, levels, ones
    )
    weight = histogram.cpu().double() * (factors.LEVELS / levels.shape[2]) + factors.FLOOR
    t = torch.from_numpy(factors.interpolation(nodes))
    weighted = t.T * weight[:, :, None, :]
    factor = torch.from_numpy(factors.level_factor(sigma_rgb))
    coordinates = torch.linalg.solve(weighted @ t, weighted @ factor)
    return (coordinates @ coordinates.mT).to(images.device, torch.float32)


class TensorGrid:
    """The colour grid of a batch: where every pixel lies in it, and how the nodes act on each other."""

    def __init__(self, images: Tensor, sigma_rgb: float, sigma_xy: float) -> None:
        batch, _, height, width = images.shape
        self.nodes = factors.node_count(sigma_rgb)
        self.node_matrices = fit_nodes(images, sigma_rgb)
        phi = factors.position_components(height, width, sigma_xy)
        self.phi = torch.from_numpy(phi).to(images.device)
        place = images.float().clamp(0, 1).flatten(2) * (self.nodes - 1)
        cell = place.floor().clamp(max=self.nodes - 2)
        self.fraction = place - cell
        first = torch.arange(batch, device=images.device)[:, None]
        red, green, blue = cell.long().unbind(1)
        self.base = ((first * self.nodes + red) * self.nodes + green) * self.nodes + blue

    def _corners(self):
        """Yield the node index and the weight, each (b, N), of the 8 corners of every pixel's cell."""
        for corner in range(8):
            bits = (corner >> 2 & 1, corner >> 1 & 1, corner & 1)
            weight = torch.ones_like(self.fraction[:, 0])
            for axis, bit in enumerate(bits):
                weight = weight * (self.fraction[:, axis] if bit else 1 - self.fraction[:, axis])
            yield self.base + (bits[0] * self.nodes + bits[1]) * self.nodes + bits[2], weight

    def _filter(self, map_: Tensor, phi: Tensor) -> Tensor:
        """Filter one map (b, N) through one block of components (N, L)."""
        batch, n, lanes = map_.shape[0], self.nodes, phi.shape[1]
        values = map_[..., None] * phi
        grid = torch.zeros(batch * n**3, lanes, device=phi.device)
        for index, weight in self._corners():
            grid.index_add_(0, index.flatten(), (weight[..., None] * values).flatten(0, 1))
        grid = grid.view(batch, n, n, n, lanes)
        red, green, blue = self.node_matrices.unbind(1)
        grid = torch.bmm(red, grid.flatten(2)).view(grid.shape)
        grid = (green[:, None] @ grid.flatten(3)).view(grid.shape)
        grid = (blue[:, None, None] @ grid).flatten(0, 3)
        result = torch.zeros_like(map_)
        for index, weight in self._corners():
            result += weight * (grid[index] * phi).sum(-1)
        return result

    def apply(self, maps: Tensor) -> Tensor:
        """Return W S for maps (b, T, H, W) on the images' device, float32."""
        flat = maps.float().flatten(2)
        result = torch.zeros_like(flat)
        for start in range(0, self.phi.shape[1], factors.LANES):
            phi = self.phi[:, start : start + factors.LANES]
            for t in range(flat.shape[1]):
                result[:, t] += self._filter(flat[:, t], phi)
        return result.view(maps.shape)
