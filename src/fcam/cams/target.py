"""Finding the last spatial map of any torch classifier, and running the model with the graph cut there."""

from __future__ import annotations

import logging
import math
from contextlib import ExitStack
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fcam.cams.forward import (
    Forward,
    Target,
    answer_of,
    evaluating,
    logits_of,
    refuse_quantised,
    run_at_calls,
    unwrap,
    watch_calls,
)
from fcam.cams.layout import find_layout
from fcam.cams.trace import Call, Recorder
from fcam.errors import FcamError

log = logging.getLogger(__name__)

_SAME = {"dropout", "dropout2d", "contiguous", "clone", "to", "float", "feature_dropout", "alpha_dropout"}
_POOL = {"adaptive_avg_pool2d", "avg_pool2d"}
_TRUNK = {"add", "add_", "__add__", "__iadd__", "layer_norm", "rms_norm"}
_NORMS_TRIED = 6


@dataclass
class _Found:
    """A model's maps, fine to coarse; `calls` are the totals of the forwards that they were found, or right, in."""

    signature: int
    targets: list[Target]
    calls: set[int]


_known: WeakKeyDictionary[nn.Module, _Found] = WeakKeyDictionary()


def run(model: nn.Module, images: Tensor, stages: bool = False) -> Forward:
    """Run `model` once on `images` with the graph cut at its last spatial map, or at the last map of every stage.

    Stages count from stride 4 on (RefineCAM reads them). Call it outside inference mode. Raises `FcamError` when the
    map, or a second one for `stages`, cannot be found.
    """
    model = unwrap(model)
    with evaluating(model), torch.no_grad():
        found = _find(model, images)
        forward = _run_at(found, model, images, stages)
        if forward is None or forward.calls not in found.calls:
            # Other calls, another path: for photos of another size, a depth set anew. Or else a path that depends
            # on the number of images, hence this time all of them.
            again = _search(model, images)
            if forward is None or _places(again) != _places(found):
                found = _known[model] = again
                forward = _run_at(found, model, images, stages)
            if forward is not None:
                found.calls.add(forward.calls)
    if forward is not None:
        return forward
    if stages and len(found.targets) < 2:
        raise FcamError(
            "refinecam needs maps at several depths and found one; pass layers=[...] with two or more"
        )
    advice = "layers=[...]" if stages else "target_layer"
    raise FcamError(f"the model's forward pass differs from call to call; pass {advice}")


def _run_at(found: _Found, model: nn.Module, images: Tensor, stages: bool) -> Forward | None:
    """Cut at the maps that are wanted; None where there are too few, or the calls are not those of `found`."""
    if stages and len(found.targets) < 2:
        return None
    return run_at_calls(model, images, found.targets if stages else found.targets[-1:])


def _places(found: _Found) -> list[tuple[int, str]]:
    return [(target.call, target.function) for target in found.targets]


def find_targets(model: nn.Module, images: Tensor) -> list[Target]:
    """Return the model's maps from fine to coarse, the last one being the last spatial map before pooling.

    One extra forward pass on one image, the first time a model is seen; its answer is kept as long as the
    model's layers stay the same, and as `run` sees it make as many calls.
    """
    return _find(model, images).targets


def _find(model: nn.Module, images: Tensor) -> _Found:
    known = _known.get(model)
    if known is not None and known.signature == _signature(model):
        return known
    refuse_quantised(model)
    found = _search(model, images[:1])
    log.info("maps of %s are read at %s", type(model).__name__, found.targets[-1])
    _known[model] = found
    return found


def _signature(model: nn.Module) -> int:
    return hash(tuple((id(module), type(module)) for module in model.modules()))


def _search(model: nn.Module, images: Tensor) -> _Found:
    with evaluating(model), torch.no_grad():
        try:
            targets, calls = _look(model, images)
        except FcamError:  # models that fill caches in their first forward make other calls in the next
            targets, calls = _look(model, images)
    return _Found(_signature(model), targets, {calls})


def _look(model: nn.Module, images: Tensor) -> tuple[list[Target], int]:
    """The maps of one forward, and the number of its calls."""
    recorder = Recorder(images)
    with ExitStack() as stack:
        for handle in recorder.name_layers(model):
            stack.callback(handle.remove)
        with recorder:
            output = answer_of(model, images)
            logits = logits_of(output, len(images))
    size, total = _size(images), len(recorder.calls) - 1
    spatial, tokens = maps_on_path(recorder, logits, size)
    if tokens and (not spatial or tokens[-1].number > spatial[-1].number):
        return [_token_target(model, images, recorder.calls, tokens, spatial)], total
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
    return [replace(_target(call), way_in=recorder.way_in(call)) for call in (*deep, last)], total


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
        layout = find_layout(call.shape, size, grids, call.channels) if len(call.shape) == 4 else None
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
    return Target(call.number, call.function, call.layer, call.shape, call.channels)
