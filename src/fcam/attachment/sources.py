"""Classifiers by name: `torchvision:resnet18`, `timm:NAME`, `module.path:factory`."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path, PureWindowsPath
from typing import Any

import timm
import torch
import torchvision
from accelerate import init_empty_weights
from torch import Tensor, nn

from fcam.backbones import lite0
from fcam.backbones.timm_backbone import check_name
from fcam.backbones.weights import fetch, load_checked, read_weights, without_prefix
from fcam.cams.forward import answer_of, evaluating, logits_of
from fcam.errors import FcamError, cut

FORMS = "torchvision:NAME, timm:NAME or module.path:factory"
SIDES = (224, 32, 64, 96, 128, 160, 192, 256, 299, 384)
"""Sides of images that networks are made for, the usual first: networks with flattened maps take one alone."""
# These draw truncated normal numbers for many seconds unless they are told not to; their own weights, and what was tuned
# from these, want images normalised once more, which no weight tells.
_PARTICULAR = ("googlenet", "inception_v3")


class FactoryError(FcamError):
    """Somebody's own code gave no classifier; no file of a saved model is at fault."""


def build(
    source: str,
    num_classes: int | None = None,
    weights: str | Path | None = None,
    pretrained: bool = False,
) -> nn.Module:
    """Build a classifier by name, in eval mode.

    Args:
        source: "torchvision:resnet18", "timm:NAME", or "module.path:factory", a function or class that returns the
            module; it is imported (the current folder counts) and called, with `num_classes` where it takes that.
        num_classes: outputs; None takes as many as `weights` have, or the source's own number.
        weights: a `.safetensors` file, or a `torch.save`d state dict, which is read without running code in it; in a
            trainer's checkpoint it may lie beside other things, and its keys behind a common prefix.
        pretrained: the library's own ImageNet weights, where no file is given.

    Raises `FcamError` for unknown names, factories that fail, and weights that do not fit.
    """
    make = maker(source)
    state = read_weights(weights) if weights else None
    if state is not None and num_classes is None:
        num_classes = _rows(make, state)
    model = make(num_classes, pretrained and state is None)
    if state is not None:
        load_checked(model, without_prefix(state, model.state_dict()), str(weights))
    return model.eval()


def is_importable(source: str) -> bool:
    """Whether the name stands for somebody's own code, and not for a library's model."""
    return not source.startswith(("torchvision:", "timm:"))


def maker(source: str) -> Callable[[int | None, bool], nn.Module]:
    """A function of (num_classes, pretrained) that builds the classifier; raises `FcamError` where the name is wrong."""
    kind, _, name = source.partition(":")
    if not kind or not name:
        raise FcamError(f"no classifier is named {source!r}; use {FORMS}")
    if kind == "torchvision":
        return _torchvision(name)
    return _timm(name) if kind == "timm" else _factory(kind, name)


def _torchvision(name: str) -> Callable[[int | None, bool], nn.Module]:
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3) or ["resnet18"]
        raise FcamError(f"torchvision has no classifier {name!r}; near are {', '.join(near)}")

    def make(num_classes: int | None, pretrained: bool) -> nn.Module:
        options: dict[str, Any] = (
            {"init_weights": False, "transform_input": True} if name in _PARTICULAR else {}
        )
        options |= {} if num_classes is None else {"num_classes": num_classes}
        if not pretrained:
            return torchvision.models.get_model(name, weights=None, **options)
        model = fetch(f"torchvision:{name}", lambda: torchvision.models.get_model(name, weights="DEFAULT"))
        return model if num_classes is None else with_new_layer(model, num_classes)

    return make


def _timm(name: str) -> Callable[[int | None, bool], nn.Module]:
    check_name(name)

    def make(num_classes: int | None, pretrained: bool) -> nn.Module:
        options: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
        if pretrained and name == lite0.NAME:
            model = timm.create_model(name)
            lite0.load(model)
            return model if num_classes is None else with_new_layer(model, num_classes)
        if pretrained:
            return fetch(f"timm:{name}", lambda: timm.create_model(name, pretrained=True, **options))
        return timm.create_model(name, pretrained=False, **options)

    return make


def _factory(module: str, name: str) -> Callable[[int | None, bool], nn.Module]:
    factory = _imported(module, name)

    def make(num_classes: int | None, pretrained: bool) -> nn.Module:
        options = {"num_classes": num_classes} if num_classes is not None and _takes_classes(factory) else {}
        try:
            model = factory(**options)
        except Exception as error:  # it is somebody's own code
            raise FactoryError(
                f"{module}:{name} failed ({type(error).__name__}: {cut(error)}); "
                "it must return the classifier and may take num_classes"
            ) from error
        if not isinstance(model, nn.Module):
            raise FactoryError(f"{module}:{name} returned a {type(model).__name__}, not a torch module")
        fits = num_classes is None or bool(options) or _last_rows(model) == num_classes
        return model if fits else with_new_layer(model, int(num_classes or 0))

    return make


