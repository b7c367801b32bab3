"""A run's folder: configuration, log, resume point, model, metrics."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import types
import typing
from pathlib import Path
from typing import Any

import torch
import yaml

from fcam import files
from fcam.config import TrainConfig
from fcam.errors import FcamError

FREE_TO_CHANGE = {"resume", "workers", "out", "data", "compile", "tensorboard", "name"}
"""Fields that a resumed run may change: they do not move the result."""


def config_to_dict(config: Any) -> dict[str, Any]:
    """A dataclass as plain dictionaries and lists."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def config_from_dict(cls: type, values: dict[str, Any], where: str = "config") -> Any:
    """Rebuild the dataclass `cls` from `config_to_dict`; unknown or ill-typed fields raise `FcamError`."""
    hints = typing.get_type_hints(cls)
    if not isinstance(values, dict):
        raise FcamError(
            f"{where} holds {values!r} where a group of named values belongs; restore the file or start a new run"
        )
    arguments = {}
    for name, value in values.items():
        if name not in hints:
            near = difflib.get_close_matches(name, hints, n=1)
            hint = f"did you mean {near[0]!r}" if near else f"known are {', '.join(sorted(hints))}"
            raise FcamError(f"{where} has an unknown field {name!r}; {hint}?")
        arguments[name] = _convert(hints[name], value, f"{where}.{name}")
    return cls(**arguments)


def _convert(kind: Any, value: Any, where: str) -> Any:
    """Check one value against its annotation; tuples come back from lists."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return config_from_dict(kind, value, where)
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in options:
            return None
        return _convert(next(o for o in options if o is not type(None)), value, where)
    if origin is typing.Literal and value in options:
        return value
    if origin is tuple and isinstance(value, list | tuple):
        kinds = options[:1] * len(value) if options[-1] is Ellipsis else options
        if len(kinds) == len(value):
            return tuple(_convert(k, v, where) for k, v in zip(kinds, value, strict=True))
    if kind is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        with contextlib.suppress(ValueError):
            return float(value)  # YAML reads 1e-7, without a point, as text
    if isinstance(kind, type) and isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
        return value
    wanted = (
        " or ".join(map(repr, options)) if origin is typing.Literal else getattr(kind, "__name__", str(kind))
    )
    raise FcamError(f"{where} is {value!r}, but {wanted} belongs there; mend the value")


def load_config(source: str | Path) -> TrainConfig:
    """Read a configuration: a YAML file, or `config.yaml` of a run's folder."""
    path = Path(source)
    path = path if path.suffix in (".yaml", ".yml") and not path.is_dir() else path / "config.yaml"
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FcamError(
            f"{source} is not the folder of a run: {path} cannot be read ({error.strerror}); check the path"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FcamError(
            f"{path} is damaged: {' '.join(str(error).split())}; restore it or start a new run"
        ) from error
    return config_from_dict(TrainConfig, values, str(path))


class Run:
    """The folder of one training run.

    `config.yaml`, `log.jsonl` (a line per epoch), `state/` (resume point per stage), `model/`, `metrics.json`.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.model = self.root / "model"
        self.metrics = self.root / "metrics.json"

    def open(self, config: TrainConfig) -> None:
        """Start a new run, or check that the one to resume had the same configuration.

        Raises:
            FcamError: the folder holds another run, or a field that moves the result has changed.
        """
        if not (self.root / "config.yaml").exists():
            files.write_text(
                self.root / "config.yaml", yaml.safe_dump(config_to_dict(config), sort_keys=False)
            )
            return
        if not config.resume:
            raise FcamError(f"{self.root} already holds a run; go on with --resume, or choose another --out")
        before, now = config_to_dict(load_config(self.root)), config_to_dict(config)
        for name in now:
            if name not in FREE_TO_CHANGE and before.get(name) != now[name]:
                raise FcamError(
                    f"{self.root} was started with {name} = {before.get(name)!r}, now it is {now[name]!r}; "
                    "resume with the same settings, or choose another --out"
                )

    def log(self, record: dict[str, Any]) -> None:
        """Append one line to `log.jsonl`."""
        with (self.root / "log.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")

    def trim_log(self, stage: str, epochs: int) -> None:
        """Drop lines of `stage` after `epochs`, and a line torn by a kill: those epochs will be run again."""
        path = self.root / "log.jsonl"
        if not path.exists():
            return
        kept = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue
            if record.get("stage") != stage or record.get("epoch", 0) <= epochs:
                kept.append(line)
        files.write_text(path, "".join(line + "\n" for line in kept))

    def records(self) -> list[dict[str, Any]]:
        """Lines of `log.jsonl`, oldest first."""
        path = self.root / "log.jsonl"
        return (
            [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            if path.exists()
            else []
        )

    def state_path(self, stage: str) -> Path:
        """Resume point of `stage`."""
        return self.root / "state" / f"{stage}.pt"

    def save_state(self, stage: str, state: dict[str, Any]) -> None:
        """Write the resume point of `stage`, whole or not at all."""
        with files.write_atomic(self.state_path(stage)) as temporary:
            torch.save(state, temporary)

    def load_state(self, stage: str) -> dict[str, Any] | None:
        """Resume point of `stage`, or None when it has none; nothing but tensors and plain values is ever unpickled."""
        path = self.state_path(stage)
        if not path.exists():
            return None
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise FcamError(
                f"the resume point {path} is damaged ({type(error).__name__}); delete it to repeat the stage"
            ) from error
