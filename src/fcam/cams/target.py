"""Finding the last spatial map of any torch classifier, and running the model with the graph cut there."""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fcam.cams.forward import (
    Forward,
    Target,
    answer_of,
    evaluating,
    forward_at,
    logits_of,
    refuse_quantised,
    run_at_calls,
    unwrap,
    watch_calls,
)
from fcam.cams.layout import find_layout
from fcam.cams.trace import Call, HeadWatch, Recorder
from fcam.errors import FcamError

log = logging.getLogger(__name__)

_SAME = {"dropout", "dropout2d", "contiguous", "clone", "to", "float", "feature_dropout", "alpha_dropout"}
_POOL = {"adaptive_avg_pool2d", "avg_pool2d"}
_TRUNK = {"add", "add_", "__add__", "__iadd__", "layer_norm", "rms_norm"}
_NORMS_TRIED = 6


def run(model: nn.Module, images: Tensor, layers: Sequence[str | nn.Module] | None = None) -> Forward:
    """Run `model` once on `images` with the graph cut at `layers`, or else at its last spatial map.

    Call it outside inference mode. Raises `FcamError` when a layer is unknown or has no spatial extent, or
    when the map cannot be found.
    """
    model = unwrap(model)
    with evaluating(model), torch.no_grad():
        if layers is not None:
            return _run_at_layers(model, images, layers)
        target = find_targets(model, images)[-1]
        forward = run_at_calls(model, images, [target])
        if forward is None:  # other input, other calls: photos of another size may take another path
            _known.pop(model, None)
            forward = run_at_calls(model, images, [find_targets(model, images)[-1]])
        if forward is None:
            raise FcamError("the model's forward pass differs from call to call; pass target_layer")
        return forward


def run_stages(model: nn.Module, images: Tensor) -> Forward:
    """Run `model` once with the graph cut at the last map of every stage from stride 4 on (for RefineCAM)."""
    model = unwrap(model)
    with evaluating(model), torch.no_grad():
        for _ in range(2):
            targets = find_targets(model, images)
            if len(targets) < 2:
                raise FcamError(
                    "refinecam needs maps at several depths and found one; pass layers=[...] with two or more"
                )
            forward = run_at_calls(model, images, targets)
            if forward is not None:
                return forward
            _known.pop(model, None)
    raise FcamError("the model's forward pass differs from call to call; pass layers=[...]")


def find_targets(model: nn.Module, images: Tensor) -> list[Target]:
    """Return the model's maps from fine to coarse, the last one being the last spatial map before pooling.

    One extra forward pass on one image, the first time a model is seen; its answer is kept as long as the
    model's layers stay the same.
    """
    signature = hash(tuple((id(module), type(module)) for module in model.modules()))
    known = _known.get(model)
    if known is not None and known[0] == signature:
        return known[1]
    refuse_quantised(model)
    with evaluating(model), torch.no_grad():
        try:
            targets = _search(model, images[:1])
        except FcamError:  # models that fill caches in their first forward make other calls in the next
            targets = _search(model, images[:1])
    log.info("maps of %s are read at %s", type(model).__name__, targets[-1])
    _known[model] = (signature, targets)
    return targets


_known: WeakKeyDictionary[nn.Module, tuple[int, list[Target]]] = WeakKeyDictionary()


def _search(model: nn.Module, image: Tensor) -> list[Target]:
    recorder = Recorder(image)
    with ExitStack() as stack:
        for handle in recorder.name_layers(model):
            stack.callback(handle.remove)
        with recorder:
            output = answer_of(model, image)
            logits = logits_of(output, len(image))
    size = _size(image)
    spatial, tokens = maps_on_path(recorder, logits, size)
    if tokens and (not spatial or tokens[-1].number > spatial[-1].number):
        return [_token_target(model, image, recorder.calls, tokens, spatial)]
    last = before_pooling(spatial, int(logits.shape[1])) if spatial else None
    if last is None or is_early(last, recorder.calls):
        found = (
            f"the last one, {_target(last)}, is followed by much of the network" if last else "there is none"
        )
        raise FcamError(
            f"no spatial map before pooling was found in {type(model).__name__} ({found}); "
            "pass target_layer, a layer whose output is (B, C, h, w)"
        )
    taps = recorder.calls_of(getattr(output, "features", None))
    stages = taps or list({call.shape[-2:]: call for call in spatial}.values())
    deep = [call for call in stages if call.number < last.number and size[0] >= 3.5 * call.shape[-2]]
    if not taps:  # a map of the last resolution before the last map is the same stage
        deep = [call for call in deep if call.shape[-2:] != last.shape[-2:]]
    return [replace(_target(call), way_in=recorder.way_in(call)) for call in (*deep, last)]


