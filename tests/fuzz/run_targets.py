"""Damaged files of a run: configuration, resume point, log, list of predictions."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import torch
import yaml
from judge import Violation, judge
from malice import check_trap, evil_file
from mutations import damage, damage_json, damage_text, damage_value

from fcam.config import TrainConfig
from fcam.predict import output as predict_output
from fcam.recipes import list_recipes, recipe
from fcam.run import Run, config_from_dict, config_to_dict, load_config

BILLION_LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]\n" for i in range(1, 14)
)


def config(folder: Path, rng: Random) -> str:
    """A damaged config.yaml."""
    values = config_to_dict(recipe(rng.choice(list_recipes())))
    path = folder / "config.yaml"
    choice = rng.random()
    if choice < 0.02:
        path.write_text(
            "seed: &s " + BILLION_LAUGHS[4:] if rng.random() < 0.5 else BILLION_LAUGHS + "seed: *a13\n"
        )
    elif choice < 0.03:
        path.write_text("[" * 5000)
    elif choice < 0.6:
        path.write_text(yaml.safe_dump(damage_value(values, rng), sort_keys=False))
    else:
        path.write_bytes(damage_text(yaml.safe_dump(values, sort_keys=False), rng, ": "))

    def read() -> None:
        loaded = load_config(folder)
        if config_from_dict(TrainConfig, config_to_dict(loaded)) != loaded and "nan" not in repr(loaded):
            raise Violation("does not survive a round trip")

    return judge(read, str(path))


def _state() -> dict[str, Any]:
    weights = {"fc.weight": torch.ones(2, 3), "fc.bias": torch.zeros(2)}
    moving = {
        "state": {0: {"momentum_buffer": torch.ones(2, 3)}},
        "param_groups": [{"lr": 0.1, "params": [0]}],
    }
    best = {"epoch": 1, "value": 50.0}
    return {
        "epoch": 2,
        "best": best,
        "best_weights": weights,
        "weights": weights,
        "optimizer": moving,
        "average": None,
        "scaler": None,
    }


def state(folder: Path, rng: Random) -> str:
    """A damaged resume point of a run."""
    run = Run(folder)
    path = run.state_path("decoder")
    path.parent.mkdir()
    trap = folder / "trap"
    choice = rng.random()
    if choice < 0.1:
        evil_file(path, rng, _state(), trap)
    elif choice < 0.4:
        torch.save(damage_value(_state(), rng), path)
    else:
        torch.save(_state(), path, _use_new_zipfile_serialization=rng.random() < 0.7)
        path.write_bytes(damage(path.read_bytes(), rng))
    outcome = judge(lambda: run.load_state("decoder"), str(path))
    check_trap(trap)
    if choice < 0.1 and outcome == "good":
        raise Violation("a pickle with code was loaded")
    return outcome


LOG = [
    {"stage": s, "epoch": e, "lr": [0.1], "loss": 1.5, "terms": {"ce": 1.5}, "val": {}, "best": None}
    for s in ("classifier", "decoder")
    for e in (1, 2)
]


def log(folder: Path, rng: Random) -> str:
    """A damaged log.jsonl: trimmed, then read."""
    lines = [json.dumps(damage_value(row, rng) if rng.random() < 0.4 else row) for row in LOG]
    text = "".join(line + "\n" for line in lines)
    path = folder / "log.jsonl"
    path.write_bytes(damage_text(text, rng, ',:" ') if rng.random() < 0.6 else text.encode())
    run = Run(folder)

    def read() -> None:
        run.records()
        run.trim_log("decoder", 1)
        if any(r["stage"] == "decoder" and r["epoch"] > 1 for r in run.records()):
            raise Violation("an epoch that will be run again was kept")

    return judge(read, str(path))


PREDICTIONS = {
    "settings": {"threshold": 0.5},
    "classes": ["a"],
    "interrupted": True,
    "predictions": [
        {
            "path": "p/1.jpg",
            "file": "1.jpg",
            "name": "1",
            "width": 9,
            "height": 9,
            "label": "a",
            "class_idx": 0,
            "score": 0.5,
            "threshold": 0.5,
            "boxes": [[0, 0, 3, 3]],
            "mask_share": 0.5,
            "files": {"masks": "masks/1.png"},
        }
    ],
    "failed": [{"path": "p/2.jpg", "reason": "it is damaged"}],
}


def journal(folder: Path, rng: Random) -> str:
    """A damaged predictions.json or predictions.jsonl that a folder run is resumed from."""
    (folder / "masks").mkdir()
    (folder / "masks" / "1.png").touch()
    if rng.random() < 0.5:
        path = folder / predict_output.FINAL
        path.write_bytes(damage_json(PREDICTIONS, rng))
    else:
        path = folder / predict_output.JOURNAL
        rows = [{"settings": PREDICTIONS["settings"]}, *PREDICTIONS["predictions"], *PREDICTIONS["failed"]]
        lines = [json.dumps(damage_value(row, rng) if rng.random() < 0.5 else row) for row in rows]
        path.write_bytes(damage_text("\n".join(lines), rng, ',:" '))

    def read() -> None:
        opened = predict_output.Journal(folder, {"threshold": 0.5}, resume=True)
        if any(row["boxes"] is None for row in opened.rows):
            raise Violation("a damaged row was kept")
        opened.close([Path("p/1.jpg")], {"classes": ["a"], "interrupted": False})
        whole = predict_output.load_predictions(folder)
        for row in whole["predictions"]:
            _ = row["path"], row["name"], row["boxes"], row["label"], row["score"]

    return judge(read, str(path), str(folder))
