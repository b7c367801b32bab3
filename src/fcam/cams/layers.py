"""Running any torch classifier with the graph cut at layers that the user names."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from fcam.cams.forward import (
    Forward,
    answer_of,
    evaluating,
    forward_at,
    logits_of,
    refuse_quantised,
    unwrap,
)
from fcam.cams.layout import find_layout
from fcam.cams.target import find_targets
from fcam.cams.trace import HeadWatch
from fcam.errors import FcamError


def run_at_layers(model: nn.Module, images: Tensor, layers: Sequence[str | nn.Module]) -> Forward:
    """Run `model` once on `images` with the graph cut at `layers`.

    Call it outside inference mode. Raises `FcamError` when a layer is unknown or has no spatial extent.
    """
    model = unwrap(model)
    with evaluating(model), torch.no_grad():
        return _run(model, images, layers)


def _run(model: nn.Module, images: Tensor, layers: Sequence[str | nn.Module]) -> Forward:
    names = [layer_name(model, layer) for layer in layers]
    refuse_quantised(model)
    modules = dict(model.named_modules())
    watch = HeadWatch()
    seen: dict[str, Any] = {}

    def hook_for(name: str) -> Any:
        def hook(_module: nn.Module, _args: Any, output: Any) -> Any:
            seen[name] = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            # Vectors, too, are taken; the message about them is better made when all is known.
            return (
                watch.take(name, output)
                if isinstance(output, Tensor) and output.is_floating_point()
                else None
            )

        return hook

    with ExitStack() as stack:
        for name in dict.fromkeys(names):
            handle = modules[name].register_forward_hook(hook_for(name))
            stack.callback(handle.remove)
        with watch:
            scores = logits_of(answer_of(model, images), len(images))
    size = (int(images.shape[-2]), int(images.shape[-1]))
    layouts = []
    for name in names:
        layout = find_layout(seen[name], size, watch.grids) if isinstance(seen.get(name), tuple) else None
        if layout is None or name not in watch.taken:
            raise FcamError(_no_extent(model, images, name, seen.get(name)))
        layouts.append(layout)
    return forward_at(
        watch,
        watch.before_activation(scores),
        [watch.taken[name] for name in names],
        layouts,
        [f"'{n}'" for n in names],
    )


def _no_extent(model: nn.Module, images: Tensor, name: str, seen: Any) -> str:
    if seen is None:
        return f"target_layer '{name}' is not run by the model's forward pass; name one that is"
    what = f"gives shape {seen}" if isinstance(seen, tuple) else f"returns a {seen}"
    try:
        advice = f"take {find_targets(model, images)[-1]}, the last map before pooling"
    except FcamError:
        advice = "take a layer whose output is (B, C, h, w)"
    return f"target_layer '{name}' {what}, which has no spatial extent; {advice}"


def layer_name(model: nn.Module, layer: str | nn.Module) -> str:
    """Return the name of `layer` in `model`; raises `FcamError` with the nearest names when it has none."""
    modules = dict(model.named_modules())
    if not isinstance(layer, (str, nn.Module)):
        raise FcamError(f"a layer is named by its path or given as the module, got {layer!r}; name one layer")
    if isinstance(layer, nn.Module):
        for name, module in modules.items():
            if module is layer:
                return name
        raise FcamError(
            f"target_layer is a {type(layer).__name__} that is not part of {type(model).__name__}"
        )
    if layer in modules and layer:
        return layer
    near = difflib.get_close_matches(str(layer), [name for name in modules if name], n=3, cutoff=0.4)
    hint = (
        f"nearest: {', '.join(near)}" if near else f"it has {', '.join(n for n, _ in model.named_children())}"
    )
    raise FcamError(f"{type(model).__name__} has no layer '{layer}'; {hint}")
