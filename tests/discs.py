"""A photo whose object is known to the pixel, and a map that knows about where it is."""

from __future__ import annotations

import numpy as np
import torch


def disc(size: int = 96, draw: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A photo of an orange disc on grey, both noisy, and which pixels are the disc's."""
    rows, columns = np.mgrid[:size, :size]
    object = (rows - size / 2) ** 2 + (columns - size / 2) ** 2 < (size / 3.5) ** 2
    noise = np.random.default_rng(draw).normal(0, 12, (size, size, 3))
    colours = np.where(object[..., None], (220, 110, 30), (90, 95, 100)) + noise
    image = torch.from_numpy(colours.clip(0, 255).astype(np.uint8)).permute(2, 0, 1)
    return image[None], torch.from_numpy(object)


def blurred(object: torch.Tensor, reach: int, highest: float = 1.0) -> torch.Tensor:
    """A soft map of an object, moved to the right, that knows about where it is and not its border; (1, H, W)."""
    map = object.float()[None, None]
    for _ in range(2):
        map = torch.nn.functional.avg_pool2d(map, 2 * reach + 1, 1, reach)
    return highest * torch.roll(map, 5, -1)[0] / map.max()
