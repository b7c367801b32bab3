"""Finding the feature pyramid of any trained classifier, and cutting the classifier in two at its last map.

torch.fx writes the forward pass down as a graph; one run over it, watched call by call, tells which maps all of the
score comes through. What lies before the last of them becomes the body, what comes after it the head. Layers whose
code torch.fx cannot follow are kept whole.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from fcam.attachment.graph import ROOT, ancestors, part_of, short
from fcam.attachment.levels import automatic, named
from fcam.attachment.traced import PROBE_BATCH, Traced
from fcam.cams.activation import activation_between, are_probabilities
from fcam.cams.forward import logits_of, refuse_quantised, unwrap
from fcam.errors import FcamError, shown


@dataclass(frozen=True)
class Tap:
    """One level of the pyramid: the layer whose output it is, its channels, and its stride in input pixels."""

    path: str
    channels: int
    stride: int


@dataclass(frozen=True)
class Pyramid:
    """A classifier in two parts that together compute what it computes.

    `body(images)` gives the taps, shallow to deep; `head(top)` gives the logits (B, K), without the softmax or sigmoid
    that the classifier may end in. `scores` says how these become scores, see `fcam.heads.Head`. `late` are the names
    of the body's parameters that only the last tap depends on.
    """

    body: fx.GraphModule
    head: fx.GraphModule
    taps: tuple[Tap, ...]
    top_size: tuple[int, int]
    num_classes: int
    scores: str
    late: tuple[str, ...]


def find_pyramid(model: nn.Module, image_size: int = 224, level: str | Sequence[str] = "auto") -> Pyramid:
    """Cut a copy of `model` into body and head at its feature pyramid; `model` itself is left alone.

    Args:
        model: any torch classifier of images (B, 3, H, W), normalised as it wants them.
        image_size: side of the square noise that is sent through it once, in pixels.
        level: "auto" takes the last map of each resolution before the pooling; a list names the layers, shallow to
            deep, the last being the map that the rest of the network, the head, is computed from.

    Raises `FcamError` that says what was seen where there is no pyramid.
    """
    if not isinstance(image_size, int) or image_size < 1:
        raise FcamError(
            f"image_size is {shown(image_size)}; give the side of a square in pixels, such as 224"
        )
    whole = _copy(model)
    trace = Traced(whole, image_size)
    nodes = automatic(trace) if level == "auto" else named(trace, level)
    if len(nodes) < 2:
        raise FcamError(
            f"{trace.name} has maps at one resolution only ({trace.describe(nodes)}), and a decoder needs at least two; "
            "name more layers with level=[paths], or choose a network that reduces its maps step by step"
        )
    body = part_of(whole, trace.graph, {}, nodes)
    head = part_of(whole, trace.graph, {nodes[-1]: "top"}, [trace.logits], trace.batch_sizes)
    top = _compare(whole, body, head, image_size, trace.name)
    scores = "given" if are_probabilities(head(top.clone())) else "softmax"
    if trace.drop_activation():
        before = part_of(whole, trace.graph, {nodes[-1]: "top"}, [trace.logits], trace.batch_sizes)
        if found := activation_between(before(top.clone()), head(top.clone())):
            head, scores = before, found
    taps = tuple(Tap(trace.path_of(n), trace.shape[n][1], trace.stride(n)) for n in nodes)
    early = _parameters(body, ancestors(nodes[:-1], ()))
    late = tuple(name for name, _ in body.named_parameters() if name not in early)
    height, width = trace.shape[nodes[-1]][2:]
    return Pyramid(body, head, taps, (height, width), trace.output.shape[1], scores, late)


def _copy(model: nn.Module) -> nn.Module:
    """A copy in eval mode with float32 weights, so that the caller's model keeps its mode and its flags."""
    refuse_quantised(unwrap(model))
    try:
        whole = copy.deepcopy(unwrap(model)).float().eval()
        if any(tensor.is_meta for tensor in whole.state_dict().values() if isinstance(tensor, Tensor)):
            raise FcamError(f"{type(model).__name__} has weights on the meta device; load its weights first")
        return whole.requires_grad_(False)
    except FcamError:
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        raise FcamError(
            f"{type(model).__name__} cannot be copied ({short(error)}); pass it as it is after construction and loading, "
            "lazy layers run once, pruning and old weight norms removed (torch.nn.utils.prune.remove, remove_weight_norm)"
        ) from error


def _parameters(body: fx.GraphModule, nodes: set[fx.Node]) -> set[str]:
    """Names of the body's parameters that `nodes` use."""
    targets = {str(n.target).removeprefix(f"{ROOT}.") for n in nodes if n.op in ("call_module", "get_attr")}
    return {
        name
        for name, _ in body.named_parameters()
        if any(name == t or name.startswith(f"{t}.") for t in targets)
    }


@torch.no_grad()
def _compare(whole: nn.Module, body: fx.GraphModule, head: fx.GraphModule, side: int, name: str) -> Tensor:
    """Return the top map of some noise; raise `FcamError` unless both parts together give what the whole gives."""
    reference = next(whole.parameters(), torch.zeros(()))
    images = torch.randn(PROBE_BATCH, 3, side, side, generator=torch.Generator().manual_seed(1))
    images = images.to(reference.device)
    want = logits_of(whole(images)).float()
    top = body(images)[-1]
    got = head(top.clone())
    error = float((got - want).abs().max()) if got.shape == want.shape else float("inf")
    if not error <= 1e-4 * max(1.0, float(want.abs().max())):
        raise FcamError(
            f"{name} does something between its layers that cannot be followed: the parts differ from the whole by "
            f"{error:.3g}; name other layers with level=[paths], or train a network of fcam.list_models()"
        )
    return top
