"""A classifier's graph, and what one run over it showed: which node gives which map, under which name."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import torch
from torch import fx, nn

from fcam.attachment.graph import Run, Whole, short, symbolic
from fcam.cams.activation import is_activation, keeps_values
from fcam.cams.forward import logits_of
from fcam.cams.trace import Recorder
from fcam.errors import FcamError

PROBE_BATCH = 2
_CALLED = "()"
"""Ends the name of a call that is no layer's output: `relu()` is a function, `relu` a layer."""


class Traced:
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
        self.nodes = {node.name: node for node in self.graph.nodes}
        self.module = fx.GraphModule(whole, self.graph)
        run, output = self._run(PROBE_BATCH, model)
        self.recorder, self.output = run.recorder, logits_of(output)
        self.number, self.value = run.number, run.value
        self.shape = {node: value for node, value in run.value.items() if isinstance(value, tuple)}
        self.logits: fx.Node = next(n for n in self.graph.nodes if n.op == "output").args[0]  # type: ignore[assignment]

    def _run(self, count: int, model: nn.Module) -> tuple[Run, Any]:
        """Send `count` images through the graph; returns what was seen and what came out."""
        reference = next(model.parameters(), torch.zeros(()))
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(count, 3, *self.size, generator=generator).to(reference.device)
        run = Run(self.module, Recorder(images))
        try:
            with torch.no_grad(), run.recorder:
                return run, run.run(images)
        except Exception as error:
            raise FcamError(
                f"{self.name} does not take images of {self.size[0]}x{self.size[1]} ({short(error)}); {_advice(model)}"
            ) from error

    def stride(self, node: fx.Node) -> int:
        return 2 ** round(math.log2(self.size[1] / self.shape[node][-1]))

    def path_of(self, node: fx.Node) -> str:
        """The outermost layer whose output this is, or else the node's own name and `()`."""
        layers = (path for path in self.layers if self.node_at(path) is node)
        return min(layers, key=len, default=f"{node.name}{_CALLED}")

    def node_at(self, path: str) -> fx.Node | None:
        """The node that `path_of` gives this name, or None."""
        call = self.nodes.get(path.removesuffix(_CALLED))
        if path.endswith(_CALLED) and call is not None:
            return call
        return self.layers.get(path) or call  # early models name calls as they do layers

    def describe(self, nodes: Iterable[fx.Node]) -> str:
        return ", ".join(f"{self.path_of(n)} {tuple(self.shape[n][1:])}" for n in nodes) or "none"

    @cached_property
    def batch_sizes(self) -> set[fx.Node]:
        """Nodes that hold the number of images, which the head may read off any earlier tensor."""

        def holding(values: dict[fx.Node, Any], count: int) -> set[fx.Node]:
            return {node for node, value in values.items() if value == count and isinstance(value, int)}

        found = holding(self.value, PROBE_BATCH)
        if found:  # the side of a small map may be as many, but not when there are more images
            more, _ = self._run(PROBE_BATCH + 1, self.module)
            found &= holding(more.value, PROBE_BATCH + 1)
        return found

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
