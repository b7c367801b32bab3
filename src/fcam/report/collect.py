"""What a report is about: finished runs with their settings, logs and numbers, those that differ only in the seed together."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fcam import checkpoint, paper_tables
from fcam.config import TrainConfig
from fcam.errors import FcamError, cut
from fcam.recipes import list_recipes, recipe
from fcam.run import FREE_TO_CHANGE, Run, config_to_dict, load_config
from fcam.sweep.tables import METHOD_TITLES

SAME_RUN = FREE_TO_CHANGE | {"seed", "classifier_from", "stages", "precision", "tensorboard"}
"""Fields that do not make a run another experiment."""
CHOSEN_ON_VAL = {"method", "seeds.n_minus", "loss.alpha"}
"""Fields that the paper chose on `val`: its numbers still belong beside a run that sets them."""
TERMS = {"loss.crf", "loss.size"}


@dataclass(frozen=True)
class Finished:
    """One finished run: its folder, settings, the lines of its log, and the numbers of one split."""

    root: Path
    config: TrainConfig
    records: list[dict[str, Any]]
    report: dict[str, Any]
    model: dict[str, Any] = field(repr=False)
    """What `model/config.json` holds; empty where there is no model."""

    @property
    def data_set(self) -> str:
        """Name of the data set: the last folder of its path."""
        return Path(self.config.data).name or "data"

    @property
    def seconds(self) -> float:
        """Time that training took, validation left out, summed over epochs."""
        return sum(record.get("seconds", 0.0) for record in self.records)

    def selected(self, stage: str) -> dict[str, Any] | None:
        """The epoch that `stage` chose, and its value on `val`."""
        own = [record for record in self.records if record["stage"] == stage]
        return own[-1].get("best") if own else None


@dataclass(frozen=True)
class Group:
    """Runs that differ in the seed alone."""

    label: str
    runs: list[Finished]
    changed: dict[str, Any]
    """Fields that differ from the recipe, with their values."""

    @property
    def first(self) -> Finished:
        """The run that stands for the others where one is shown."""
        return self.runs[0]


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; sd None for one seed."""

    mean: float
    sd: float | None

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Spread | None:
        """The spread of values, None where one is missing."""
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return None
        return cls(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None)


def expand(folders: Sequence[Path]) -> list[Path]:
    """Run folders; the folder of a sweep stands for all finished runs in it."""
    found: list[Path] = []
    for folder in folders:
        inside = folder / "runs"
        if (folder / "config.yaml").exists() or not inside.is_dir():
            found.append(folder)
        else:
            found += sorted(run for run in inside.iterdir() if (run / "metrics.json").exists())
    if not found:
        raise FcamError("there is no finished run to report on; name the folder of a run or of a sweep")
    return list(dict.fromkeys(found))


def read_run(root: Path, split: str) -> Finished:
    """Read a run and its numbers on `split`; raises `FcamError` when there are none."""
    config = load_config(root)
    report = next((r for r in _reports(root, split) if r.get("split") == split), None)
    if report is None:
        raise FcamError(
            f"{root} holds no numbers for the {split} split; make them with: fcam evaluate {root} --split {split}"
        )
    records = Run(root).records()
    shared = Path(config.classifier_from) if config.classifier_from else None
    if shared is not None and (shared / "log.jsonl").exists():
        # A sweep trains classifiers apart; their epochs belong to the run's history.
        records = [r for r in Run(shared).records() if r["stage"] == "classifier"] + records
    try:
        model, _ = _model_config(root)
    except (FcamError, OSError, ValueError):
        model = {}
    return Finished(root, config, records, report, model)


def _reports(root: Path, split: str) -> Iterator[dict[str, Any]]:
    for name in (f"metrics-{split}.json", "metrics.json"):
        path = root / name
        if path.exists():
            try:
                report = json.loads(path.read_text(encoding="utf-8"))
                if not (isinstance(report, dict) and isinstance(report.get("maps"), dict)):
                    raise ValueError("no numbers of maps in it")
            except (OSError, ValueError, RecursionError) as error:
                raise FcamError(f"{path} is damaged ({cut(error)}); evaluate the run again") from error
            yield report


def _model_config(root: Path) -> tuple[dict[str, Any], Path]:
    folder = checkpoint.resolve(root)
    return json.loads((folder / checkpoint.CONFIG).read_text(encoding="utf-8")), folder


def group(runs: Sequence[Finished]) -> list[Group]:
    """Put runs together that differ in the seed alone, in the order given, and name what sets groups apart."""
    by_settings: dict[str, list[Finished]] = {}
    for run in runs:
        by_settings.setdefault(json.dumps([run.data_set, _settings(run.config)]), []).append(run)
    groups = []
    for own in by_settings.values():
        names = _names(own[0])
        rivals = [_settings(other[0].config) for other in by_settings.values() if _names(other[0]) == names]
        fields = _settings(own[0].config)
        # Only what sets this group apart from others of the same set, backbone and method needs to be named.
        names += [
            f"{name} {value}" for name, value in fields.items() if any(r.get(name) != value for r in rivals)
        ]
        runs_by_seed = sorted(own, key=lambda run: run.config.seed)
        groups.append(Group(" · ".join(names), runs_by_seed, _changed(own[0].config)))
    return groups


def _names(run: Finished) -> list[str]:
    method = METHOD_TITLES.get(run.config.method, run.config.method)
    return [run.data_set, run.config.model.backbone, method]


def _settings(config: TrainConfig) -> dict[str, Any]:
    """Dotted fields and values that make an experiment what it is."""
    return {k: v for k, v in flat(config_to_dict(config)).items() if k.partition(".")[0] not in SAME_RUN}


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested groups of values as one, with dotted names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def _changed(config: TrainConfig) -> dict[str, Any]:
    """Fields that the run set otherwise than its recipe."""
    if config.name not in list_recipes():
        return {}
    before = _settings(recipe(config.name))
    return {name: value for name, value in _settings(config).items() if before.get(name) != value}


def papers_number(group: Group, kind: str, metric: str) -> float | None:
    """The number that the paper prints for a group's map, None where it prints none or the settings are others.

    `metric` as in `metrics.json`; of MaxBoxAcc the paper prints overlap 0.5.
    """
    config, data_set = group.first.config, group.first.config.name.partition("-")[0]
    if config.name not in list_recipes() or group.first.report["split"] != "test":
        return None
    if kind == "center":
        return paper_tables.CENTER.get((metric, data_set))
    off = {name for name in TERMS if flat(config_to_dict(config))[name] == 0}
    if kind == "fcam" and not set(group.changed) <= CHOSEN_ON_VAL | off:
        return None
    ablation = {
        frozenset(TERMS): "SR",
        frozenset({"loss.crf"}): "SR + ASC",
        frozenset({"loss.size"}): "SR + CRF",
    }.get(frozenset(off), "")
    return paper_tables.printed(metric, data_set, config.model.backbone, config.method, kind, ablation)


def number(row: Mapping[str, Any], metric: str, iou: str = "0.5") -> float | None:
    """One percentage of a row of `metrics.json`; those by overlap at `iou`."""
    value = row.get(metric)
    return value.get(iou) if isinstance(value, dict) else value
