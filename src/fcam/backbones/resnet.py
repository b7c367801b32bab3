"""ResNet50 in its WSOL form: the strides of the last stages removed, no dilation."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from torch import Tensor, nn
from torchvision.models import ResNet50_Weights, resnet50
from torchvision.models.resnet import Bottleneck

from fcam.backbones.base import Backbone
from fcam.backbones.weights import fetch, load_checked, read_weights
from fcam.errors import FcamError


class ResNet50(Backbone):
    """torchvision's ResNet50 without pooling and classifier; taps after the stem and after each stage.

    With `output_stride` 8 (the paper's form) f1..f5 are 64, 256, 512, 1024, 2048 channels at strides
    2, 4, 8, 8, 8; 16 and 32 keep the last or both strides. Keys are torchvision's.
    """

    def __init__(self, output_stride: int = 8) -> None:
        if output_stride not in (8, 16, 32):
            raise FcamError(
                f"resnet50 has output stride 8, 16 or 32, got {output_stride}; choose one of these"
            )
        strides = (2, 4, 8, min(16, output_stride), output_stride)
        super().__init__("resnet50", (64, 256, 512, 1024, 2048), strides)
        net = resnet50(weights=None)
        for stage, stride in ((net.layer3, strides[3] // 8), (net.layer4, strides[4] // strides[3])):
            _set_stride(stage, stride)
        self.conv1, self.bn1, self.relu, self.maxpool = net.conv1, net.bn1, net.relu, net.maxpool
        self.layer1, self.layer2, self.layer3, self.layer4 = net.layer1, net.layer2, net.layer3, net.layer4

    def forward(self, images: Tensor) -> list[Tensor]:
        features = [self.relu(self.bn1(self.conv1(self.normalize(images))))]
        x = self.maxpool(features[0])
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
            features.append(x)
        return features

    def late_parameters(self) -> list[nn.Parameter]:
        return list(self.layer4.parameters())

    def load_imagenet(self, pretrained: bool | str | Path) -> None:
        """Load torchvision's V1 weights, or those in a file with the same keys (`fc.*` is optional)."""
        if isinstance(pretrained, (str, Path)):
            state, source = read_weights(pretrained), str(pretrained)
        else:
            source = "torchvision's ResNet50"
            state = fetch("resnet50", lambda: ResNet50_Weights.IMAGENET1K_V1.get_state_dict(progress=True))
        if "fc.weight" in state and "fc.bias" in state:
            self._keep_classifier(state["fc.weight"], state["fc.bias"])
        load_checked(self, {k: v for k, v in state.items() if not k.startswith("fc.")}, source)


def _set_stride(stage: nn.Sequential, stride: int) -> None:
    """Give a stage's first bottleneck this stride, in its 3x3 convolution and in its shortcut."""
    block = cast(Bottleneck, stage[0])
    block.stride = stride
    for conv in (block.conv2, cast(nn.Sequential, block.downsample)[0]):
        cast(nn.Conv2d, conv).stride = (stride, stride)
