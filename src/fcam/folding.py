"""Batch normalisation folded into the convolution before it, for inference: one pass over memory less per layer."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

TOLERANCE = 1e-3
"""Largest deviation of a folded network, as a share of the largest output, beyond which it is not used."""


@torch.no_grad()
def folded(model: nn.Module, images: Tensor) -> nn.Module:
    """A copy of `model` for inference, with every batch normalisation that directly follows a convolution folded into it.

    Which follows which is seen by running `images` once; whether the copy still says the same, by running them again. The model
    itself is returned when it cannot be copied, when nothing can be folded, or when the outputs differ.

    Args:
        model: in eval mode; its output is a tuple or list of tensors.
        images: an example that the model takes.
    """
    try:
        twin = copy.deepcopy(model)
    except Exception:  # somebody's own module may hold anything
        return model
    pairs = _pairs(twin, images)
    for conv_name, norm_name in pairs:
        conv, norm = twin.get_submodule(conv_name), twin.get_submodule(norm_name)
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(norm, nn.BatchNorm2d)
        fused = fuse_conv_bn_eval(conv, norm)
        conv.weight, conv.bias = fused.weight, fused.bias
        _replace(twin, norm_name, _rest(norm))
    return twin if pairs and _agree(model(images), twin(images)) else model


def _pairs(model: nn.Module, images: Tensor) -> list[tuple[str, str]]:
    """Names of convolutions and of the normalisations that read exactly their output, each run once."""
    runs: Counter[str] = Counter()
    makers: list[tuple[Tensor, str]] = []  # holds the tensors, so that no identity is given away twice
    found: list[tuple[str, str]] = []
    handles = []

    def after_conv(name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            runs[name] += 1
            makers.append((output, name))

        return hook

    def before_norm(name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            runs[name] += 1
            maker = next((conv for made, conv in makers if made is inputs[0]), None)
            if maker is not None:
                found.append((maker, name))

        return hook

    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d) and not module.training:
            handles.append(module.register_forward_hook(after_conv(name)))
        elif isinstance(module, nn.BatchNorm2d) and not module.training and module.track_running_stats:
            handles.append(module.register_forward_pre_hook(before_norm(name)))
    try:
        model(images)
    finally:
        for handle in handles:
            handle.remove()
    readers = Counter(conv for conv, _ in found)
    return [(c, n) for c, n in found if runs[c] == runs[n] == readers[c] == 1]


def _rest(norm: nn.BatchNorm2d) -> nn.Module:
    """What a normalisation layer does besides normalising: timm's also hold the activation."""
    extra = [part for part in (getattr(norm, "drop", None), getattr(norm, "act", None)) if part is not None]
    extra = [part for part in extra if not isinstance(part, nn.Identity)]
    return extra[0] if len(extra) == 1 else nn.Sequential(*extra)


def _replace(model: nn.Module, name: str, part: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, part)


def _agree(before: Any, after: Any) -> bool:
    """Whether two outputs are the same up to rounding."""
    if isinstance(before, Tensor):
        scale = before.float().abs().max().clamp(min=1e-6)
        return bool((before.float() - after.float()).abs().max() <= TOLERANCE * scale)
    return all(_agree(b, a) for b, a in zip(before, after, strict=True))
