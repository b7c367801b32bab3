"""Getting ImageNet weights, and putting them into a module without ever skipping a tensor in silence."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fcam.errors import FcamError, cut

State = Mapping[str, Tensor]


def fetch(name: str, download: Callable[[], Any]) -> Any:
    """Return `download()`; raise `FcamError` that says how to go on without the weights if it fails."""
    try:
        return download()
    except FcamError:
        raise
    except Exception as error:  # urllib, requests, httpx and the hub each fail in their own way
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise FcamError(
            f"the ImageNet weights of {name} could not be had ({reason}); connect to the network, or pass "
            "pretrained='weights file' for a file you have, or pretrained=False for random weights"
        ) from error


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read a state dict from a `.safetensors` or `torch.save` file; nothing in it is executed.

    Raises `FcamError` when the file is missing, unreadable or not a state dict.
    """
    path = Path(path)
    if not path.is_file():
        raise FcamError(f"the weights file {path} does not exist; check the path")
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
    if isinstance(state, Mapping) and isinstance(state.get("state_dict"), Mapping):
        state = state["state_dict"]
    if not isinstance(state, Mapping) or not all(
        isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items()
    ):
        raise FcamError(f"the weights file {path} is not a state dict (names to tensors); save one first")
    return dict(state)


def load_checked(module: nn.Module, state: State, source: str, allow_missing: tuple[str, ...] = ()) -> None:
    """Load `state` into `module`; every key and shape must fit, but keys under `allow_missing` may lack.

    Raises `FcamError` naming the first keys that are missing, unexpected or of another shape.
    """
    own = module.state_dict()
    problems = [
        f"{key} is missing"
        for key in own
        if key not in state and not key.startswith(allow_missing or ("\0",))
    ]
    problems += [f"{key} is unexpected" for key in state if key not in own]
    problems += [
        f"{key} has shape {tuple(value.shape)} instead of {tuple(own[key].shape)}"
        for key, value in state.items()
        if key in own and value.shape != own[key].shape
    ]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise FcamError(
            f"{source} does not fit {type(module).__name__}: {'; '.join(problems[:3])}{more}; "
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
