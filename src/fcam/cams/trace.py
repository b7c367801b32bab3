"""Watching a model's forward pass from outside, call by call, without touching the model.

Two watchers, both `TorchFunctionMode`s, which see every torch call that a forward makes, functional ones too:
`Recorder` writes down which call fed which, so that the last tensor *everything* passes through can be found;
`HeadWatch` swaps that tensor for a leaf while the forward runs, so that only what comes after it, the head,
is ever part of a graph. No hook stays, no parameter is touched, the backbone never stores anything for
backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from fcam.cams.activation import activation_between, is_activation, keeps_values
from fcam.cams.layout import channels_axis


@dataclass
class Call:
    """One torch call of a forward pass that returned a tensor; `number` counts them from 1.

    `parents` are the calls that fed it, `layer` the outermost module that returned its result, `spots` the
    pixels of its map, where it is one, `channels` the axis of its channels (`fcam.cams.layout.channels_axis`).
    """

    number: int
    function: str
    shape: tuple[int, ...]
    parents: set[int]
    layer: str = ""
    spots: float = 0
    channels: int = 0


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)


def _returned_tensors(result: Any) -> bool:
    return isinstance(result, Tensor) or (
        isinstance(result, (tuple, list)) and any(isinstance(item, Tensor) for item in result)
    )


def function_modes() -> int:
    """Return how many `TorchFunctionMode`s are entered in this thread."""
    return torch._C._len_torch_function_stack()


class Recorder(TorchFunctionMode):
    """Record the calls of one forward pass on `images`, and the layers whose output each call became."""

    def __init__(self, images: Tensor) -> None:
        super().__init__()
        self.calls = [Call(0, "images", tuple(images.shape), set())]
        # Weak keys: recording must not keep the whole forward alive, photos can be large.
        self._number: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._number[images] = 0
        self._entries: dict[str, list[int]] = {}

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        parents = {self._number[t] for t in tensors_in((args, kwargs)) if t in self._number}
        result = func(*args, **kwargs)
        changed = [args[0]] if func is Tensor.__setitem__ else tensors_in(result)
        if _returned_tensors(result):
            shape = tuple(result.shape) if isinstance(result, Tensor) else ()
            name = getattr(func, "__name__", "")
            fed = [(self.calls[number].shape, self.calls[number].channels) for number in parents]
            axis = channels_axis(name, args, shape, fed)
            self.calls.append(Call(len(self.calls), name, shape, parents, channels=axis))
        elif func is Tensor.__setitem__ and self.calls:
            self.calls[-1].parents |= parents
        for tensor in changed:
            self._number[tensor] = len(self.calls) - 1
        return result

    def name_layers(self, model: nn.Module) -> list[Any]:
        """Hook every layer of `model`, so that calls learn its name and `way_in` when it began.

        To be called before the recorder is entered; the caller removes the handles.
        """
        depth = function_modes() + 1

        def enter(name: str) -> Callable:
            def hook(_module: nn.Module, _args: Any) -> None:
                # A mode begun inside a `with` of the model's own would be ended by it.
                outside = function_modes() == depth
                self._entries.setdefault(name, []).append(len(self.calls) - 1 if outside else -1)

            return hook

        def note(name: str) -> Callable:
            def hook(_module: nn.Module, _args: Any, output: Any) -> None:
                if isinstance(output, Tensor) and output in self._number:
                    # Outer modules end later, so the shortest name that gives this very tensor wins.
                    self.calls[self._number[output]].layer = name

            return hook

        layers = [(name, module) for name, module in model.named_modules() if name]
        return [
            *(module.register_forward_pre_hook(enter(name)) for name, module in layers),
            *(module.register_forward_hook(note(name)) for name, module in layers),
        ]

    def way_in(self, call: Call) -> tuple[str, int]:
        """Return the last layer entered before `call` and how many calls came before it; ("", 0) where none will do.

        Only layers that ran once: a hook on another could not tell which of its runs is meant.
        """
        once = {name: found[0] for name, found in self._entries.items() if len(found) == 1}
        before = [(count, name) for name, count in once.items() if 0 < count < call.number]
        count, name = max(before, default=(0, ""), key=lambda entry: entry[0])
        return name, count

    def calls_of(self, tensors: Any) -> list[Call]:
        """Return the calls that made the tensors in a nested value, where they were recorded."""
        return [self.calls[self._number[t]] for t in tensors_in(tensors) if t in self._number]

    def bottlenecks(self, output: Tensor) -> list[Call]:
        """Return, in order, the calls that every path from the images to `output` goes through.

        Calls are numbered in topological order, and of the calls on any path, one is a bottleneck exactly
        when no edge jumps over its number.
        """
        last = self._number.get(output)
        if last is None:
            return []
        used, wanted = {last}, [last]
        while wanted:
            for parent in self.calls[wanted.pop()].parents - used:
                used.add(parent)
                wanted.append(parent)
        from_images = {0}
        for number in sorted(used):
            if self.calls[number].parents & from_images:
                from_images.add(number)
        on_path = sorted(used & from_images)
        furthest: dict[int, int] = {}
        for number in on_path:
            for parent in self.calls[number].parents & from_images:
                furthest[parent] = max(furthest.get(parent, 0), number)
        found, reach = [], 0
        for number in on_path:
            if reach <= number:
                found.append(self.calls[number])
            reach = max(reach, furthest.get(number, 0))
        return found


class HeadWatch(TorchFunctionMode):
    """Cut the graph at the wanted tensors of one forward pass and remember what the head did.

    `numbers` are the calls (as counted by `Recorder`) whose results are wanted; `take` may be called from a
    layer hook instead. The first becomes a leaf, those after it stay in the graph. `taken` maps each key to
    its tensor. A watch that is entered late is told how many calls it `skipped`, so that numbers mean the same;
    `count` is the number of the last call.
    """

    def __init__(self, numbers: tuple[int, ...] = (), grids: bool = True, skipped: int = 0) -> None:
        super().__init__()
        self.want_grids = grids
        self.numbers = numbers
        self.taken: dict[Any, Tensor] = {}
        self.functions: dict[int, str] = {}
        self.grids: dict[tuple[int, int], None] = {}
        self.linears: list[tuple[Tensor, Tensor | None]] = []
        self.last_linear_input: Tensor | None = None
        self.count = skipped
        self._leaf_key: Any = None
        self._swapped: dict[int, tuple[Tensor, Tensor]] = {}
        self._paused = False
        self._activated: tuple[Tensor, Tensor] | None = None

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._paused:
            return func(*args, **kwargs)
        if self.taken:
            args = tree_map_only(Tensor, self._replace, args)
            kwargs = {key: tree_map_only(Tensor, self._replace, value) for key, value in kwargs.items()}
            # Per call, because the model may have its own no_grad around the backbone.
            with torch.enable_grad():
                result = func(*args, **kwargs)
            self._note_linear(func, args, kwargs)
        else:
            result = func(*args, **kwargs)
        if isinstance(result, Tensor):
            self._note_activation(func, args, kwargs, result)
            self.count += 1
            if self.want_grids and result.dim() == 4:
                self.grids[result.shape[-2], result.shape[-1]] = None
            if self.count in self.numbers:
                self.functions[self.count] = getattr(func, "__name__", "")
                return self.take(self.count, result)
        elif _returned_tensors(result):
            self.count += 1
        return result

    def take(self, key: Any, tensor: Tensor) -> Tensor:
        """Keep `tensor` under `key`; return the copy, safe for in-place calls, the model goes on with."""
        self._paused = True
        try:
            with torch.enable_grad():
                if self._leaf_key in (None, key):
                    self._leaf_key = key
                    kept = tensor.detach().requires_grad_()
                else:
                    kept = tensor
                shown = kept.clone()
        finally:
            self._paused = False
        self.taken[key] = kept
        # Whoever still holds the original (an in-place call's argument, say) must meet the copy too.
        self._swapped[id(tensor)] = (tensor, shown)
        return shown

    def _replace(self, tensor: Tensor) -> Tensor:
        if id(tensor) in self._swapped:
            return self._swapped[id(tensor)][1]
        return tensor.clone() if tensor.is_inference() else tensor

    def _note_linear(self, func: Callable, args: tuple, kwargs: dict) -> None:
        if func is not F.linear and func is not F.conv2d:
            return
        weight = kwargs.get("weight", args[1] if len(args) > 1 else None)
        bias = kwargs.get("bias", args[2] if len(args) > 2 else None)
        if isinstance(weight, Tensor) and (weight.dim() == 2 or tuple(weight.shape[2:]) == (1, 1)):
            self.last_linear_input = kwargs.get("input", args[0] if args else None)
            self.linears.append((weight.detach().flatten(1), None if bias is None else bias.detach()))

    def _note_activation(self, func: Callable, args: tuple, kwargs: dict, result: Tensor) -> None:
        """Remember what the last softmax or sigmoid was made from, in the shape that its result has now."""
        name, source = getattr(func, "__name__", ""), kwargs.get("input", args[0] if args else None)
        if is_activation(name):
            self._activated = (result, source) if isinstance(source, Tensor) else None
        elif self._activated is not None and source is self._activated[0] and keeps_values(name):
            with torch.set_grad_enabled(bool(self.taken)):
                self._activated = (result, func(self._activated[1], *args[1:], **kwargs))

    def before_activation(self, scores: Tensor) -> Tensor:
        """Return the logits (B, K) where the forward ended in their softmax or sigmoid, which `scores` are; else `scores`."""
        if self._activated is None or self._activated[0] is not scores:
            return scores
        logits = self._activated[1]
        return scores if activation_between(logits.detach(), scores.detach()) is None else logits
