"""The decoder: counts, resampling, sizes, and the field's own U-Net as an oracle."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fcam.backbones import build_backbone
from fcam.decoder import Decoder, DecoderBlock, decoder_channels, preset_channels
from fcam.errors import FcamError

# Encoder channels, centre, parameters without the last convolution, per block, of the last convolution.
PAPER = {
    "vgg16": ((128, 256, 1024), True, 23_119_616, [3_539_968, 590_336, 110_848], 1154),
    "inceptionv3": (
        (64, 80, 288, 768, 1024),
        False,
        5_704_384,
        [4_719_616, 774_656, 156_928, 46_208, 6_976],
        290,
    ),
    "resnet50": (
        (64, 256, 512, 1024, 2048),
        False,
        9_012_928,
        [7_668_736, 1_032_704, 258_304, 46_208, 6_976],
        290,
    ),
}


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", PAPER)
def test_parameter_counts_of_the_paper(name: str) -> None:
    channels, center, total, blocks, last = PAPER[name]
    with torch.device("meta"):
        decoder = Decoder(channels, center=center)
    assert parameters(decoder.segmentation_head) == last
    assert parameters(decoder) - last == total
    assert [parameters(block) for block in decoder.blocks] == blocks
    assert parameters(decoder.center) == (18_878_464 if center else 0)
    assert decoder.has_center == center


def randomized(module: nn.Module) -> nn.Module:
    """Give the normalisation layers statistics that a wrong order or a missing layer would show."""
    torch.manual_seed(3)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            for tensor in (layer.weight, layer.running_var):
                nn.init.uniform_(tensor, 0.5, 1.5)  # type: ignore[arg-type]
            for tensor in (layer.bias, layer.running_mean):
                nn.init.normal_(tensor, 0, 0.1)  # type: ignore[arg-type]
    return module.eval()


def test_matches_segmentation_models_where_both_double() -> None:
    unet = pytest.importorskip("segmentation_models_pytorch.decoders.unet.decoder")
    channels, widths = (8, 12, 16, 24, 32), (24, 16, 12, 8, 8)
    decoder = randomized(Decoder(channels, widths))
    oracle = unet.UnetDecoder((3, *channels), widths, n_blocks=5).eval()
    state = {k: v for k, v in decoder.state_dict().items() if not k.startswith("segmentation_head.")}
    oracle.load_state_dict(state, strict=True)
    sides = (32, 16, 8, 8, 8)
    features = [torch.randn(2, c, s, s) for c, s in zip(channels, sides, strict=True)]
    with torch.no_grad():
        expected = decoder.segmentation_head(oracle([torch.zeros(2, 3, 64, 64), *features]))
        assert torch.allclose(decoder(features, (64, 64)), expected, atol=1e-5)


def test_center_is_two_convolutions_on_the_top() -> None:
    unet = pytest.importorskip("segmentation_models_pytorch.decoders.unet.decoder")
    decoder = randomized(Decoder((8, 12, 16), (12, 8, 8), center=True))
    oracle = unet.UnetDecoder((3, 8, 12, 16), (12, 8, 8), n_blocks=3, add_center_block=True).eval()
    state = {k: v for k, v in decoder.state_dict().items() if not k.startswith("segmentation_head.")}
    oracle.load_state_dict(state, strict=True)
    features = [torch.randn(1, 8, 16, 16), torch.randn(1, 12, 8, 8), torch.randn(1, 16, 4, 4)]
    with torch.no_grad():
        expected = decoder.segmentation_head(oracle([torch.zeros(1, 3, 32, 32), *features]))
        assert torch.allclose(decoder(features, (32, 32)), expected, atol=1e-5)


def up_and_fit(x: Tensor, size: tuple[int, int]) -> Tensor:
    """The reference's resampling: nearest doubling, then bilinear with aligned corners."""
    x = F.interpolate(x, scale_factor=2, mode="nearest")
    return F.interpolate(x, size=size, mode="bilinear", align_corners=True)


@pytest.mark.parametrize("side", [1, 2, 28, 29, 57])
def test_doubling_and_fitting_back_is_the_identity(side: int) -> None:
    x = torch.randn(1, 4, side, side)
    assert torch.allclose(up_and_fit(x, (side, side)), x, atol=1e-6)


