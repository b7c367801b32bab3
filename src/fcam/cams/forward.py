"""One forward pass of a model with the graph cut at its map, so that gradients go through the head only."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fcam.cams.layout import Layout, find_layout
from fcam.cams.trace import HeadWatch, function_modes, tensors_in
from fcam.errors import FcamError, cut


@dataclass(frozen=True)
class Target:
    """Where a map is read: `call` counts the model's torch calls, `layer` made it, `shape` is (B, ...), `channels` the
    axis of its channels, 0 where that is not known.

    `way_in` is a layer entered shortly before, and how many calls came before it: watching may begin there.
    """

    call: int
    function: str
    layer: str
    shape: tuple[int, ...]
    channels: int = 0
    way_in: tuple[str, int] = ("", 0)

    def __str__(self) -> str:
        where = f"'{self.layer}'" if self.layer else f"torch call {self.call} ({self.function})"
        return f"{where} {self.shape}"


@dataclass
class Forward:
    """A forward pass cut at its targets: features (B, C, h, w) of each, logits (B, K), and how to go back.

    `calls` is how many torch calls it made, where they were counted.
    """

    logits: Tensor
    activations: list[Tensor]
    kept: list[Tensor]
    layouts: list[Layout]
    weight: Tensor | None
    names: list[str]
    class_maps: Any = None
    calls: int = 0

    def gradients(self, class_idx: Tensor) -> list[Tensor]:
        """Return G = hw dY/dA of each target, (B, n, C, h, w) float32, for class_idx (B, n)."""
        if not self.logits.requires_grad:
            raise FcamError(
                f"the score does not depend on {self.names[0]}: the model detaches its features or runs "
                "its head under inference_mode; pass an earlier target_layer"
            )
        spots = self.activations[-1].shape[-2] * self.activations[-1].shape[-1]
        rows: list[list[Tensor]] = [[] for _ in self.kept]
        for column in range(class_idx.shape[1]):
            # The factor hw goes in before the backward, where it keeps half precision away from underflow.
            with torch.enable_grad():
                score = self.logits.gather(1, class_idx[:, column : column + 1]).float().sum() * spots
            more = column + 1 < class_idx.shape[1]
            found = torch.autograd.grad(score, self.kept, retain_graph=more, allow_unused=True)
            for row, gradient, layout, name in zip(rows, found, self.layouts, self.names, strict=True):
                if gradient is None:
                    raise FcamError(
                        f"the score does not depend on {name}; name a target_layer that the head reads"
                    )
                row.append(layout.to_map(gradient.float()))
        own = [a.shape[-2] * a.shape[-1] for a in self.activations]
        return [torch.stack(row, 1) * (hw / spots) for row, hw in zip(rows, own, strict=True)]


def watch_calls(model: nn.Module, images: Tensor, targets: list[Target]) -> tuple[HeadWatch, Tensor]:
    """Run `model` once with the graph cut at known calls; return what was seen and the logits (B, K)."""
    grids = len(targets[-1].shape) == 3
    # The grid that tokens came from may be made anywhere before them; a map needs nothing that was before.
    layer, skipped = ("", 0) if grids else targets[0].way_in
    watch = HeadWatch(tuple(target.call for target in targets), grids, skipped)
    with watch_from(watch, model, layer):
        scores = logits_of(answer_of(model, images), len(images))
    return watch, watch.before_activation(scores)


@contextmanager
def watch_from(watch: HeadWatch, model: nn.Module, layer: str) -> Iterator[None]:
    """Enter `watch` when the model's forward comes to `layer` ("": at once) and leave it at the end.

    Torch takes as long to pass a call to a watcher as to run a small layer, and most calls come before the map.
    """
    if not layer:
        with watch:
            yield
        return
    depth, thread = function_modes(), threading.get_ident()
    with ExitStack() as stack:

        def begin(_module: nn.Module, _args: Any) -> None:
            # Not for another thread's forward of the same model, nor inside a `with` of the model's own.
            if threading.get_ident() == thread and function_modes() == depth:
                stack.enter_context(watch)

        stack.callback(model.get_submodule(layer).register_forward_pre_hook(begin).remove)
        yield


def run_at_calls(model: nn.Module, images: Tensor, targets: list[Target]) -> Forward | None:
    """Cut at known calls; None when the calls of this forward are not the ones that were recorded."""
    watch, logits = watch_calls(model, images, targets)
    kept = []
    for target in targets:
        tensor = watch.taken.get(target.call)
        same = tensor is not None and watch.functions[target.call] == target.function
        if tensor is None or not same or tensor.dim() != len(target.shape):
            return None
        kept.append(tensor)
    size = (int(images.shape[-2]), int(images.shape[-1]))
    layouts = [
        find_layout(tuple(tensor.shape), size, watch.grids, target.channels)
        for tensor, target in zip(kept, targets, strict=True)
    ]
    if any(layout is None for layout in layouts):
        return None
    names = [str(target) for target in targets]
    forward = forward_at(watch, logits, kept, [x for x in layouts if x], names)
    forward.calls = watch.count
    return forward


def forward_at(
    watch: HeadWatch, logits: Tensor, kept: list[Tensor], layouts: list[Layout], names: list[str]
) -> Forward:
    activations = [layout.to_map(tensor.detach()) for tensor, layout in zip(kept, layouts, strict=True)]
    weight = linear_weight(activations[-1], logits.detach(), watch.linears)
    return Forward(logits, activations, kept, layouts, weight, names)


def linear_weight(
    activation: Tensor, logits: Tensor, linears: list[tuple[Tensor, Tensor | None]]
) -> Tensor | None:
    """Return the (K, C) weight when the logits are this linear function of the mean features, else None.

    What the head computed is compared with what global average pooling and the layer would give: no list of
    known head classes to go stale, and a head that only looks linear is not taken for one.
    """
    classes, channels = logits.shape[1], activation.shape[1]
    found = [(w, b) for w, b in linears if tuple(w.shape) == (classes, channels)]
    if classes == channels and not found:
        found = [(torch.eye(classes, device=logits.device), None)]
    if not found:
        return None
    weight, bias = found[-1]
    some = slice(None, None, max(1, classes // 64))  # enough to tell; all of a thousand would be felt
    low = min(torch.finfo(logits.dtype).bits, torch.finfo(activation.dtype).bits) <= 16
    with torch.autocast(logits.device.type, enabled=False):
        expected = activation.float().mean((2, 3)) @ weight[some].float().T
        expected = expected if bias is None else expected + bias[some].float()
        error = (expected - logits[:, some].float()).abs().amax()
        return weight if bool(error <= (3e-2 if low else 1e-4) * logits.abs().amax()) else None


def unwrap(model: nn.Module) -> nn.Module:
    """Return the plain module inside torch.compile, DistributedDataParallel or DataParallel wrappers.

    Raises `FcamError` for what is no module, or one that cannot be watched.
    """
    if not isinstance(model, nn.Module):
        raise FcamError(
            f"the model must be a torch module, got {type(model).__name__}; build the network and load its weights first"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise FcamError("a TorchScript model cannot be looked into; pass the module it was made from")
    inner = getattr(model, "_orig_mod", None)
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        inner = model.module
    return unwrap(inner) if isinstance(inner, nn.Module) else model


def refuse_quantised(model: nn.Module) -> None:
    """Raise `FcamError` for a model that has no gradients; for its first call, since all its layers are looked at."""
    layer = next((layer for layer in model.modules() if _is_quantised(layer)), None)
    if layer is not None:
        raise FcamError(
            f"{type(model).__name__} is quantised ({type(layer).__module__}.{type(layer).__name__}) and has no gradients; "
            "pass the float model it was made from"
        )


def _is_quantised(layer: nn.Module) -> bool:
    home, kind = type(layer).__module__, type(layer).__name__
    # FloatFunctional lives beside the quantised layers and is a plain addition until it is converted.
    return (
        home.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")) and "Float" not in kind
    )


def answer_of(model: nn.Module, images: Tensor) -> Any:
    """Return what somebody's `model` returns for `images`; raises `FcamError` with its reason where it fails."""
    try:
        with _as_written():
            return model(images)
    except (FcamError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:  # it is somebody's own code
        reason = cut(" ".join(str(error).split()) or type(error).__name__)
        weights = next(
            (f"{p.dtype} on {p.device}" for p in model.parameters() if p.is_floating_point()), "none"
        )
        raise FcamError(
            f"{type(model).__name__} fails on images of shape {tuple(images.shape)}, {images.dtype} on {images.device} "
            f"({reason}); pass images as its own forward takes them (its weights are {weights})"
        ) from error


def logits_of(output: Any, batch: int = 0) -> Tensor:
    """Return the scores (B, K) in what a forward returned: a tensor, `.logits`, ["logits"], or the first.

    For a `batch` of one image, scores (K,) are taken too: models that `squeeze()` lose that dimension.
    """
    if hasattr(output, "logits"):
        output = output.logits
    elif isinstance(output, dict) and "logits" in output:
        output = output["logits"]
    elif not isinstance(output, Tensor):
        output = next(tensors_in(output), None)
    if batch == 1 and isinstance(output, Tensor) and output.dim() == 1 and len(output) > 1:
        output = output[None]
    if not isinstance(output, Tensor) or output.dim() != 2:
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        flat = isinstance(output, Tensor) and output.dim() == 1
        advice = (
            "let a classifier with one output return scores.unsqueeze(1)" if flat else "pass a classifier"
        )
        raise FcamError(f"the model must return scores of shape (B, classes), got {got}; {advice}")
    return output


class _Meanwhile:
    """Gives layers another value of an attribute for a while, and back the one they had, whatever happens.

    Threads may do so at once with one model: the last to leave gives it back.
    """

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value
        self._lock = threading.Lock()
        self._held: dict[int, tuple[int, Any]] = {}  # by a layer's id, how many hold it and what it had

    @contextmanager
    def __call__(self, model: nn.Module) -> Iterator[None]:
        with self._lock:
            layers = [layer for layer in model.modules() if self._concerns(layer)]
            for layer in layers:
                count, own = self._held.get(id(layer), (0, getattr(layer, self.name)))
                self._held[id(layer)] = (count + 1, own)
                setattr(layer, self.name, self.value)
        try:
            yield
        finally:
            with self._lock:
                for layer in layers:
                    count, own = self._held.pop(id(layer))
                    if count > 1:
                        self._held[id(layer)] = (count - 1, own)
                    else:
                        setattr(layer, self.name, own)

    def _concerns(self, layer: nn.Module) -> bool:
        return id(layer) in self._held or getattr(layer, self.name, self.value) is not self.value


evaluating = _Meanwhile("training", False)
"""Put a model in eval mode for a while and give every layer back the mode it had."""


class _AsWritten:
    """Lets whatever was compiled, in place, as a layer or as a function, run as it is written for a while: what is compiled
    cannot be watched. Torch has one such setting for all threads, which the last to leave gives back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._stance: Any = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        # Without the compiler nothing can be compiled, and its import is slow.
        if "torch._dynamo" not in sys.modules:
            yield
            return
        with self._lock:
            if not self._count:
                self._stance = torch.compiler.set_stance("force_eager")
            self._count += 1
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1
                if not self._count:
                    self._stance.__exit__(None, None, None)


_as_written = _AsWritten()
