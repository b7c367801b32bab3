"""A classifier's forward pass as a graph: written down by torch.fx, run node by node, cut into parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, fx, nn

from fcam.cams.trace import Recorder
from fcam.errors import FcamError, cut

ROOT = "model"
"""The name under which the classifier is traced."""


class Whole(nn.Module):
    """The classifier under one name, so that torch.fx also follows its own forward, and with one output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Any:
        return _first_scores(self.model(images))


def _first_scores(output: Any) -> Any:
    """What `fcam.cams.forward.logits_of` takes for the scores, also of values that are traced."""
    while not isinstance(output, (Tensor, fx.Proxy)):
        if hasattr(output, "logits"):
            output = output.logits
        elif isinstance(output, dict) and output:
            output = output["logits"] if "logits" in output else next(iter(output.values()))
        elif isinstance(output, (tuple, list)) and output:
            output = output[0]
        else:
            break
    return output


class Tracer(fx.Tracer):
    """Symbolic tracing that remembers which node is the output of which layer, and where it failed."""

    def __init__(self, opaque: set[str]) -> None:
        super().__init__()
        self.opaque = opaque
        self.layers: dict[str, fx.Node] = {}
        self.depth: dict[fx.Node, int] = {}
        self.failed: str | None = None
        self._inside = [ROOT]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        # timm's layers are small and full of checks that a trace would write down one by one.
        small = type(m).__module__.startswith("timm.layers")
        return (
            small or module_qualified_name in self.opaque or super().is_leaf_module(m, module_qualified_name)
        )

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        self.depth[node] = self._inside[-1].count(".") + 1
        return node

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        path = self.path_of_module(m)
        self._inside.append(path)
        try:
            result = super().call_module(m, forward, args, kwargs)
        except Exception:
            self.failed = self.failed or path
            raise
        finally:
            self._inside.pop()
        if isinstance(result, fx.Proxy):
            if path != ROOT:
                self.layers[path.removeprefix(f"{ROOT}.")] = result.node
            self.depth[result.node] = min(self.depth[result.node], path.count("."))
        return result


def symbolic(whole: Whole, name: str) -> tuple[Tracer, fx.Graph]:
    """Trace; a layer in which that fails is kept whole, and the trace is tried again."""
    opaque: set[str] = set()
    while True:
        tracer = Tracer(opaque)
        try:
            graph = tracer.trace(whole)
            _follow_in_place(graph)
            return tracer, graph
        except Exception as error:
            if tracer.failed in (None, ROOT) or tracer.failed in opaque:
                raise FcamError(
                    f"the forward of {name} cannot be followed ({short(error)}): layers must be made in __init__, "
                    "and no step may depend on values of tensors; move that code into a layer of its own, or train a network "
                    "of fcam.list_models()"
                ) from error
            opaque.add(str(tracer.failed))


def _follow_in_place(graph: fx.Graph) -> None:
    """Let whatever comes after `x.mul_(y)` or `relu(x, inplace=True)` read its result: the graph sees no change of x."""
    order = {node: number for number, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        name = str(node.target)
        in_place = node.op == "call_method" and name.endswith("_") and not name.endswith("__")
        in_place |= node.op == "call_function" and node.kwargs.get("inplace") is True
        if in_place and node.args and isinstance(node.args[0], fx.Node):
            node.args[0].replace_all_uses_with(node, lambda user, after=order[node]: order[user] > after)


class Run(fx.Interpreter):
    """Run the graph node by node; note the recorded call, and the shape or integer, that each node gave."""

    def __init__(self, module: fx.GraphModule, recorder: Recorder) -> None:
        super().__init__(module)
        self.recorder = recorder
        self.number: dict[fx.Node, int] = {}
        self.value: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.value[n] = tuple(result.shape)
            for call in self.recorder.calls_of(result):
                self.number[n] = call.number
        elif isinstance(result, int) and not isinstance(result, bool):
            self.value[n] = result
        return result


def ancestors(outputs: Iterable[fx.Node], stop: Iterable[fx.Node]) -> set[fx.Node]:
    """All nodes that `outputs` are computed from, themselves included, back to `stop`."""
    found, pending = set(stop), list(outputs)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending.extend(node.all_input_nodes)
    return found


def part_of(
    root: nn.Module,
    graph: fx.Graph,
    inputs: dict[fx.Node, str],
    outputs: list[fx.Node],
    batch_sizes: Iterable[fx.Node] = (),
) -> fx.GraphModule:
    """The part of `graph` from `inputs` (or the images) to `outputs` as a module with the layers it uses."""
    after = set(inputs)
    for node in graph.nodes:
        if any(source in after for source in node.all_input_nodes):
            after.add(node)
    replaced = {node for node in batch_sizes if node not in after}
    needed = ancestors(outputs, {*inputs, *replaced})
    part = fx.Graph()
    env: dict[fx.Node, fx.Node] = {node: part.placeholder(name) for node, name in inputs.items()}
    for node in graph.nodes:
        if node in env or node not in needed or node.op == "output":
            continue
        if node in replaced:
            env[node] = part.call_method("size", (next(iter(env.values())), 0))
            continue
        if node.op == "placeholder" and inputs:
            raise FcamError(
                "the head also reads the image or an earlier map, not only the last one; name a later layer as the "
                "last of level=[paths]"
            )
        env[node] = part.node_copy(node, lambda n: env[n])
        if node.op == "call_method" and node.target == "view":
            env[node].target = "reshape"  # the same, and it also takes tensors in channels-last order
        if node.op in ("call_module", "get_attr"):
            env[node].target = str(node.target).removeprefix(f"{ROOT}.")
    part.output(env[outputs[0]] if len(outputs) == 1 else [env[node] for node in outputs])
    return fx.GraphModule(root, part)


def short(error: BaseException) -> str:
    """An error in a line, without what torch.fx adds but for the layer that a bare assertion failed in."""
    text, _, place = " ".join(str(error).split()).partition("While executing %")
    layer = re.search(r"target=([\w.]+)\]", place)
    where = (
        f"{type(error).__name__} in {layer[1].removeprefix(f'{ROOT}.')}" if layer else type(error).__name__
    )
    return cut(text.strip(), 160) or where