@pytest.mark.parametrize(
    ("size", "skip_size"),
    [
        ((28, 28), (28, 28)),
        ((29, 29), (57, 57)),
        ((57, 57), (112, 112)),
        ((7, 5), (13, 11)),
        ((6, 9), (6, 17)),
    ],
)
def test_blocks_resample_as_the_reference_does(size: tuple[int, int], skip_size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    block = randomized(DecoderBlock(4, 3, 5))
    x, skip = torch.randn(2, 4, *size), torch.randn(2, 3, *skip_size)
    resized = up_and_fit(x, skip_size)
    if size != skip_size:
        nearest = F.interpolate(x, size=skip_size, mode="nearest")
        assert (resized - nearest).abs().max() > 0.1  # and not what a plain resize would give
    with torch.no_grad():
        convolution, *others = block.conv1  # type: ignore[misc]
        first = F.conv2d(torch.cat((resized, skip), 1), convolution.weight, padding=1)
        expected = block.conv2(nn.Sequential(*others)(first))  # type: ignore[operator]
        assert torch.allclose(block(x, skip), expected, atol=1e-5)


@pytest.mark.parametrize("size", [(224, 224), (33, 47), (225, 300)])
def test_maps_have_the_images_size(size: tuple[int, int]) -> None:
    decoder = Decoder((4, 6, 8), (8, 6, 4)).eval()
    features = [torch.randn(1, c, size[0] // s, size[1] // s) for c, s in ((4, 2), (6, 4), (8, 8))]
    maps = decoder(features, size)
    assert maps.shape == (1, 2, *size)
    assert maps.std() > 0


def test_the_last_step_is_bilinear_with_aligned_corners() -> None:
    decoder = randomized(Decoder((4,), (4,)))
    x = torch.randn(1, 4, 20, 20)
    with torch.no_grad():
        whole = decoder([x], (40, 40))
        assert torch.equal(
            decoder([x], (41, 37)), F.interpolate(whole, (41, 37), mode="bilinear", align_corners=True)
        )


def test_initialisation() -> None:
    torch.manual_seed(0)
    decoder = Decoder((64, 128), (128, 64))
    conv = decoder.blocks[0].conv1[0]  # type: ignore[union-attr, index]
    bound = (6 / (9 * (128 + 64))) ** 0.5
    assert 0.99 * bound < conv.weight.abs().max() <= bound  # type: ignore[union-attr]
    last = decoder.segmentation_head[0]
    bound = (6 / (9 * (64 + 2))) ** 0.5
    assert 0.98 * bound < last.weight.abs().max() <= bound  # type: ignore[union-attr]
    assert last.bias.abs().max() == 0  # type: ignore[union-attr]


def test_channels_last_stays_channels_last() -> None:
    decoder = Decoder((4, 6), (6, 4)).to(memory_format=torch.channels_last)
    features = [torch.randn(2, 4, 16, 16), torch.randn(2, 6, 8, 8)]
    maps = decoder([f.to(memory_format=torch.channels_last) for f in features], (32, 32))
    assert maps.is_contiguous(memory_format=torch.channels_last)


def test_presets() -> None:
    assert preset_channels("wide", 5) == (256, 128, 64, 32, 16)
    assert preset_channels("wide", 3) == (256, 128, 64)
    assert preset_channels("narrow", 6) == (128, 64, 48, 32, 16, 16)
    resnet, small = build_backbone("resnet50", False), build_backbone("timm:test_resnet", False)
    convnext = build_backbone("timm:test_convnext", False)
    assert decoder_channels(resnet) == (256, 128, 64, 32, 16)
    assert decoder_channels(resnet, "narrow") == (128, 64, 48, 32, 16)
    assert decoder_channels(small) == (128, 64, 48, 32, 16)
    for widths in ([8] * 5, np.full(5, 8), torch.full((5,), 8), [np.int64(8)] * 5, iter([8] * 5)):
        assert decoder_channels(small, widths) == (8, 8, 8, 8, 8)
    assert len(decoder_channels(convnext)) == 5  # four taps from stride 4, and a block to reach the pixels


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(FcamError, match=r"each of 3 features, got \(8, 4\)"):
        Decoder((4, 6, 8), (8, 4))
    for widths in (8, "8", [8.0, 4.0], np.ones((2, 2), int)):
        with pytest.raises(FcamError, match=r"widths of the decoder are .*; give a list of integers"):
            Decoder((4, 6), widths)  # type: ignore[arg-type]
    with pytest.raises(FcamError, match="named 'huge'"):
        preset_channels("huge", 5)
    with pytest.raises(FcamError, match=r"features of \(4, 6\) channels, got \(4, 5\)"):
        Decoder((4, 6), (8, 4))([torch.zeros(1, 4, 8, 8), torch.zeros(1, 5, 4, 4)], (16, 16))
