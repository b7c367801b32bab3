"""A run's folder: configuration, log, resume point, model, metrics."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import shutil
import types
import typing
import warnings
from pathlib import Path
from typing import Any, TypeGuard

import torch
import yaml

from fcam import checkpoint, files
from fcam.config import TrainConfig
from fcam.errors import FcamError, cut, shown
from fcam.model import FCAM
from fcam.origin import PARTS, Origin, origin_of

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
            f"{where} holds {shown(values)} where a group of named values belongs; restore the file or start a new run"
        )
    arguments = {}
    for name, value in values.items():
        if name not in hints:
            near = difflib.get_close_matches(str(name), hints, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(hints))}"
            raise FcamError(f"{where} has an unknown field {shown(name)}; {hint}")
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
    if value is False and "no" in options:
        return "no"  # as YAML reads the bare word
    if origin is typing.Literal and value in options:
        return value
    if origin is tuple and isinstance(value, list | tuple):
        kinds = options[:1] * len(value) if options[-1] is Ellipsis else options
        if len(kinds) == len(value):
            return tuple(_convert(k, v, where) for k, v in zip(kinds, value, strict=True))
    if kind is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            return float(value)  # YAML reads 1e-7, without a point, as text
    if isinstance(kind, type) and isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
        return value
    wanted = (
        " or ".join(map(repr, options)) if origin is typing.Literal else getattr(kind, "__name__", str(kind))
    )
    raise FcamError(f"{where} is {shown(value)}, but {wanted} belongs there; mend the value")


def load_config(source: str | Path) -> TrainConfig:
    """Read a configuration: a YAML file, or `config.yaml` of a run's folder."""
    path = Path(source)
    path = path if path.suffix in (".yaml", ".yml") and not path.is_dir() else path / "config.yaml"
    try:
        text = path.read_bytes()
    except OSError as error:
        raise FcamError(
            f"{source} is not the folder of a run: {path} cannot be read ({error.strerror}); check the path"
        ) from error
    values = parsed_yaml(text, f"{path} is damaged", "restore it or start a new run")
    return config_from_dict(TrainConfig, values, str(path))


