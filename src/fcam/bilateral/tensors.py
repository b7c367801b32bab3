"""The Gaussian filter in plain tensor operations, for any torch device."""

from __future__ import annotations

import torch
from torch import Tensor

from fcam.bilateral import factors


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
