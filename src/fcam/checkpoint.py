"""Models on disk: a folder with `config.json` and `model.safetensors`, nothing pickled."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from fcam import shipped
from fcam.errors import FcamError, cut, shown
from fcam.files import write_bytes, write_json

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
FORMAT = 1
CLASSIFIER = "classifier"
"""Folder in which a run keeps the model of its stage 1 until its own is whole."""
Part = Literal["classifier", "decoder"]
"""What the names of a model's weights begin with."""


def write(folder: str | Path, config: dict[str, Any], state: dict[str, Tensor]) -> None:
    """Write `config` (JSON values) and `state` into `folder`, each file whole or not at all."""
    folder = Path(folder)
    try:
        text = json.dumps({"format": FORMAT, **config}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise FcamError(
            f"the model's metadata cannot be stored as JSON ({error}); use plain numbers and strings"
        ) from error
    tensors: dict[str, Tensor] = {}
    places: set[int] = set()
    for key, value in state.items():
        tensor = value.detach().cpu().contiguous()
        shared = (
            tensor.untyped_storage().data_ptr() in places
        )  # the file format refuses one memory under two names
        tensors[key] = tensor.clone() if shared else tensor
        places.add(tensor.untyped_storage().data_ptr())
    write_bytes(folder / WEIGHTS, save_tensors(tensors, metadata={"format": "pt"}))
    write_json(folder / CONFIG, json.loads(text))


def read(folder: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read what `write` wrote; nothing is downloaded and nothing is executed.

    Raises `FcamError` when a file is missing, damaged or of a newer format.
    """
    folder = Path(folder)
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            if (folder / CLASSIFIER / CONFIG).is_file():
                raise FcamError(
                    f"{folder} is a run that is not finished and has no model yet; its classifier, as stage 1 left it, is in "
                    f"{folder / CLASSIFIER}"
                )
            raise FcamError(
                f"{folder} is not a saved model: {name} is missing; give the folder save_pretrained wrote"
            )
    config = _read_config(folder)
    try:
        state = load_tensors((folder / WEIGHTS).read_bytes())
    except (OSError, SafetensorError, ValueError) as error:
        raise FcamError(f"{folder / WEIGHTS} is damaged ({cut(error)}); copy or save it again") from error
    return config, state


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FcamError(f"{folder / CONFIG} cannot be read ({cut(error)}); save the model again") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        found = config.get("format") if isinstance(config, dict) else type(config).__name__
        raise FcamError(
            f"{folder / CONFIG} has format {shown(found)}, this version reads {FORMAT}; "
            "install the version that wrote it"
        )
    return config


def _dict(value: Any) -> dict[str, Any]:
    """A part of a configuration, which anybody may have edited."""
    return value if isinstance(value, dict) else {}


def remember_thresholds(folder: str | Path, thresholds: Mapping[str, Any]) -> None:
    """Add thresholds by kind of map to the metadata of a saved model, leaving its weights alone.

    Raises `FcamError` as `read` does for a configuration that is missing or damaged.
    """
    config = _read_config(Path(folder))
    metadata = config["metadata"] = {**_dict(config.get("metadata"))}
    metadata["thresholds"] = {**_dict(metadata.get("thresholds")), **thresholds}
    write_json(Path(folder) / CONFIG, config)


def remembered_thresholds(folder: Path, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the thresholds that the model saved in `folder` remembers; none if its weights are not those of `state`.

    `state` may have more weights than are stored, such as a library's classifier.
    """
    try:
        config, stored = read(folder)
    except FcamError:  # none is there, or a damaged one that is about to be replaced
        return {}
    if weights_digest(stored) != weights_digest({name: state[name] for name in stored if name in state}):
        return {}
    return _dict(_dict(config.get("metadata")).get("thresholds"))


def part_digest(source: str | Path, part: Part) -> str:
    """SHA-256 of the weights of one part of the model of `source` (see `resolve`), wherever it lies and whatever the other;
    where the classifier is a library's, of all that is stored.

    Raises `FcamError` as `read` does.
    """
    _, state = read(resolve(source))
    own = {name: value for name, value in state.items() if name.startswith(f"{part}.")}
    return weights_digest(own or state)


def decoder_weights(source: str | Path) -> dict[str, Tensor]:
    """Weights of the decoder in the model of `source` (see `resolve`), by their names in it, whether or not the classifier is
    stored beside them; raises `FcamError` as `read` does, and where the decoder was never trained.
    """
    config, state = read(resolve(source))
    if _dict(config.get("metadata")).get("decoder_trained") is False:
        raise FcamError(f"the decoder of {source} was never trained; name a run whose stage 2 has run")
    prefix = "decoder."
    named = {name.removeprefix(prefix): v for name, v in state.items() if name.startswith(prefix)}
    return named or state


def weights_digest(state: Mapping[str, Any]) -> str:
    """SHA-256 of the tensors of a state dict with their names, whatever their order and device."""
    digest = hashlib.sha256()
    for name in sorted(key for key, value in state.items() if isinstance(value, Tensor)):
        tensor = state[name].detach().cpu()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def resolve(source: str | Path, download: Callable[[str], str] | None = None) -> Path:
    """The local folder of `source`: a model folder, a run folder with `model/`, the name of a model that comes with the
    package, or a Hugging Face repo id.

    Only an id that is no folder here is downloaded. Raises `FcamError` when none is there.
    """
    folder = Path(source)
    if folder.is_dir():
        inner = folder / "model"
        return inner if not (folder / CONFIG).is_file() and (inner / CONFIG).is_file() else folder
    if str(source) in shipped.NAMES:
        return shipped.folder(str(source))
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(source)):
        raise FcamError(
            f"there is no folder {source}; give a saved model's folder, {' or '.join(shipped.NAMES)} for the model "
            "that comes with the package, or a Hugging Face id (owner/name)"
        )
    beside = [path.name for path in folder.parent.iterdir()] if folder.parent.is_dir() else []
    if near := difflib.get_close_matches(folder.name, beside, n=1, cutoff=0.7):
        raise FcamError(f"there is no folder {source}; did you mean {folder.parent / near[0]}?")
    try:
        return Path((download or _download)(str(source)))
    except Exception as error:  # the hub client's errors have no common base
        reason = " ".join(str(error).split())[:200]
        raise FcamError(
            f"{source} is neither a folder here nor a model that could be downloaded ({reason}); "
            "check the path or the id, and the network"
        ) from error


def push(
    repo_id: str, save: Callable[[Path], None], private: bool = False, message: str | None = None
) -> str:
    """Upload what `save(folder)` writes to the Hugging Face Hub; return the address of the commit."""
    from huggingface_hub import HfApi

    api = HfApi()
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder))
        try:
            api.create_repo(repo_id, private=private, exist_ok=True)
            return str(
                api.upload_folder(
                    repo_id=repo_id, folder_path=folder, commit_message=message or "Upload F-CAM model"
                )
            )
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise FcamError(
                f"the model could not be uploaded to {repo_id} ({reason}); "
                "log in with `hf auth login` and try again"
            ) from error


def _download(repo_id: str) -> str:
    from huggingface_hub import snapshot_download

    return snapshot_download(repo_id, allow_patterns=[CONFIG, WEIGHTS])
