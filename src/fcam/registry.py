"""Models by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, SupportsIndex

import torch

from fcam.backbones import build_backbone, list_backbones
from fcam.classifier import Classifier
from fcam.decoder import Decoder
from fcam.decoder import decoder_channels as choose_channels
from fcam.errors import FcamError
from fcam.heads import build_head
from fcam.model import FCAM


@torch.inference_mode(False)  # tensors made inside could never be trained
def create_model(
    name: str,
    num_classes: int,
    pretrained: bool | str | Path = True,
    output_stride: int = 8,
    decoder_channels: str | Iterable[SupportsIndex] | None = None,
    head: str = "wgap",
    head_options: dict[str, Any] | None = None,
    classes: Iterable[str] | None = None,
    freeze_classifier: bool = True,
) -> FCAM:
    """Build classifier and decoder around a backbone.

    Args:
        name: a name of `list_models()`: "resnet50", "vgg16", "inceptionv3", "tf_efficientnet_lite0" or
            "timm:NAME".
        num_classes: number of classes K. With 1000, pretrained weights and head "wgap", the ImageNet
            classifier is loaded too, where the network has one that reads its pooled top map.
        pretrained: True for ImageNet weights in the backbone, False for random ones, or a weights file.
        output_stride: input pixels per pixel of the top map (strides are removed, not dilated).
        decoder_channels: widths of the decoder's blocks, deep to shallow, or "wide" or "narrow"; None lets
            the backbone decide.
        head: pooling head, "wgap" (global average pooling and a linear layer), "gap", "maxpool", "logsumexp"
            or "wildcat"; `head_options` are its keyword arguments.
        classes: class names in label order.
        freeze_classifier: keep the classifier out of training; `model.classifier.unfreeze()` undoes it.

    Raises `FcamError` for unknown names, weights that cannot be had and strides that cannot be reached.
    """
    backbone = build_backbone(name, pretrained, output_stride)
    pool = build_head(head, backbone.channels[-1], num_classes, **(head_options or {}))
    classifier = Classifier(backbone, pool)
    classifier.take_imagenet_head()
    decoder = Decoder(backbone.channels, choose_channels(backbone, decoder_channels), backbone.center)
    return FCAM(classifier, decoder, freeze_classifier, classes)


def list_models(filter: str = "") -> list[str]:
    """The names `create_model` takes that contain `filter`, the paper's backbones first.

    Raises `FcamError` with the nearest names when none does.
    """
    names = list_backbones()
    found = [name for name in names if filter in name]
    if not found:
        bare = {name.removeprefix("timm:"): name for name in reversed(names)}
        near = [bare[name] for name in difflib.get_close_matches(filter, bare, n=3, cutoff=0.4)]
        hint = f"; did you mean {', '.join(near)}?" if near else "; list_models() gives them all"
        raise FcamError(f"no model's name contains {filter!r}{hint}")
    return found
