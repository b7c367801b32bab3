"""VGG16 in its WSOL form: the last two poolings removed, one more convolution on top."""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import VGG16_Weights
from torchvision.models.vgg import make_layers

from fcam.backbones.base import Backbone
from fcam.backbones.weights import State, fetch, load_checked, read_weights
from fcam.errors import FcamError

LAYERS: list[str | int] = [64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, 512, 512, 512]
# Indices of the convolutions in torchvision's `features`, which has a fourth pooling at 23, and in ours.
_IMAGENET_INDEX = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)
_OWN_INDEX = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 23, 25, 27)


class VGG16(Backbone):
    """VGG16 without the 4th and 5th pooling, with conv6 (3x3, 512 to 1024) and ReLU.

    f1..f3 are 128, 256, 1024 channels at strides 2, 4, 8, taken before each pooling; the 64 channels at full
    resolution are not a tap. Keys: `features.N.*`, `conv6.*`.
    """

    center = True

    def __init__(self, output_stride: int = 8) -> None:
        if output_stride != 8:
            raise FcamError(f"vgg16 has output stride 8, got {output_stride}; use 'timm:vgg16' for others")
        super().__init__("vgg16", (128, 256, 1024), (2, 4, 8), wide=True)
        self.features = make_layers(LAYERS)  # type: ignore[arg-type]
        self.conv6 = nn.Conv2d(512, 1024, kernel_size=3, padding=1)
        self._pools = [i for i, layer in enumerate(self.features) if isinstance(layer, nn.MaxPool2d)]
        for layer in self.features:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> list[Tensor]:
        x = self.normalize(images)
        taps = []
        for index, layer in enumerate(self.features):
            if index in self._pools[1:]:
                taps.append(x)
            x = layer(x)
        return [*taps, F.relu(self.conv6(x), inplace=True)]

    def late_parameters(self) -> list[nn.Parameter]:
        return list(self.conv6.parameters())

    def load_imagenet(self, pretrained: bool | str | Path) -> None:
        """Load torchvision's weights (conv6 stays random), or a file with torchvision's or the WSOL keys."""
        if isinstance(pretrained, (str, Path)):
            state, source = read_weights(pretrained), str(pretrained)
        else:
            source = "torchvision's VGG16"
            state = fetch("vgg16", lambda: VGG16_Weights.IMAGENET1K_V1.get_state_dict(progress=True))
        if "features.28.weight" in state:
            load_checked(self, reindex(state), source, allow_missing=("conv6.",))
        else:  # the authors' encoder registers every layer a second time as full_features
            load_checked(self, {k: v for k, v in state.items() if not k.startswith("full_features.")}, source)


def reindex(state: State) -> dict[str, Tensor]:
    """torchvision's VGG16 convolutions under the indices they have once the 4th pooling is gone."""
    own: dict[int, int] = dict(zip(_IMAGENET_INDEX, _OWN_INDEX, strict=True))
    result = {}
    for key, value in state.items():
        if key.startswith("features."):
            _, index, kind = key.split(".")
            result[f"features.{own[int(index)]}.{kind}"] = value
    return result
