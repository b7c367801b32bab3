"""The U-Net decoder: from the classifier's features to foreground and background maps at full resolution."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, SupportsIndex, cast

from torch import Tensor, nn

from fcam.errors import FcamError
from fcam.plain import integers
from fcam.upsampled import UpsampledConv2d, fit

if TYPE_CHECKING:
    from fcam.backbones import Backbone

PRESETS = {"wide": (256, 128, 64, 32, 16), "narrow": (128, 64, 48, 32, 16)}
"""Block widths, deep to shallow: the paper's, and a set for backbones of mobile size."""


def preset_channels(preset: str, levels: int) -> tuple[int, ...]:
    """The first `levels` widths of "wide" or "narrow"; further levels repeat the last (16).

    Raises `FcamError` for an unknown preset.
    """
    if preset not in PRESETS:
        raise FcamError(
            f"no decoder preset is named {preset!r}; use {', '.join(PRESETS)} or a list of widths"
        )
    widths = PRESETS[preset]
    return (*widths[:levels], *[widths[-1]] * (levels - len(widths)))


def decoder_channels(
    backbone: Backbone, choice: str | Iterable[SupportsIndex] | None = None
) -> tuple[int, ...]:
    """Block widths for `backbone`: its own preset, a preset by name, or the list, array or tensor given.

    There is one block per tap, and one more where the shallowest tap has stride 4 (ConvNeXt): without it the
    maps would be made at half resolution. Raises `FcamError` for an unknown preset, and for what are no integers.
    """
    if choice is not None and not isinstance(choice, str):
        return integers(choice, "widths of the decoder")
    levels = len(backbone.channels) + max(backbone.strides[0].bit_length() - 2, 0)
    return preset_channels(choice or ("wide" if backbone.wide else "narrow"), levels)


class Decoder(nn.Module):
    """U-Net decoder on features [f1, ..., fD] (Ronneberger et al. 2015; the paper's f).

    Block i doubles the map (nearest), fits it to the next shallower feature (bilinear, align_corners),
    appends that feature and applies two 3x3 Conv-BN-ReLU; the last blocks have no feature left. A 3x3
    convolution gives two maps. Keys are `center.*`, `blocks.I.convJ.*`, `segmentation_head.0.*`.

    Args:
        encoder_channels: channels of f1..fD, shallow to deep.
        channels: widths of the blocks, deep to shallow, at least as many as features; a list, array or tensor.
        center: two more Conv-BN-ReLU on the top map first (VGG16).
    """

    def __init__(
        self,
        encoder_channels: Sequence[int],
        channels: Iterable[SupportsIndex] | None = None,
        center: bool = False,
    ) -> None:
        super().__init__()
        if channels is None:
            channels = preset_channels("wide", len(encoder_channels))
        channels = integers(channels, "widths of the decoder")
        if len(channels) < len(encoder_channels) or min(channels, default=0) < 1:
            raise FcamError(
                f"the decoder needs a width of at least 1 for each of {len(encoder_channels)} features, got "
                f"{channels}; give as many widths as the backbone has taps, deep to shallow"
            )
        self.channels = channels
        self.encoder_channels = tuple(encoder_channels)
        top, *skips = reversed(self.encoder_channels)
        skips += [0] * (len(channels) - len(skips))
        inputs = [top, *channels[:-1]]
        self.center = (
            nn.Sequential(_conv_bn_relu(top, top), _conv_bn_relu(top, top)) if center else nn.Identity()
        )
        self.blocks = nn.ModuleList(
            DecoderBlock(i, skip, out) for i, skip, out in zip(inputs, skips, channels, strict=True)
        )
        last = nn.Conv2d(channels[-1], 2, kernel_size=3, padding=1)
        nn.init.xavier_uniform_(last.weight)
        nn.init.zeros_(cast(Tensor, last.bias))
        self.segmentation_head = nn.Sequential(last)

    @property
    def has_center(self) -> bool:
        return isinstance(self.center, nn.Sequential)

    def forward(self, features: Sequence[Tensor], size: Sequence[int]) -> Tensor:
        """Map [f1, ..., fD] to logits (B, 2, H, W), size = (H, W); channel 0 background, 1 foreground.

        Raises `FcamError` when the number of features or their channels differ from the decoder's.
        """
        given = tuple(f.shape[1] for f in features)
        if given != self.encoder_channels:
            raise FcamError(
                f"the decoder reads features of {self.encoder_channels} channels, got {given}; "
                "pass the features of the backbone it was built for"
            )
        x, *skips = reversed(features)
        x = self.center(x)
        for block, skip in zip(self.blocks, [*skips, *[None] * (len(self.blocks) - len(skips))], strict=True):
            x = block(x, skip)
        return fit(self.segmentation_head(x), size)


class DecoderBlock(nn.Module):
    """Up-sample, append the feature `skip` if there is one, convolve twice."""

    def __init__(self, in_channels: int, skip_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1 = _bn_relu_after(UpsampledConv2d(in_channels + skip_channels, out_channels))
        self.conv2 = _conv_bn_relu(out_channels, out_channels)

    def forward(self, x: Tensor, skip: Tensor | None = None) -> Tensor:
        convolution, *others = self.conv1
        x = convolution(x, skip)
        for layer in others:
            x = layer(x)
        return self.conv2(x)


def _conv_bn_relu(in_channels: int, out_channels: int) -> nn.Sequential:
    return _bn_relu_after(nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False))


def _bn_relu_after(convolution: nn.Conv2d) -> nn.Sequential:
    nn.init.kaiming_uniform_(convolution.weight, mode="fan_in", nonlinearity="relu")
    return nn.Sequential(convolution, nn.BatchNorm2d(convolution.out_channels), nn.ReLU(inplace=True))