def parsed_yaml(text: str | bytes, complaint: str, advice: str) -> Any:
    """What YAML reads in `text`; raises `FcamError` of `complaint`, the parser's reason and `advice` where it cannot."""
    try:
        return yaml.safe_load(text)
    # Beside its own errors the parser passes on those of dates, of numbers and of the recursion it works by.
    except (yaml.YAMLError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise FcamError(f"{complaint}: {cut(' '.join(str(error).split()))}; {advice}") from error


class Run:
    """The folder of one training run.

    `config.yaml`, `origin.json` (what lay under its names), `log.jsonl` (a line per epoch), `state/` (resume point per stage),
    `model/`, `metrics.json`. `classifier/` is there from the end of stage 1 until `model/` is: a model whose decoder was never
    trained, for another run to start from should this one not come to its end.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.model = self.root / "model"
        self.classifier = self.root / checkpoint.CLASSIFIER
        self.metrics = self.root / "metrics.json"

    def open(self, config: TrainConfig, origin: Origin | None = None) -> None:
        """Start a new run, or check that the one to resume had the same configuration.

        Args:
            config: settings of the run.
            origin: what lies under the names in `config` now; what is not known of either time is not compared.

        Raises:
            FcamError: the folder holds another run, or something that moves the result has changed.
        """
        if not (self.root / "config.yaml").exists():
            if (self.root / "log.jsonl").exists() or any(self.root.glob("state/*.pt")):
                raise FcamError(
                    f"{self.root} holds the epochs of a run whose config.yaml is gone; put it back, or choose another --out"
                )
            self._write(config, origin)
            return
        if not config.resume:
            raise FcamError(f"{self.root} already holds a run; go on with --resume, or choose another --out")
        self._check_same(config, origin or Origin())
        files.remove_leftovers(self.root / "state")
        files.remove_leftovers(self.model)
        files.remove_leftovers(self.classifier)
        self._write(config, origin)  # data set and classifier may have moved

    def _check_same(self, config: TrainConfig, origin: Origin) -> None:
        """Raise `FcamError` where the run was started with something else that moves the result."""
        before, now = config_to_dict(load_config(self.root)), config_to_dict(config)
        began = origin_of(self.root, before["data"])
        # Known by their weights, and not by the path.
        parts = [part for part in PARTS if getattr(began, part) and getattr(origin, part)]
        free = FREE_TO_CHANGE | {f"{part}_from" for part in parts}
        for name in now:
            if name not in free and (changed := _difference(before[name], now[name], name)):
                field, old, new = changed
                raise FcamError(
                    f"{self.root} was started with {field} = {shown(old)}, now it is {shown(new)}; "
                    "resume with the same settings, or choose another --out"
                )
        if other := began.other_class(origin):
            raise FcamError(
                f"{self.root} was started with other classes than {config.data} has: {other}; resume with data of the same "
                "classes, or choose another --out"
            )
        for part in parts:
            old, new = getattr(began, part), getattr(origin, part)
            if old != new:
                given = f"{config.classifier} is, with its weights and the order of its outputs,"
                path = getattr(config, f"{part}_from")
                raise FcamError(
                    f"{self.root} was started on another {part} than {f'{path} holds' if path else given} now (SHA-256 of its "
                    f"weights {old[:12]}, now {new[:12]}); resume with the same, or choose another --out"
                )

    def _write(self, config: TrainConfig, origin: Origin | None) -> None:
        text = yaml.safe_dump(config_to_dict(config), sort_keys=False)
        files.write_text(self.root / "config.yaml", text)
        if origin is not None:
            origin.write(self.root)

    def log(self, record: dict[str, Any]) -> None:
        """Append one line to `log.jsonl`; raises `FcamError` when the disk is full or the folder read-only."""
        path = self.root / "log.jsonl"
        try:
            with path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(record) + "\n")
        except OSError as error:
            raise FcamError(
                f"cannot write {path}: {error.strerror or error}; make room, then go on with --resume"
            ) from error

    def trim_log(self, stage: str, epochs: int) -> None:
        """Drop lines of `stage` after `epochs`, and a line torn by a kill: those epochs will be run again."""
        path = self.root / "log.jsonl"
        if not path.exists():
            return
        kept = [
            line
            for line, record in files.read_json_lines(path)
            if _is_record(record) and (record["stage"] != stage or record["epoch"] <= epochs)
        ]
        files.write_text(path, "".join(line + "\n" for line in kept))

    def records(self) -> list[dict[str, Any]]:
        """Lines of `log.jsonl`, oldest first; raises `FcamError` for a line that `log` did not write."""
        path = self.root / "log.jsonl"
        records = []
        lines = files.read_json_lines(path) if path.exists() else []
        for number, (line, record) in enumerate(lines, start=1):
            if not _is_record(record):
                raise FcamError(
                    f"{path}, line {number} is damaged: {shown(line)}; such lines are dropped by "
                    f"`fcam train {self.root / 'config.yaml'} --resume`"
                )
            records.append(record)
        return records

    def report(self, split: str = "") -> dict[str, Any] | None:
        """The numbers of `split`, or those that training left, whatever their split; None where there are none.

        Raises `FcamError` for a file that holds no numbers of maps.
        """
        evaluated = [self.root / f"metrics-{split}.json"] if split else []
        for path in filter(Path.exists, [*evaluated, self.metrics]):
            try:
                report = json.loads(path.read_text(encoding="utf-8"))
                if not (isinstance(report, dict) and isinstance(report.get("maps"), dict)):
                    raise ValueError("no numbers of maps in it")
            except (OSError, ValueError, RecursionError) as error:
                raise FcamError(f"{path} is damaged ({cut(error)}); evaluate the run again") from error
            if split in ("", report.get("split")):
                return report
        return None

    def keep_classifier(self, model: FCAM) -> None:
        """Leave the model as stage 1 made it until there is a whole one."""
        model.metadata["decoder_trained"] = False
        model.save_pretrained(self.classifier)

    def keep_model(self, model: FCAM) -> None:
        """Write the finished model, and then only remove the one of stage 1."""
        model.save_pretrained(self.model)
        shutil.rmtree(self.classifier, ignore_errors=True)

    def state_path(self, stage: str) -> Path:
        """Resume point of `stage`."""
        return self.root / "state" / f"{stage}.pt"

    def save_state(self, stage: str, state: dict[str, Any]) -> None:
        """Write the resume point of `stage`, whole or not at all; raises `FcamError` when the disk is full."""
        # Into a file of Python's: torch's own writer does not always notice that the end finds no room.
        with files.write_atomic(self.state_path(stage)) as temporary, temporary.open("wb") as file:
            try:
                torch.save(state, file)
            except RuntimeError as error:  # of its C++ side, which knows no error numbers
                raise OSError("torch could not write the whole file") from error

    def load_state(self, stage: str) -> dict[str, Any] | None:
        """Resume point of `stage`, or None when it has none; nothing but tensors and plain values is ever unpickled.

        Raises `FcamError` when the file is damaged, or holds something else.
        """
        path = self.state_path(stage)
        if not path.exists():
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch remarks on odd pickles before it refuses them
                state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise self.damaged(stage, error) from error
        if not _is_state(state):
            raise self.damaged(stage, TypeError())
        return state

    def damaged(self, stage: str, error: Exception) -> FcamError:
        """What to raise when the resume point of `stage` cannot be used."""
        return FcamError(
            f"the resume point {self.state_path(stage)} is damaged ({type(error).__name__}); "
            "delete it to repeat the stage"
        )


def _difference(before: Any, now: Any, name: str) -> tuple[str, Any, Any] | None:
    """The first field that differs, as dotted name and both values; None when all are equal."""
    if isinstance(before, dict) and isinstance(now, dict):
        found = (_difference(before.get(key), value, f"{name}.{key}") for key, value in now.items())
        return next(filter(None, found), None)
    return None if before == now else (name, before, now)


def _is_record(record: dict[str, Any] | None) -> TypeGuard[dict[str, Any]]:
    """Whether `log` wrote this."""
    if record is None:
        return False
    return isinstance(record.get("stage"), str) and isinstance(record.get("epoch"), int)


def _is_state(state: Any) -> bool:
    """Whether this has the shape of what `train_stage` saves."""
    if not isinstance(state, dict) or not {"epoch", "best", "best_weights"} <= state.keys():
        return False
    epoch, best = state["epoch"], state["best"]
    if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 1:
        return False
    chosen = isinstance(best, dict) and "epoch" in best and isinstance(best.get("value"), int | float | None)
    return chosen and all(isinstance(state.get(k), dict) for k in ("weights", "best_weights", "optimizer"))
