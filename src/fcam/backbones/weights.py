"""Getting ImageNet weights, and putting them into a module without ever skipping a tensor in silence."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fcam.errors import FcamError, cut, shown

State = Mapping[str, Tensor]
WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Under these names trainers keep a state dict beside other things; the first that is there is taken."""


def fetch(name: str, download: Callable[[], Any]) -> Any:
    """Return `download()`; raise `FcamError` that says how to go on without the weights if it fails."""
    try:
        return download()
    except FcamError:
        raise
    except Exception as error:  # urllib, requests, httpx and the hub each fail in their own way
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise FcamError(
            f"the ImageNet weights of {name} could not be had ({reason}); connect to the network, give a file "
            "you have (--weights with --classifier, in Python pretrained='FILE'), or take random weights "
            "(--model.no-pretrained, in Python pretrained=False)"
        ) from error


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read a state dict from a `.safetensors` or `torch.save` file; nothing in it is executed.

    A trainer's checkpoint holds it under one of `WRAPPERS`, or as the only state dict among other things. Raises
    `FcamError` when the file is missing, unreadable or without a state dict.
    """
    path = Path(path)
    if not path.is_file():
        what = "is a folder; name the file in it" if path.is_dir() else "does not exist; check the path"
        raise FcamError(f"the weights file {path} {what}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch remarks on old pickle protocols before it refuses them
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, SafetensorError, AttributeError, KeyError) as error:
        raise FcamError(
            f"the weights file {path} cannot be read ({cut(error)}); download it again"
        ) from error
    except Exception as error:  # pickle.UnpicklingError: other objects than tensors, refused
        raise FcamError(
            f"the weights file {path} is damaged or holds more than tensors, and was not loaded; "
            "save its state dict as .safetensors and pass that"
        ) from error
    if _is_state(state):
        return dict(state)
    inside = {k: v for k, v in state.items() if _is_state(v)} if isinstance(state, Mapping) else {}
    name = next((name for name in (*WRAPPERS, *inside) if name in inside), None)
    if name is None or (len(inside) > 1 and name not in WRAPPERS):
        holds = (
            f"a {type(state).__name__} of {shown(list(state))}"
            if isinstance(state, Mapping)
            else f"a {type(state).__name__}"
        )
        raise FcamError(
            f"the weights file {path} holds {holds}, and no state dict (names to tensors) under one of {', '.join(WRAPPERS)}; "
            "save the network's state dict alone"
        )
    return dict(inside[name])


def _is_state(value: Any) -> bool:
    """Whether this is a state dict: names to tensors."""
    return (
        isinstance(value, Mapping)
        and len(value) > 0
        and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items())
    )


def without_prefix(state: dict[str, Tensor], own: Collection[str]) -> dict[str, Tensor]:
    """`state` without what a trainer put before every key, such as "model." or "module.", so far as the rest are `own` keys."""
    first = next(iter(state))
    prefixes = ["", *(first[: place + 1] for place, letter in enumerate(first) if letter == ".")]
    common = [prefix for prefix in prefixes if all(key.startswith(prefix) for key in state)]
    prefix = max(common, key=lambda prefix: sum(prefix + name in state for name in own))
    return {key.removeprefix(prefix): value for key, value in state.items()}


def load_checked(module: nn.Module, state: State, source: str, allow_missing: tuple[str, ...] = ()) -> None:
    """Load `state` into `module`; every key and shape must fit, but keys under `allow_missing` may lack.

    Raises `FcamError` with the number of keys that fit, and the first that is missing, unexpected or of another shape.
    """
    own = module.state_dict()
    missing = [
        f"{k} is missing" for k in own if k not in state and not k.startswith(allow_missing or ("\0",))
    ]
    unexpected = [f"{k} is unexpected" for k in state if k not in own]
    shapes = [
        f"{key} has shape {tuple(value.shape)} instead of {tuple(own[key].shape)}"
        for key, value in state.items()
        if key in own and value.shape != own[key].shape
    ]
    if problems := [kind for kind in (missing, unexpected, shapes) if kind]:
        fit = len(state) - len(unexpected) - len(shapes)
        examples = "; ".join(
            kind[0] + (f" (and {len(kind) - 1} more)" if len(kind) > 1 else "") for kind in problems
        )
        raise FcamError(
            f"{source} does not fit {type(module).__name__}: {fit} of its {len(own)} keys match; {examples}; "
            "check that both name the same architecture"
        )
    module.load_state_dict(dict(state), strict=False)


def match_by_order(module: nn.Module, state: State, source: str) -> dict[str, Tensor]:
    """Rename `state`'s tensors to `module`'s keys by position, for ports that only changed the names.

    The number of tensors, each shape and each last name ("weight", "running_mean", ...) must agree.
    Raises `FcamError` at the first pair that differs.
    """
    own = module.state_dict()
    if len(own) != len(state):
        raise FcamError(f"{source} has {len(state)} tensors instead of {len(own)}; install another version")
    for (key, target), (name, value) in zip(own.items(), state.items(), strict=True):
        if target.shape != value.shape or key.rsplit(".", 1)[-1] != name.rsplit(".", 1)[-1]:
            raise FcamError(
                f"{source}: {name} {tuple(value.shape)} does not fit {key} {tuple(target.shape)}; "
                "install another version"
            )
    return dict(zip(own, state.values(), strict=True))
