"""Damaged and malicious models: our folders, and checkpoints of other codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import torch
from judge import Violation, judge
from malice import check_trap, evil_file
from mutations import NASTY_BYTES, damage, damage_json, damage_value
from safetensors.torch import save as save_tensors

from fcam import checkpoint, convert
from fcam.backbones.weights import read_weights
from fcam.errors import FcamError
from fcam.model import FCAM
from fcam.predict.localizer import Localizer
from fcam.registry import create_model


def model_of(tmp: Path) -> Path:
    """A saved model of a few thousand weights."""
    if not (tmp / "model" / checkpoint.CONFIG).is_file():
        torch.manual_seed(0)
        made = create_model(
            "timm:test_resnet", 3, False, 16, decoder_channels=(8, 8, 8, 8, 4), classes=["a", "b", "c"]
        )
        made.metadata |= {
            "threshold": 0.4,
            "method": "layercam",
            "decoder_trained": True,
            "thresholds": {"fcam": {"max_box_acc": {"0.5": 0.3}, "piou": 0.4}},
            "training": {"crop": 64, "seed": 0},
        }
        made.save_pretrained(tmp / "model")
    return tmp / "model"


def model(folder: Path, rng: Random) -> str:
    """A damaged model folder, loaded for prediction."""
    shutil.copytree(model_of(folder.parent), folder / "model")
    tree = json.loads((folder / "model" / checkpoint.CONFIG).read_text())
    weights = folder / "model" / checkpoint.WEIGHTS
    trap = folder / "trap"
    choice = rng.random()
    if choice < 0.4:
        (folder / "model" / checkpoint.CONFIG).write_bytes(damage_json(tree, rng))
    elif choice < 0.5:
        evil_file(weights, rng, {}, trap)
    else:
        weights.write_bytes(_damaged_safetensors(weights.read_bytes(), rng))
    outcome = judge(lambda: Localizer(folder / "model"), str(folder / "model"))
    check_trap(trap)
    if 0.4 <= choice < 0.5 and outcome == "good":
        raise Violation("a pickle was loaded for safetensors")
    return outcome


def _damaged_safetensors(data: bytes, rng: Random) -> bytes:
    length = int.from_bytes(data[:8], "little")
    choice = rng.random()
    if choice < 0.4:
        header = damage_value(json.loads(data[8 : 8 + length]), rng)
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + data[8 + length :]
    if choice < 0.6:
        return rng.choice((*NASTY_BYTES, bytes(8), (2**62).to_bytes(8, "little"))) + data[rng.randrange(9) :]
    return damage(data, rng)


def weights(folder: Path, rng: Random) -> str:
    """`fcam convert` of a damaged or malicious checkpoint; the network is not built, which takes a second."""
    keys = {
        "layer4.2.conv3.weight": torch.ones(2, 2, 1, 1),
        "fc.weight": torch.ones(3, 2),
        "fc.bias": torch.ones(3),
    }
    whole: Any = rng.choice(
        (keys, {"state_dict": keys, "epoch": 3}, {f"encoder.{k}": v for k, v in keys.items()})
    )
    path = folder / "checkpoint.pt"
    trap, out = folder / "trap", folder / "out"
    choice = rng.random()
    if choice < 0.25:
        evil_file(path, rng, whole, trap)
    elif choice < 0.5:
        torch.save(_odd_state(whole, rng), path)
    elif choice < 0.6:
        path = folder / "checkpoint.safetensors"
        path.write_bytes(_damaged_safetensors(save_tensors(keys), rng))
    else:
        torch.save(whole, path, _use_new_zipfile_serialization=rng.random() < 0.7)
        path.write_bytes(damage(path.read_bytes(), rng))

    def read() -> None:
        state = read_weights(path)
        if not all(isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in state.items()):
            raise Violation("not a state dict")
        with mock.patch.object(convert, "create_model", _tiny):
            convert.convert(path, out)

    outcome = judge(read, str(path))
    check_trap(trap)
    if choice < 0.25 and outcome == "good":
        raise Violation("a pickle with code was loaded")
    if outcome == "refused" and out.exists():
        raise Violation("a refused checkpoint left output")
    return outcome


def _tiny(name: str, num_classes: int, *_: Any, **__: Any) -> FCAM:
    if num_classes > 1000:
        raise FcamError(f"checkpoint.pt names {num_classes} classes")
    return create_model("timm:test_resnet", num_classes, False, 16, decoder_channels=(4, 4, 4, 4, 4))


def _odd_state(whole: dict[str, Any], rng: Random) -> Any:
    odd = rng.choice(
        (
            torch.tensor(1.0),
            torch.ones(3, 2, dtype=torch.complex64),
            torch.ones(3, 2).to_sparse(),
            torch.ones(0),
            torch.ones(1, 1, 1, 1, 1),
            torch.ones(3, 2, dtype=torch.bool),
            torch.empty(3, 2, device="meta"),
            *("text", None, 3, [], {"a": torch.ones(1)}),
        )
    )
    choice = rng.randrange(4)
    if choice == 0:
        return rng.choice((odd, [whole], {}, {3: torch.ones(1)}, {"state_dict": odd}, {None: torch.ones(1)}))
    inner = whole.get("state_dict", whole)
    changed = dict(inner)
    key = rng.choice(sorted(changed))
    if choice == 1:
        changed.pop(key)
    else:
        changed[
            key if choice == 2 else rng.choice(("extra", "fc.x.weight", "encoder.", "module.fc.weight"))
        ] = odd
    return {"state_dict": changed} if inner is not whole else changed
