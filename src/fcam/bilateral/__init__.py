"""The Gaussian colour/position filter behind the CRF loss R (paper eq. 3, Tang et al. 2018).

W_ij = exp(-|x_i - x_j|^2 / (2 sigma_xy^2) - |c_i - c_j|^2 / (2 sigma_rgb^2)) over all pairs of pixels of one
image, i = j included. `filter` returns W S without ever forming W.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Literal, Protocol

import torch
from torch import Tensor

from fcam.bilateral import factors
from fcam.bilateral.cpu import CpuGrid
from fcam.bilateral.exact import ExactSum
from fcam.bilateral.lattice import LatticeFilter
from fcam.bilateral.tensors import TensorGrid, TensorSum
from fcam.errors import FcamError

Method = Literal["gaussian", "lattice"]
METHODS: tuple[Method, ...] = ("gaussian", "lattice")


def _check(images: Tensor, sigma_rgb: float, sigma_xy: float, method: str) -> None:
    if method not in METHODS:
        raise FcamError(f"method is {method!r}; choose one of {', '.join(METHODS)}")
    if images.ndim != 4 or images.shape[1] != 3 or images[0, 0].numel() == 0:
        raise FcamError(f"images have shape {tuple(images.shape)}; pass RGB images as (B, 3, H, W)")
    if not images.is_floating_point():
        raise FcamError(
            f"images have dtype {images.dtype}; pass floats in [0, 1] (8-bit images divided by 255)"
        )
    for name, value in (("sigma_rgb", sigma_rgb), ("sigma_xy", sigma_xy)):
        if not 0 < value < float("inf"):
            raise FcamError(
                f"{name} is {value}; pass a positive number (8-bit levels for rgb, pixels for xy)"
            )


class Operator(Protocol):
    """W of one batch of images."""

    def apply(self, maps: Tensor) -> Tensor: ...


def _operator(images: Tensor, sigma_rgb: float, sigma_xy: float, method: Method) -> Operator:
    """Build W in the way that suits the device and the sigmas."""
    kind: Callable[[Tensor, float, float], Operator]
    on_cpu = images.device.type == "cpu"
    if method == "lattice":
        kind = LatticeFilter
    elif images.is_cuda and find_spec("triton") is not None:
        from fcam.bilateral.cuda import TileSum  # here, since Triton comes with torch's GPU builds only

        kind = TileSum
    elif sigma_rgb >= factors.SMALLEST_RGB and sigma_xy >= factors.SMALLEST_XY:
        kind = CpuGrid if on_cpu else TensorGrid
    else:
        kind = ExactSum if on_cpu else TensorSum
    return kind(images, sigma_rgb, sigma_xy)


class Filter:
    """W of a batch of images, built once and applied to any number of maps.

    `images`: (B, 3, H, W) floats in [0, 1]; `sigma_rgb` in 8-bit levels, `sigma_xy` in pixels; `method` as in
    `filter`. Raises `FcamError` for another shape, dtype or method, and for a sigma that is not positive.
    """

    @torch.no_grad()
    def __init__(
        self, images: Tensor, sigma_rgb: float = 15.0, sigma_xy: float = 100.0, method: Method = "gaussian"
    ) -> None:
        _check(images, sigma_rgb, sigma_xy, method)
        self.shape = images.shape
        self._operator = _operator(images.detach(), float(sigma_rgb), float(sigma_xy), method)

    @torch.no_grad()
    def apply(self, maps: Tensor) -> Tensor:
        """Return W S (B, T, H, W), float32, for maps S of that shape; `FcamError` if they do not fit."""
        batch, _, height, width = self.shape
        if maps.ndim != 4 or maps.shape[0] != batch or maps.shape[2:] != (height, width):
            raise FcamError(
                f"maps have shape {tuple(maps.shape)} but the images are {batch} of {height} x {width}; "
                f"pass maps as ({batch}, T, {height}, {width})"
            )
        return self._operator.apply(maps.detach())


def filter(
    images: Tensor,
    maps: Tensor,
    sigma_rgb: float = 15.0,
    sigma_xy: float = 100.0,
    method: Method = "gaussian",
) -> Tensor:
    """Return W S (B, T, H, W), float32, the Gaussian colour/position filter of every map, diagonal included.

    `images`: (B, 3, H, W) floats in [0, 1]; `maps`: S (B, T, H, W) on the same device; `sigma_rgb` in
    8-bit levels; `sigma_xy` in pixels. `method`: "gaussian" is the true sum to within 2 % (relative L2; exact
    on CUDA with Triton), "lattice" the permutohedral lattice of the F-CAM authors' code, about 0.6 of it. No
    gradient flows through the result: W is symmetric, so the gradient of S' W S is 2 W S. Raises `FcamError`
    for shapes, dtypes or options that do not fit. Source: paper, eq. 3 and Tang et al., ECCV 2018.
    """
    return Filter(images, sigma_rgb, sigma_xy, method).apply(maps)
