"""The permutohedral lattice filter in plain tensor operations: the operator the F-CAM authors trained with.

Source: Adams, Baek and Davis, Fast High-Dimensional Filtering Using the Permutohedral Lattice, Eurographics
2010. The scale, the unnormalised blur and the final factor are those of the authors' compiled filter, so its
gain (about 0.6 of the Gaussian sum) is reproduced as well.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fcam.errors import FcamError

DIMENSIONS = 5  # x, y, red, green, blue
SIDES = DIMENSIONS + 1  # corners of a simplex, and directions of the blur
GAIN = 1 / (1 + 2.0**-DIMENSIONS)
LARGEST_CODE = 2**62


def pixel_features(images: Tensor, sigma_rgb: float, sigma_xy: float) -> Tensor:
    """Return (B, N, 5): x, y in units of sigma_xy, then red, green, blue in units of sigma_rgb."""
    batch, _, height, width = images.shape
    colours = images.float().flatten(2).mT * 255 / sigma_rgb
    ys, xs = torch.meshgrid(
        torch.arange(height, device=images.device, dtype=torch.float32),
        torch.arange(width, device=images.device, dtype=torch.float32),
        indexing="ij",
    )
    places = torch.stack([xs.flatten(), ys.flatten()], 1) / sigma_xy
    return torch.cat([places.expand(batch, -1, -1), colours], 2)


def elevate(features: Tensor) -> Tensor:
    """Map features (..., 5) onto the hyperplane of R^6 whose coordinates sum to zero, scaled for the blur."""
    axis = torch.arange(DIMENSIONS, device=features.device, dtype=torch.float32)
    scaled = features * ((2 / 3) ** 0.5 * SIDES / ((axis + 1) * (axis + 2)).sqrt())
    later = scaled.flip(-1).cumsum(-1).flip(-1)  # sum over this axis and the following ones
    tail = torch.cat([later[..., 1:], torch.zeros_like(later[..., :1])], -1)
    return torch.cat([later[..., :1], tail - (axis + 1) * scaled], -1)


def enclosing_simplex(elevated: Tensor) -> tuple[Tensor, Tensor]:
    """Return the corners' lattice keys (..., 6, 5), int64, and the barycentric weights (..., 6)."""
    multiple = (elevated / SIDES).round()
    nearest = multiple * SIDES
    # Position i has rank r when r of the six remainders are larger; equal ones are ranked by index.
    rest = elevated - nearest
    below = rest[..., :, None] < rest[..., None, :]
    index = torch.arange(SIDES, device=elevated.device)
    tie = (rest[..., :, None] == rest[..., None, :]) & (index[:, None] > index[None])
    rank = (below | tie).sum(-1) + multiple.sum(-1, keepdim=True).long()
    shift = SIDES * ((rank < 0).long() - (rank >= SIDES).long())
    rank, nearest = rank + shift, nearest + shift
    rest = (elevated - nearest) / SIDES
    ordered = torch.zeros_like(rest).scatter_(-1, rank, rest)  # largest remainder first
    falling = ordered.flip(-1)
    weights = torch.cat([1 + falling[..., :1] - falling[..., -1:], falling[..., 1:] - falling[..., :-1]], -1)
    corner = torch.arange(SIDES, device=elevated.device)[:, None]
    step = corner - SIDES * (rank[..., None, :] > DIMENSIONS - corner).long()
    return (nearest.long()[..., None, :] + step)[..., :DIMENSIONS], weights


class LatticeFilter:
    """The occupied lattice points of a batch of images, their neighbours, and every pixel's six corners."""

    def __init__(self, images: Tensor, sigma_rgb: float, sigma_xy: float) -> None:
        keys, self.weights = enclosing_simplex(elevate(pixel_features(images, sigma_rgb, sigma_xy)))
        low, high = keys.amin((0, 1, 2)) - SIDES, keys.amax((0, 1, 2)) + SIDES
        radix, size = [], 1
        for extent in reversed((high - low + 1).tolist()):
            radix.append(size)
            size *= int(extent)
        if size * len(images) > LARGEST_CODE:
            raise FcamError(
                f"sigma_rgb {sigma_rgb} and sigma_xy {sigma_xy} are too small for the lattice at "
                f"{images.shape[2]} x {images.shape[3]}; enlarge them or use method='gaussian'"
            )
        digits = torch.tensor(radix[::-1], device=images.device)
        image = torch.arange(len(images), device=images.device).view(-1, 1, 1) * size
        codes = ((keys - low) * digits).sum(-1) + image
        points, corner = torch.unique(codes, return_inverse=True)
        self.corner = corner.view(codes.shape)
        self.neighbours = [self._neighbours(points, digits, axis) for axis in range(SIDES)]
        self.points = len(points)

    @staticmethod
    def _neighbours(points: Tensor, digits: Tensor, axis: int) -> Tensor:
        """Return (2, M): the two neighbours of each point along a blur axis; M stands for a missing one."""
        jump = -digits.sum() + (SIDES * digits[axis] if axis < DIMENSIONS else 0)
        result = []
        for target in (points + jump, points - jump):
            place = torch.searchsorted(points, target).clamp(max=len(points) - 1)
            result.append(torch.where(points[place] == target, place, len(points)))
        return torch.stack(result)

    def apply(self, maps: Tensor) -> Tensor:
        """Return K S for maps (B, T, H, W) on the images' device, float32."""
        values = maps.float().flatten(2).mT
        count = values.shape[-1]
        grid = torch.zeros(self.points + 1, count, device=maps.device)  # the last row stays zero
        for side in range(SIDES):
            weighted = self.weights[..., side, None] * values
            grid.index_add_(0, self.corner[..., side].flatten(), weighted.flatten(0, 1))
        for before, after in self.neighbours:
            grid[:-1] += 0.5 * (grid[before] + grid[after])
        result = torch.zeros_like(values)
        for side in range(SIDES):
            result += self.weights[..., side, None] * grid[self.corner[..., side]]
        return (GAIN * result).mT.reshape(maps.shape)
