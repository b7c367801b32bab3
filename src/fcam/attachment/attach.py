"""`fcam.attach`: a decoder on any trained classifier."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

import torch
from torch import nn

from fcam.attachment import identity, sources
from fcam.attachment.attached import classifier_from
from fcam.cams.forward import unwrap
from fcam.decoder import Decoder, decoder_channels
from fcam.errors import FcamError, shown
from fcam.model import FCAM
from fcam.plain import class_names

log = logging.getLogger(__name__)


@torch.inference_mode(False)  # tensors made inside could never be trained
def attach(
    model: nn.Module | str,
    level: str | Sequence[str] = "auto",
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    image_size: int = 224,
    channels: str | Iterable[SupportsIndex] | None = None,
    classes: Iterable[str] | None = None,
    outputs: Iterable[SupportsIndex] | None = None,
    source: str | None = None,
) -> FCAM:
    """Put an untrained decoder on a trained classifier: torchvision's, timm's or your own.

    The result holds a frozen copy of the classifier; yours keeps its weights, mode and gradients flags. What was found
    is in `fcam_model.classifier.describe()`.

    Args:
        model: a torch module that gives class scores (B, K) for images (B, 3, H, W), or a name: "torchvision:NAME" or
            "timm:NAME" with ImageNet weights, "module.path:factory".
        level: "auto" finds the maps that the decoder reads; or the paths of the layers whose outputs they are, shallow
            to deep, the last one being the map before the pooling.
        mean: three numbers for images in [0, 1], with which the classifier was trained. None takes timm's own for its
            networks, those of its weights for torchvision's, and otherwise leaves images as they are.
        std: three numbers that go with `mean`.
        image_size: side in pixels of the square that the classifier is looked at with; of concern where it takes one
            size only.
        channels: widths of the decoder's blocks, deep to shallow, or "wide" or "narrow"; None chooses by the
            classifier's width.
        classes: class names in label order; of a classifier with one output no and yes, in this order.
        outputs: numbers of the classifier's outputs to keep, in the order of `classes`; None keeps all.
        source: the name that builds the classifier again when the model is loaded; found for unchanged torchvision and
            timm networks. Without one, `FCAM.from_pretrained` needs `classifier=`.

    `channels`, `classes` and `outputs` may be lists, arrays or tensors.

    Raises `FcamError` that says what was seen where no pyramid can be found.
    """
    if isinstance(model, str):
        source, model = model, sources.build(model, pretrained=True)
    model = unwrap(model)  # a wrapper has neither the network's name nor its normalisation
    own_mean, own_std, origin = identity.normalization(model)
    if given := checked_normalization(mean, std):
        own_mean, own_std = given
        origin = f"given, mean {own_mean}, std {own_std}"
    classifier = classifier_from(model, source, image_size, level, own_mean, own_std, origin)
    names = None if classes is None else class_names(classes)
    classifier.head.offer(len(names or ()))
    classifier.head.select(outputs)
    if source is None:
        classifier.source = identity.identify(model, classifier.head.num_outputs)
    backbone = classifier.backbone
    backbone.name = classifier.source or backbone.name
    decoder = Decoder(backbone.channels, decoder_channels(backbone, channels))
    found = FCAM(classifier, decoder, classes=names, metadata={"decoder_trained": False})
    log.info("%s", classifier.describe())
    return found


def checked_normalization(mean: Any, std: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and std as tuples of three floats: lists, arrays and tensors are all written for them; None where both are.

    Raises `FcamError` for one alone, and for numbers that cannot be meant.
    """
    if (mean is None) != (std is None):
        raise FcamError("mean and std go together; give both, or neither for the classifier's own")
    if mean is None:
        return None
    try:
        means, stds = (tuple(float(x) for x in three) for three in (mean, std))
    except (TypeError, ValueError):
        means, stds = (), ()
    if (
        not len(means) == len(stds) == 3
        or not all(s > 0 for s in stds)
        or not all(abs(m) <= 1 for m in means)
    ):
        raise FcamError(
            f"mean and std need three numbers each, mean within 1 and std above 0, got {shown(mean)} and {shown(std)}; "
            "they refer to images in [0, 1], divide those for 8-bit images by 255"
        )
    return means, stds
