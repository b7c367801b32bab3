"""Finding the feature pyramid of any trained classifier, and cutting the classifier in two at its last map.

torch.fx writes the forward pass down as a graph; one run over it, watched call by call, tells which maps all of the
score comes through. What lies before the last of them becomes the body, what comes after it the head. Layers whose
code torch.fx cannot follow are kept whole.
"""

from __future__ import annotations

import copy
import difflib
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from fcam.attachment.graph import ROOT, Run, Whole, ancestors, part_of, short, symbolic
from fcam.cams.activation import activation_between, are_probabilities, is_activation, keeps_values
from fcam.cams.forward import logits_of, refuse_quantised, unwrap
from fcam.cams.layout import find_layout
from fcam.cams.target import before_pooling, is_early, maps_on_path
from fcam.cams.trace import Call, Recorder
from fcam.errors import FcamError, shown

PROBE_BATCH = 2


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
    trace = _Trace(whole, image_size)
    nodes = trace.automatic() if level == "auto" else trace.named(level)
    if len(nodes) < 2:
        raise FcamError(
            f"{trace.name} has maps at one resolution only ({trace.describe(nodes)}), and a decoder needs at least two; "
            "name more layers with level=[paths], or choose a network that reduces its maps step by step"
        )
    body = part_of(whole, trace.graph, {}, nodes)
    head = part_of(whole, trace.graph, {nodes[-1]: "top"}, [trace.logits], trace.batch_sizes())
    top = _compare(whole, body, head, image_size, trace.name)
    scores = "given" if are_probabilities(head(top.clone())) else "softmax"
    if trace.drop_activation():
        before = part_of(whole, trace.graph, {nodes[-1]: "top"}, [trace.logits], trace.batch_sizes())
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


