"""What a model at hand is called in its library, and which normalisation it was trained with."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import timm
import torch
import torchvision
from torch import nn

from fcam.attachment.sources import build, without_memory
from fcam.backbones.base import IMAGENET_MEAN, IMAGENET_STD

_TRAINING_ALONE = re.compile(r"\b(momentum|inplace|p|drop_prob)=[^,]*")
"""Settings of layers that make no difference in eval mode."""

Normalization = tuple[tuple[float, ...], tuple[float, ...]]


def identify(model: nn.Module, num_classes: int) -> str | None:
    """The name by which `build` makes a network of the same layers and shapes as `model`, or None."""
    candidates: list[str] = []
    architecture = (getattr(model, "pretrained_cfg", None) or {}).get("architecture")
    if architecture and timm.is_model(architecture):
        candidates = [f"timm:{architecture}"]
    elif type(model).__module__.startswith("torchvision.models."):
        candidates = [f"torchvision:{name}" for name in _siblings(model)]
    shapes = _shapes(model)
    for source in candidates:
        other = without_memory(partial(build, source, num_classes))
        if (
            other is not None
            and type(other) is type(model)
            and shapes == _shapes(other)
            and _parts(model) == _parts(other)
        ):
            return source
    return None


def _parts(model: nn.Module) -> list[tuple[Any, ...]]:
    """What weights do not tell of a network's layers: their kinds and settings, but for those of training alone, and
    what was put on this very network, hooks and other methods than its class has.
    """
    return [
        (
            type(part),
            _TRAINING_ALONE.sub("", part.extra_repr()),
            getattr(part, "transform_input", False),
            len(part._forward_pre_hooks) + len(part._forward_hooks),
            [name for name in vars(part) if callable(getattr(type(part), name, None))],
        )
        for part in model.modules()
    ]


def normalization(model: nn.Module) -> tuple[tuple[float, ...], tuple[float, ...], str]:
    """Mean, standard deviation (of images in [0, 1]) that `model` expects, and in words where that comes from."""
    config = getattr(model, "pretrained_cfg", None) or {}
    if config.get("mean") and config.get("std"):
        return tuple(config["mean"]), tuple(config["std"]), "timm's for this network"
    if type(model).__module__.startswith("torchvision.models."):
        mean, std = _torchvisions(model)
        usual = (mean, std) == (IMAGENET_MEAN, IMAGENET_STD)
        which = "the ImageNet mean and standard deviation" if usual else "those of its weights"
        return mean, std, f"torchvision's, {which}"
    return (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), "none, the classifier is given images in [0, 1] as they are"


def _torchvisions(model: nn.Module) -> Normalization:
    """What torchvision's weights for this network were trained with: ImageNet's values but for a few."""
    shapes = set(_shapes(model))
    for name in _siblings(model):
        preset: Any = torchvision.models.get_model_weights(name).DEFAULT.transforms()  # type: ignore[attr-defined]
        own = tuple(preset.mean), tuple(preset.std)
        if own == (IMAGENET_MEAN, IMAGENET_STD):
            continue
        other = without_memory(partial(build, f"torchvision:{name}"))
        theirs = set() if other is None else set(_shapes(other))
        if len(shapes & theirs) > 0.9 * len(theirs) > 0:  # a head of the user's own may differ
            return own
    return IMAGENET_MEAN, IMAGENET_STD


def _siblings(model: nn.Module) -> list[str]:
    """Names of the networks that are written in the same file of torchvision as this one."""
    models, home = torchvision.models, type(model).__module__
    return [n for n in models.list_models(models) if models.get_model_builder(n).__module__ == home]


def _shapes(model: nn.Module) -> list[tuple[str, torch.Size]]:
    return [(key, value.shape) for key, value in model.state_dict().items()]