def maps_on_path(recorder: Recorder, logits: Tensor, size: tuple[int, int]) -> tuple[list[Call], list[Call]]:
    """Return the recorded maps, and the token grids, that all of `logits` comes through, fine to coarse.

    `size` is the image's (H, W).
    """
    path = recorder.bottlenecks(logits)[1:]
    grids = {call.shape[-2:] for call in recorder.calls if len(call.shape) == 4}
    spatial: list[Call] = []
    for call in path:
        if call.shape and call.shape[0] != logits.shape[0]:
            continue  # windows or patches of an image, each by itself
        layout = find_layout(call.shape, size, grids) if len(call.shape) == 4 else None
        spots = spatial[-1].spots if spatial else math.inf
        # Classifiers get coarser, but for a few that make a map a little larger to cut it into patches (MobileViTV2).
        more = 1.5 if layout is not None and layout.kind == "NCHW" else 1
        if layout is not None and layout.height * layout.width <= more * spots:
            call.spots = layout.height * layout.width
            spatial.append(call)
    tokens = [
        call
        for call in path
        if len(call.shape) == 3 and call.shape[0] == logits.shape[0] and find_layout(call.shape, size, grids)
    ]
    return spatial, tokens


def before_pooling(spatial: list[Call], classes: int) -> Call:
    """Step back from the last spatial map over calls that pool it, pass it on, or classify it by 1x1 conv."""
    index = len(spatial) - 1
    while index > 0:
        call, before = spatial[index], spatial[index - 1]
        same_source = before.number in call.parents
        is_head = (
            call.function == "conv2d" and call.shape[1] == classes and call.shape[2:] == before.shape[2:]
        )
        if not (same_source and (call.function in _POOL | _SAME or is_head)):
            break
        index -= 1
    return spatial[index]


def is_early(last: Call, calls: list[Call]) -> bool:
    """Whether too much comes after a map for it to be the last: a head has few layers."""
    after = [call.number > last.number for call in calls if call.function in ("conv2d", "linear")]
    return sum(after) > max(4, 0.3 * len(after))


def _in_first_half(tokens: Call, calls: list[Call]) -> bool:
    """Whether more than half of the network comes after these tokens: those that count come in another order."""
    after = [call.number > tokens.number for call in calls if call.function in ("conv2d", "linear")]
    return sum(after) > max(8, 0.5 * len(after))


def _token_target(
    model: nn.Module, image: Tensor, calls: list[Call], tokens: list[Call], spatial: list[Call]
) -> Target:
    """The last tokens whose patches the score depends on: the end of the trunk, or a layer norm before it.

    A class token leaves nothing to see after the last block: there the map is read where the attention of
    that block reads its patches, at its first layer norm, as users of Grad-CAM on transformers do. A CNN
    with attention pooling is read at its last map.
    """
    last = next((call for call in reversed(tokens) if call.function in _TRUNK), tokens[-1])
    norms = [call for call in calls[: last.number] if "norm" in call.function and call.shape == last.shape]
    maps = [call for call in spatial[-1:] if not is_early(call, calls)]
    grids = [call for call in (last, *norms[: -_NORMS_TRIED - 1 : -1]) if not _in_first_half(call, calls)]
    for call in [*grids, *maps]:
        watch, logits = watch_calls(model, image, [_target(call)])
        tensor = watch.taken.get(call.number)
        if tensor is None:
            continue
        # Not the scores themselves: fresh models often start with a last layer of zeros.
        read = logits if watch.last_linear_input is None else watch.last_linear_input
        if not read.requires_grad:
            continue
        with torch.enable_grad():
            probe = (read.float() * torch.arange(1, read.shape[-1] + 1, device=read.device).cos()).sum()
        gradient = torch.autograd.grad(probe, tensor, allow_unused=True)[0]
        layout = find_layout(tuple(tensor.shape), _size(image), watch.grids)
        if gradient is not None and layout is not None and bool((layout.to_map(gradient) != 0).any()):
            return _target(call)
    raise FcamError(
        f"no token grid of {type(model).__name__} was found on which its score depends; pass target_layer, "
        "a layer whose output is (B, C, h, w), (B, h, w, C) or (B, prefix + h w, C)"
    )


def _size(images: Tensor) -> tuple[int, int]:
    return int(images.shape[-2]), int(images.shape[-1])


def _target(call: Call) -> Target:
    return Target(call.number, call.function, call.layer, call.shape)


def _run_at_layers(model: nn.Module, images: Tensor, layers: Sequence[str | nn.Module]) -> Forward:
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
    size = _size(images)
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