class _Trace:
    """The graph of a classifier and what one run over it showed."""

    def __init__(self, model: nn.Module, image_size: int) -> None:
        self.name = type(model).__name__
        self.size = (image_size, image_size)
        whole = Whole(model)
        tracer, self.graph = symbolic(whole, self.name)
        self.layers, self.depth = tracer.layers, tracer.depth
        for name, constant in vars(whole).items():  # where the trace keeps tensors that the forward makes
            if name.startswith("_tensor_constant"):
                setattr(model, name, constant)
        self.module = fx.GraphModule(whole, self.graph)
        reference = next(model.parameters(), torch.zeros(()))
        generator = torch.Generator().manual_seed(0)
        image = torch.randn(PROBE_BATCH, 3, image_size, image_size, generator=generator).to(reference.device)
        self.recorder = Recorder(image)
        run = Run(self.module, self.recorder)
        try:
            with torch.no_grad(), self.recorder:
                output = run.run(image)
        except Exception as error:
            raise FcamError(
                f"{self.name} does not take images of {image_size}x{image_size} ({short(error)}); {_advice(model)}"
            ) from error
        self.output = logits_of(output)
        self.number, self.value = run.number, run.value
        self.shape = {node: value for node, value in run.value.items() if isinstance(value, tuple)}
        self.logits: fx.Node = next(n for n in self.graph.nodes if n.op == "output").args[0]  # type: ignore[assignment]

    def automatic(self) -> list[fx.Node]:
        """The last map of each resolution below the image's that everything goes through, fine to coarse."""
        spatial, tokens = maps_on_path(self.recorder, self.output, self.size)
        if tokens and (not spatial or tokens[-1].number > spatial[-1].number):
            raise FcamError(
                f"{self.name} ends in tokens of shape {tokens[-1].shape}, not in maps (B, C, h, w); "
                "choose a convolutional network, or name layers with maps by level=[paths]"
            )
        last = before_pooling(spatial, self.output.shape[1]) if spatial else None
        spatial = [call for call in spatial if self._is_map(call)]
        top = before_pooling(spatial, self.output.shape[1]) if spatial else None
        if top is not None and last is not None and self._is_worked_on(top, last):
            raise FcamError(
                f"{self.name} ends in maps of shape {last.shape}, channels last, and a decoder reads (B, C, h, w); "
                "let its last layers give x.permute(0, 3, 1, 2) and take that back after it, or choose another network"
            )
        if top is None or is_early(top, self.recorder.calls):
            seen = (
                f"the last map, {top.shape}, is followed by much of the network" if top else "there is none"
            )
            raise FcamError(
                f"no feature pyramid was found in {self.name}: {seen}; name the layers with level=[paths], shallow to "
                f"deep, the last being the map before the pooling ({self._examples()})"
            )
        node_of = {number: node for node, number in self.number.items()}
        if top.number not in node_of:
            raise FcamError(
                f"the last map of {self.name}, {top.shape}, lies inside a layer whose code cannot be followed; "
                f"name the layers with level=[paths] ({self._examples()})"
            )
        best: dict[tuple[int, ...], fx.Node] = {}
        for call in spatial:
            if call.number < top.number and call.number in node_of and self._is_tap(call, top):
                # The output of a whole stage rather than a map inside the block that makes it smaller.
                node, known = node_of[call.number], best.get(call.shape[-2:])
                if known is None or self.depth[node] <= self.depth[known]:
                    best[call.shape[-2:]] = node
        return [*best.values(), node_of[top.number]]

    def _is_worked_on(self, top: Call, last: Call) -> bool:
        """Whether layers with weights, more than normalisation, lie between two maps: then `top` is not the last one."""
        between = (call for call in self.recorder.calls if top.number < call.number <= last.number)
        return any(call.function in ("conv2d", "linear") for call in between)

    def _is_map(self, call: Call) -> bool:
        """Whether this is a map (B, C, h, w), with channels where the decoder wants them."""
        layout = find_layout(call.shape, self.size, ())
        return layout is not None and layout.kind == "NCHW"

    def _is_tap(self, call: Call, top: Call) -> bool:
        """Whether this is a map (B, C, h, w) finer than the last one and coarser than the image."""
        return self._is_map(call) and top.shape[-1] < call.shape[-1] < self.size[1]

    def named(self, paths: str | Sequence[str]) -> list[fx.Node]:
        """The outputs of the layers of these paths, checked to be maps that get no finer."""
        if isinstance(paths, str) or not paths:
            raise FcamError(f"level is {paths!r}; take 'auto' or a list of layers, shallow to deep")
        by_name = {node.name: node for node in self.graph.nodes}
        nodes = []
        for path in paths:
            if not isinstance(path, str):
                raise FcamError(f"level holds {shown(path)}; name layers by their paths, shallow to deep")
            node = self.layers.get(path) or by_name.get(path)
            if node is None:
                near = difflib.get_close_matches(path, self.layers, n=3) or list(self.layers)[-3:]
                raise FcamError(
                    f"{self.name} has no layer {path!r} with an output of its own; near are {', '.join(near)}"
                )
            if len(self.shape.get(node, ())) != 4:
                raise FcamError(
                    f"layer {path!r} gives shape {self.shape.get(node)}, not a map (B, C, h, w); name another"
                )
            layout = find_layout(self.shape[node], self.size, ())
            if layout is not None and layout.kind == "NHWC":
                raise FcamError(
                    f"layer {path!r} gives shape {self.shape[node]}, channels last, and a decoder reads (B, C, h, w); "
                    "name a layer that gives such maps"
                )
            nodes.append(node)
        sizes = [self.shape[node][2:] for node in nodes]
        if any(
            a < b for before, after in itertools.pairwise(sizes) for a, b in zip(before, after, strict=True)
        ):
            raise FcamError(
                f"level goes from coarse to fine ({', '.join(map(str, sizes))}); list it shallow to deep"
            )
        path_numbers = {call.number for call in self.recorder.bottlenecks(self.output)}
        if self.number.get(nodes[-1]) not in path_numbers:
            raise FcamError(
                f"not all of the score is computed from {paths[-1]!r}; the last level must be the map before the pooling"
            )
        return nodes

    def _examples(self) -> str:
        maps = {self.shape[n][2:]: path for path, n in self.layers.items() if len(self.shape.get(n, ())) == 4}
        return (
            "maps: " + ", ".join(f"{path} {h}x{w}" for (h, w), path in list(maps.items())[-4:])
            if maps
            else "no maps"
        )

    def stride(self, node: fx.Node) -> int:
        return 2 ** round(math.log2(self.size[1] / self.shape[node][-1]))

    def path_of(self, node: fx.Node) -> str:
        """The outermost layer whose output this is, or else the node's own name."""
        return min((p for p, n in self.layers.items() if n is node), key=len, default=node.name)

    def describe(self, nodes: Iterable[fx.Node]) -> str:
        return ", ".join(f"{self.path_of(n)} {tuple(self.shape[n][1:])}" for n in nodes) or "none"

    def batch_sizes(self) -> set[fx.Node]:
        """Nodes that hold the number of images, which the head may read off any earlier tensor."""
        return {node for node, value in self.value.items() if value == PROBE_BATCH and isinstance(value, int)}

    def drop_activation(self) -> bool:
        """Take the softmax or sigmoid, or what is called so, off the end of the graph; False where there is none."""
        after: list[fx.Node] = []
        node = self.logits
        while keeps_values(self._name_of(node)) and node.all_input_nodes:
            after.append(node)
            node = node.all_input_nodes[0]
        if not (is_activation(self._name_of(node)) and len(node.all_input_nodes) == 1):
            return False
        source = node.all_input_nodes[0]
        node.replace_all_uses_with(source, lambda user: user in after)
        if node is self.logits:
            self.logits = source
        return True

    def _name_of(self, node: fx.Node) -> str:
        """What a node does: the name of the function or method, or of the layer's class."""
        if node.op == "call_module":
            return type(self.module.get_submodule(str(node.target))).__name__
        return str(getattr(node.target, "__name__", node.target))


def _advice(model: nn.Module) -> str:
    """What to do about a model that fails on square colour images."""
    first = next((layer for layer in model.modules() if isinstance(layer, nn.Conv2d)), None)
    if first is not None and first.in_channels != 3:
        return (
            f"its first convolution takes {first.in_channels} channels and images have 3; wrap it in a module that makes "
            "those of these, for instance by x.mean(1, keepdim=True)"
        )
    side = (getattr(model, "pretrained_cfg", None) or {}).get("input_size", (0,))[-1]
    return "pass image_size, the side of the images it was trained on" + (f" ({side})" if side else "")


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
