"""The levels of a classifier's pyramid: the last map of each resolution, or those that the user names."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Sequence

from torch import fx

from fcam.attachment.traced import Traced
from fcam.cams.layout import find_layout
from fcam.cams.target import before_pooling, is_early, maps_on_path
from fcam.cams.trace import Call
from fcam.errors import FcamError, shown


def automatic(traced: Traced) -> list[fx.Node]:
    """The last map of each resolution below the image's that everything goes through, fine to coarse."""
    spatial, tokens = maps_on_path(traced.recorder, traced.output, traced.size)
    if tokens and (not spatial or tokens[-1].number > spatial[-1].number):
        raise FcamError(
            f"{traced.name} ends in tokens of shape {tokens[-1].shape}, not in maps (B, C, h, w); "
            "choose a convolutional network, or name layers with maps by level=[paths]"
        )
    last = before_pooling(spatial, traced.output.shape[1]) if spatial else None
    spatial = [call for call in spatial if _is_map(traced, call)]
    top = before_pooling(spatial, traced.output.shape[1]) if spatial else None
    if top is not None and last is not None and _is_worked_on(traced, top, last):
        raise FcamError(
            f"{traced.name} ends in maps of shape {last.shape}, channels last, and a decoder reads (B, C, h, w); "
            "let its last layers give x.permute(0, 3, 1, 2) and take that back after it, or choose another network"
        )
    if top is None or is_early(top, traced.recorder.calls):
        seen = f"the last map, {top.shape}, is followed by much of the network" if top else "there is none"
        raise FcamError(
            f"no feature pyramid was found in {traced.name}: {seen}; name the layers with level=[paths], shallow to "
            f"deep, the last being the map before the pooling ({_examples(traced)})"
        )
    node_of = {number: node for node, number in traced.number.items()}
    if top.number not in node_of:
        raise FcamError(
            f"the last map of {traced.name}, {top.shape}, lies inside a layer whose code cannot be followed; "
            f"name the layers with level=[paths] ({_examples(traced)})"
        )
    best: dict[tuple[int, ...], fx.Node] = {}
    for call in spatial:
        if call.number < top.number and call.number in node_of and _is_tap(traced, call, top):
            # The output of a whole stage rather than a map inside the block that makes it smaller.
            node, known = node_of[call.number], best.get(call.shape[-2:])
            if known is None or traced.depth[node] <= traced.depth[known]:
                best[call.shape[-2:]] = node
    return [*best.values(), node_of[top.number]]


def named(traced: Traced, paths: str | Sequence[str]) -> list[fx.Node]:
    """The outputs of the layers of these paths, checked to be maps that get no finer."""
    if isinstance(paths, str) or not paths:
        raise FcamError(f"level is {paths!r}; take 'auto' or a list of layers, shallow to deep")
    nodes = [_map_at(traced, path) for path in paths]
    sizes = [traced.shape[node][2:] for node in nodes]
    if any(a < b for before, after in itertools.pairwise(sizes) for a, b in zip(before, after, strict=True)):
        raise FcamError(
            f"level goes from coarse to fine ({', '.join(map(str, sizes))}); list it shallow to deep"
        )
    path_numbers = {call.number for call in traced.recorder.bottlenecks(traced.output)}
    if traced.number.get(nodes[-1]) not in path_numbers:
        raise FcamError(
            f"not all of the score is computed from {paths[-1]!r}; the last level must be the map before the pooling"
        )
    return nodes


def _map_at(traced: Traced, path: str) -> fx.Node:
    """The output of the layer of this path, checked to be a map (B, C, h, w)."""
    if not isinstance(path, str):
        raise FcamError(f"level holds {shown(path)}; name layers by their paths, shallow to deep")
    node = traced.node_at(path)
    if node is None:
        near = difflib.get_close_matches(path, traced.layers, n=3) or list(traced.layers)[-3:]
        raise FcamError(
            f"{traced.name} has no layer {path!r} with an output of its own; near are {', '.join(near)}"
        )
    if len(traced.shape.get(node, ())) != 4:
        raise FcamError(
            f"layer {path!r} gives shape {traced.shape.get(node)}, not a map (B, C, h, w); name another"
        )
    call = traced.recorder.calls[traced.number[node]] if node in traced.number else None
    layout = find_layout(traced.shape[node], traced.size, (), call.channels if call else 0)
    if layout is not None and layout.kind == "NHWC":
        raise FcamError(
            f"layer {path!r} gives shape {traced.shape[node]}, channels last, and a decoder reads (B, C, h, w); "
            "name a layer that gives such maps"
        )
    return node


def _is_worked_on(traced: Traced, top: Call, last: Call) -> bool:
    """Whether layers with weights, more than normalisation, lie between two maps: then `top` is not the last one."""
    between = (call for call in traced.recorder.calls if top.number < call.number <= last.number)
    return any(call.function in ("conv2d", "linear") for call in between)


def _is_map(traced: Traced, call: Call) -> bool:
    """Whether this is a map (B, C, h, w), with channels where the decoder wants them."""
    layout = find_layout(call.shape, traced.size, (), call.channels)
    return layout is not None and layout.kind == "NCHW"


def _is_tap(traced: Traced, call: Call, top: Call) -> bool:
    """Whether this is a map (B, C, h, w) finer than the last one and coarser than the image."""
    return _is_map(traced, call) and top.shape[-1] < call.shape[-1] < traced.size[1]


def _examples(traced: Traced) -> str:
    maps = {
        traced.shape[n][2:]: path for path, n in traced.layers.items() if len(traced.shape.get(n, ())) == 4
    }
    return (
        "maps: " + ", ".join(f"{path} {h}x{w}" for (h, w), path in list(maps.items())[-4:])
        if maps
        else "no maps"
    )
