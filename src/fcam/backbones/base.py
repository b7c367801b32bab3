"""What every backbone is: images in [0, 1] in, feature maps f1 (shallow) to fD (deep) out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from fcam.errors import FcamError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
MINIMUM_SIDE = 32


class Backbone(nn.Module):
    """A convolutional feature extractor that normalises its input itself.

    Attributes:
        name: the name that `build_backbone` takes to make it again.
        channels: channels of the taps f1..fD, shallow to deep.
        strides: nominal strides of the same taps, in input pixels.
        output_stride: stride of the top map fD, the tensor that global pooling reads.
        mean, std: buffers (1, 3, 1, 1), in units of the [0, 1] image; not part of the state dict.
        center: whether the decoder puts two convolutions on the top map before its first block.
        wide: whether the decoder's wide channel preset fits this backbone.
    """

    center = False
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        name: str,
        channels: Sequence[int],
        strides: Sequence[int],
        mean: Iterable[float] = IMAGENET_MEAN,
        std: Iterable[float] = IMAGENET_STD,
        wide: bool | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.channels: tuple[int, ...] = tuple(channels)
        self.strides: tuple[int, ...] = tuple(strides)
        self.register_buffer("mean", torch.tensor(tuple(mean)).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(tuple(std)).view(1, 3, 1, 1), persistent=False)
        # The tap below the top decides: the top itself is wide even in mobile networks.
        self.wide: bool = self.channels[max(len(self.channels) - 2, 0)] >= 512 if wide is None else wide
        self._range_seen_on: str | None = None

    @property
    def output_stride(self) -> int:
        return self.strides[-1]

    def set_normalization(self, mean: Iterable[float], std: Iterable[float]) -> None:
        """Replace the per-channel mean and standard deviation (three numbers each, for images in [0, 1])."""
        self.mean.copy_(torch.tensor(tuple(mean)).view(1, 3, 1, 1))
        self.std.copy_(torch.tensor(tuple(std)).view(1, 3, 1, 1))

    def normalize(self, images: Tensor) -> Tensor:
        """Check images (B, 3, H, W) in [0, 1] and return them normalised, in the dtype of the weights.

        Raises `FcamError` for a wrong number of dimensions or channels, integer images, sides below 32 and
        values that cannot be a [0, 1] image.
        """
        self._check(images)
        return ((images - self.mean) / self.std).to(self.mean.dtype)

    def _check(self, images: Tensor) -> None:
        if not isinstance(images, Tensor):
            raise FcamError(
                f"images must be a tensor (B, 3, H, W) in [0, 1], got {type(images).__name__}; fcam.Localizer takes photos"
            )
        if images.dim() != 4 or images.shape[1] != 3:
            raise FcamError(
                f"images must be RGB of shape (B, 3, H, W), got {tuple(images.shape)}; "
                "add the batch dimension with images[None] or convert with .convert('RGB')"
            )
        if not images.is_floating_point():
            raise FcamError(
                f"images must be floating point in [0, 1], got {images.dtype}; use images.float() / 255"
            )
        # A side that is a symbol, in a graph of any size, must not become a condition.
        if any(not isinstance(side, torch.SymInt) and side < MINIMUM_SIDE for side in images.shape[-2:]):
            raise FcamError(
                f"images must be at least {MINIMUM_SIDE} pixels on each side, got "
                f"{images.shape[-2]}x{images.shape[-1]}; resize them first"
            )
        # Reading the range makes an accelerator wait, so there only the first batch on each device is read.
        device = str(images.device)
        if torch.compiler.is_compiling() or torch.jit.is_tracing() or images.is_meta or images.numel() == 0:
            return
        if images.device.type != "cpu" and self._range_seen_on == device:
            return
        self._range_seen_on = device
        low, high = (float(v) for v in images.detach().aminmax())
        if low < -1.0 or high > 2.0:
            raise FcamError(
                f"images must lie in [0, 1], got values from {low:.4g} to {high:.4g}; divide 8-bit images by "
                "255 and do not normalise them, the model does that itself"
            )

    def forward(self, images: Tensor) -> list[Tensor]:
        """Map images (B, 3, H, W) in [0, 1] to [f1, ..., fD], each (B, channels[i], h_i, w_i).

        The last one is the tensor that is fed to global pooling.
        """
        raise NotImplementedError

    def late_parameters(self) -> list[nn.Parameter]:
        """The parameters that stage 1 trains with the larger learning rate (reference protocol)."""
        raise NotImplementedError

    def classifier_weights(self) -> tuple[Tensor, Tensor] | None:
        """ImageNet weight (1000, C) and bias (1000,) for pooled top features, or None where none fit.

        Only there right after building with pretrained weights.
        """
        return getattr(self, "_classifier_weights", None)

    def _keep_classifier(self, weight: Tensor, bias: Tensor) -> None:
        self._classifier_weights = (weight.detach().clone(), bias.detach().clone())