def _imported(module: str, name: str) -> Any:
    """What somebody's own code calls `name`; raises `FcamError` where a path is given, and for whatever the import raises."""
    if module.startswith(".") or module.endswith(".py") or not {"/", "\\"}.isdisjoint(module):
        bare = PureWindowsPath(module).name.removesuffix(".py").strip(".") or "module.path"
        raise FcamError(
            f"{module}:{name} is a path where the name of a module belongs; write {bare}:{name} and run the command in the "
            f"folder that holds {bare}"
        )
    # Where the user's own code lies; `python -m` puts it there, a script does not.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # whatever somebody's own code does, a script may end itself
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise FcamError(
                f"{module}:{name} cannot be imported ({error}); run the command in the folder of "
                f"{module.split('.')[0]}.py, or install the package"
            ) from error
        raise FcamError(
            f"{module}:{name} cannot be imported ({type(error).__name__}: {cut(error)}); correct the module or the name, or "
            "install what it needs"
        ) from error


def _takes_classes(factory: Any) -> bool:
    try:
        return "num_classes" in inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return False


def _rows(make: Callable[[int | None, bool], nn.Module], state: dict[str, Tensor]) -> int | None:
    """Number of classes in `state`: the rows of the weight that comes last in the model's own order."""
    own = without_memory(lambda: make(None, False))
    if own is None:
        return None
    last, state = _last_weight(own), without_prefix(state, own.state_dict())
    rows = state[last].shape[0] if last in state else None
    return None if rows == _last_rows(own) else rows


def without_memory(make: Callable[[], nn.Module]) -> nn.Module | None:
    """Build a network whose weights have shapes only; None where it fails."""
    try:
        with torch.device("meta"):
            return make()
    except Exception:  # it reads tensors while it is built, as torchvision's RegNet does
        pass
    try:
        with init_empty_weights():
            return make()
    except Exception:
        return None


def _last_weight(model: nn.Module) -> str | None:
    return next(
        (k for k, v in reversed(model.state_dict().items()) if k.endswith("weight") and v.dim() > 1), None
    )


def _last_rows(model: nn.Module) -> int | None:
    last = _last_weight(model)
    return None if last is None else model.state_dict()[last].shape[0]


def with_new_layer(model: nn.Module, num_classes: int) -> nn.Module:
    """`model`, in which a fresh layer of `num_classes` outputs makes the scores; see `put_new_layer`."""
    put_new_layer(model, num_classes)
    return model


def put_new_layer(model: nn.Module, num_classes: int) -> str:
    """Replace the linear layer (or 1x1 convolution) that makes the scores of `model` by a fresh one of `num_classes` outputs.

    Returns its path; raises `FcamError` when there is none.
    """
    layers = {
        path: layer
        for path, layer in model.named_modules()
        if isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1))
    }
    if not layers:
        raise FcamError(
            f"{type(model).__name__} has no linear layer that could be replaced; build it for {num_classes} classes"
        )
    seen = (_layer_of_scores(model, layers, side) for side in SIDES)
    path = next(filter(None, seen), list(layers)[-1])
    layer = layers[path]
    if isinstance(layer, nn.Linear):
        new: nn.Module = nn.Linear(layer.in_features, num_classes, layer.bias is not None)
    else:
        new = nn.Conv2d(layer.in_channels, num_classes, 1, bias=layer.bias is not None)
    model.set_submodule(path, new.to(layer.weight.device, layer.weight.dtype))
    return path


def _layer_of_scores(model: nn.Module, layers: dict[str, nn.Linear | nn.Conv2d], side: int) -> str | None:
    """Which of `layers` gives the scores, or else ran last with as many outputs; None where the network cannot be run
    on images of that side.
    """
    ran: list[tuple[str, Tensor]] = []

    def note(path: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda layer, inputs, out: ran.append((path, out))

    hooks = [layer.register_forward_hook(note(path)) for path, layer in layers.items()]
    try:
        like = next(iter(layers.values())).weight
        with evaluating(model), torch.no_grad():
            image = torch.zeros(2, 3, side, side, device=like.device, dtype=like.dtype)
            scores = logits_of(answer_of(model, image))
        alike = [(path, out) for path, out in ran if out.shape[1] == scores.shape[1]]
        same = [
            path for path, out in alike if out is scores or (not like.is_meta and torch.equal(out, scores))
        ]
        return (same or [path for path, _ in alike] or [None])[-1]
    except Exception:  # somebody's own code, or weights that have shapes only
        return None
    finally:
        for hook in hooks:
            hook.remove()
