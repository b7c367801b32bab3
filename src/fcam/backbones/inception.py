"""InceptionV3 in its WSOL form: a stride removed, 3x3 convolutions padded, two SPG layers on top."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import Inception_V3_Weights
from torchvision.models.inception import Inception3, InceptionB

from fcam.backbones.base import Backbone
from fcam.backbones.weights import State, fetch, load_checked, read_weights
from fcam.errors import FcamError

# Stages end where the taps are: after 2b, 3b, 5c and 6e; the SPG layers make the top map.
STAGES = (
    ("Conv2d_1a_3x3", "Conv2d_2a_3x3", "Conv2d_2b_3x3"),
    ("pool", "Conv2d_3b_1x1"),
    ("Conv2d_4a_3x3", "pool", "Mixed_5b", "Mixed_5c"),
    ("Mixed_5d", "Mixed_6a", "Mixed_6b", "Mixed_6c", "Mixed_6d", "Mixed_6e"),
    ("SPG_A3_1b", "SPG_A3_2b"),
)
_UNUSED = ("Mixed_7", "AuxLogits", "fc.")


class _UnstridedB(InceptionB):
    """torchvision's InceptionB at stride 1: its pooling branch is a function call with a fixed stride."""

    def __init__(self, in_channels: int) -> None:
        super().__init__(in_channels)
        for branch in (self.branch3x3, self.branch3x3dbl_3):
            cast(nn.Conv2d, branch.conv).stride = (1, 1)

    def _forward(self, x: Tensor) -> list[Tensor]:
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return [self.branch3x3(x), double, F.max_pool2d(x, kernel_size=3, stride=1, padding=1)]


class InceptionV3(Backbone):
    """InceptionV3 up to Mixed_6e, then two 3x3 convolutions to 1024 channels with dropout.

    f1..f5 are 64, 80, 288, 768, 1024 channels at strides 2, 4, 8, 8, 8 (112, 57, 29, 29, 29 for 224 pixels:
    the poolings round up). Keys are torchvision's, and `SPG_A3_1b.1.*`, `SPG_A3_2b.1.*`. The ImageNet mean
    and standard deviation are used, as the WSOL codes do, though torchvision's weights saw [-1, 1] images.
    """

    def __init__(self, output_stride: int = 8) -> None:
        if output_stride != 8:
            raise FcamError(
                f"inceptionv3 has output stride 8, got {output_stride}; use 'timm:inception_v3' for 32"
            )
        super().__init__("inceptionv3", (64, 80, 288, 768, 1024), (2, 4, 8, 8, 8))
        net = Inception3(num_classes=1, aux_logits=False, init_weights=False)
        for name in (name for stage in STAGES for name in stage if name.startswith(("Conv2d", "Mixed"))):
            setattr(self, name, _UnstridedB(288) if name == "Mixed_6a" else getattr(net, name))
        self.pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1, ceil_mode=True)
        self.SPG_A3_1b = _spg_layer(768)
        self.SPG_A3_2b = _spg_layer(1024)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                if module.kernel_size == (3, 3):
                    module.padding = (1, 1)
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> list[Tensor]:
        x = self.normalize(images)
        features = []
        for stage in STAGES:
            for name in stage:
                x = getattr(self, name)(x)
            features.append(x)
        return features

    def late_parameters(self) -> list[nn.Parameter]:
        return [*self.SPG_A3_1b.parameters(), *self.SPG_A3_2b.parameters()]

    def load_imagenet(self, pretrained: bool | str | Path) -> None:
        """Load torchvision's weights (SPG layers stay random), or a file with torchvision's or WSOL keys."""
        if isinstance(pretrained, (str, Path)):
            state, source = read_weights(pretrained), str(pretrained)
        else:
            source = "torchvision's InceptionV3"
            weights = Inception_V3_Weights.IMAGENET1K_V1
            state = fetch("inceptionv3", lambda: weights.get_state_dict(progress=True))
        load_checked(self, _own_keys(state), source, allow_missing=("SPG_",) if "fc.weight" in state else ())


def _own_keys(state: State) -> dict[str, Tensor]:
    """`state` without what the WSOL form leaves out; the authors' encoder has `features.*` as duplicates."""
    return {k: v for k, v in state.items() if not k.startswith((*_UNUSED, "features."))}


def _spg_layer(in_channels: int) -> nn.Sequential:
    conv = nn.Conv2d(in_channels, 1024, kernel_size=3, padding=1)
    return nn.Sequential(nn.Dropout(0.5), conv, nn.ReLU(inplace=True))
