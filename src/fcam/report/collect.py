"""What a report is about: finished runs with their settings, logs and numbers, those that differ only in the seed together."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fcam import checkpoint
from fcam.cams import METHODS
from fcam.config import TrainConfig
from fcam.data import splits
from fcam.errors import FcamError
from fcam.run import Run, load_config
from fcam.tables import paper


@dataclass(frozen=True)
class Finished:
    """One finished run: its folder, settings, the lines of its log, and the numbers of one split."""

    root: Path
    config: TrainConfig
    records: list[dict[str, Any]]
    report: dict[str, Any]
    model: dict[str, Any] = field(repr=False)
    """What `model/config.json` holds; empty where there is no model."""
    shared: Path | None = None
    """Folder of the classifier that was trained apart, where its epochs are among the records."""
    data_set: str = "data"
    """Name of the data set: the last folder of its path, or the last two where another set has that name."""
    name: str = "run"
    """The last folder of the run's path, or as many as tell it from the other runs."""

    @property
    def seconds(self) -> float:
        """Time that training took, validation left out, summed over epochs."""
        return training_seconds([self])

    def selected(self, stage: str) -> dict[str, Any] | None:
        """The epoch that `stage` chose, and its value on `val`."""
        own = [record for record in self.records if record["stage"] == stage]
        return own[-1].get("best") if own else None


def training_seconds(runs: Sequence[Finished]) -> float:
    """Time that training took, that of a classifier which several runs share once."""
    spent: dict[tuple[Path, str, int], float] = {}
    for run in runs:
        for record in run.records:
            where = run.shared if record["stage"] == "classifier" and run.shared else run.root
            spent[where.resolve(), record["stage"], record["epoch"]] = record.get("seconds", 0.0)
    return sum(spent.values())


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


def expand(folders: Sequence[Path]) -> list[Path]:
    """Run folders; the folder of a sweep stands for all finished runs in it."""
    found: list[Path] = []
    for folder in folders:
        inside = folder / "runs"
        if (folder / "config.yaml").exists() or not inside.is_dir():
            found.append(folder)
        else:
            found += sorted(run for run in inside.iterdir() if Run(run).metrics.exists())
    if not found:
        raise FcamError("there is no finished run to report on; name the folder of a run or of a sweep")
    return list(dict.fromkeys(found))


class NoNumbersError(FcamError):
    """A run that has not been scored on the split: it is not finished, or the split is another one."""


def read_runs(roots: Sequence[Path], split: str, notes: list[str]) -> list[Finished]:
    """Read runs and their numbers on `split`; those that have none are left out and named in `notes`.

    Raises `FcamError` when none has numbers, and for a folder that is no run.
    """
    found, without = [], []
    for root in roots:
        try:
            found.append(read_run(root, split))
        except NoNumbersError as error:
            without.append(error)
    if not found and without:
        raise without[0]
    notes += [f"left out: {error}" for error in without]
    named = zip(found, _shortest_names([run.root for run in found]), strict=True)
    return _with_data_sets([replace(run, name=name) for run, name in named])


def _shortest_names(roots: Sequence[Path]) -> list[str]:
    """The end of each path, as long as it takes for no other path to end so."""
    places = list(dict.fromkeys(Path(os.path.abspath(root)).parts for root in roots))
    ends = Counter(parts[-n:] for parts in places for n in range(1, len(parts) + 1))
    names = []
    for root in roots:
        parts = Path(os.path.abspath(root)).parts
        own = (parts[-n:] for n in range(1, len(parts) + 1))
        names.append("/".join(next((end for end in own if ends[end] == 1), parts)))
    return names


def _with_data_sets(runs: Sequence[Finished]) -> list[Finished]:
    """Name each run's data set; sets of one name are apart where they differ in images scored or in classes."""
    paths = [Path(run.config.data) for run in runs]
    contents: dict[str, list[Any]] = {}
    for path, run in zip(paths, runs, strict=True):
        of_name = contents.setdefault(path.name, [])
        own = (run.report.get("images"), run.model.get("classes"))
        of_name += [] if own in of_name else [own]
    shown = ["/".join(path.parts[-2 if len(contents[path.name]) > 1 else -1 :]) for path in paths]
    return [replace(run, data_set=name or "data") for run, name in zip(runs, shown, strict=True)]


def read_run(root: Path, split: str) -> Finished:
    """Read a run and its numbers on `split`; raises `NoNumbersError` when there are none."""
    config = load_config(root)
    report = Run(root).report(split)
    if report is None:
        known = splits(config.data) if Path(config.data).is_dir() else [split]
        if split not in known:
            raise NoNumbersError(
                f"{root} was trained on {config.data}, which has no {split} split (found: {', '.join(known) or 'none'}), so "
                "there are no numbers to report; give the data one, or name another with --split"
            )
        raise NoNumbersError(
            f"{root} holds no numbers for the {split} split; make them with: fcam evaluate {root} --split {split}"
        )
    records = Run(root).records()
    shared = Path(config.classifier_from) if config.classifier_from else None
    if shared is not None and (shared / "log.jsonl").exists():
        # A sweep trains classifiers apart; their epochs belong to the run's history.
        records = [r for r in Run(shared).records() if r["stage"] == "classifier"] + records
    else:
        shared = None
    try:
        model, _ = _model_config(root)
    except (FcamError, OSError, ValueError):
        model = {}
    return Finished(root, config, records, report, model, shared)


def _model_config(root: Path) -> tuple[dict[str, Any], Path]:
    folder = checkpoint.resolve(root)
    return json.loads((folder / checkpoint.CONFIG).read_text(encoding="utf-8")), folder


def group(runs: Sequence[Finished]) -> list[Group]:
    """Put runs together that differ in the seed alone, in the order given, and name what sets groups apart."""
    by_settings: dict[str, list[Finished]] = {}
    for run in runs:
        by_settings.setdefault(json.dumps([run.data_set, _settings(run)]), []).append(run)
    groups = []
    for own in by_settings.values():
        names = _names(own[0])
        rivals = [_settings(other[0]) for other in by_settings.values() if _names(other[0]) == names]
        fields = _settings(own[0])
        # Only what sets this group apart from others of the same set, backbone and method needs to be named.
        names += [
            f"{name} {value}" for name, value in fields.items() if any(r.get(name) != value for r in rivals)
        ]
        runs_by_seed = sorted(own, key=lambda run: run.config.seed)
        groups.append(Group(" · ".join(names), runs_by_seed, paper.changed(own[0].config)))
    return groups


def _settings(run: Finished) -> dict[str, Any]:
    """What sets a run apart besides its seed: its settings, and whether it went on to a decoder."""
    return paper.settings(run.config) | {"decoder": "trained" if "fcam" in run.report["maps"] else "none"}


def repeated(groups: Sequence[Group]) -> list[str]:
    """A sentence for every seed that a group has more than once: a mean over copies of a run shows too small a spread."""
    return [
        f"{own.label}: {' and '.join(same)} have the same settings and seed {seed}, and all count; leave out copies"
        for own in groups
        for seed in dict.fromkeys(run.config.seed for run in own.runs)
        if len(same := [run.name for run in own.runs if run.config.seed == seed]) > 1
    ]


def _names(run: Finished) -> list[str]:
    method = METHODS[run.config.method].title
    return [run.data_set, run.config.model.backbone, method]


def papers_number(group: Group, kind: str, metric: str) -> float | None:
    """`tables.paper.papers_number` of a group; the paper has numbers of `test` alone."""
    on_test = group.first.report["split"] == "test"
    return paper.papers_number(group.first.config, kind, metric) if on_test else None
