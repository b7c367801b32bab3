"""What a sweep will run: recipes times variations times seeds, and the classifiers that those runs share."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fcam import files
from fcam.config import LossConfig, SeedConfig, StageConfig, TrainConfig
from fcam.data import splits
from fcam.errors import FcamError
from fcam.recipes import METHODS, list_recipes, recipe
from fcam.run import config_from_dict, config_to_dict, load_config
from fcam.settings import settle
from fcam.sweep.presets import PRESETS, Variation

FOLDERS = {"cub": "CUB", "openimages": "OpenImages", "ilsvrc": "ILSVRC"}
"""How the WSOL benchmark calls the folders of the paper's sets."""
LONGEST_NAME = 150


@dataclass(frozen=True)
class SweepConfig:
    """What is asked for; the same fields make up a sweep's YAML file."""

    recipes: tuple[str, ...] = ()
    data: str | dict[str, str] = ""
    """Data set, or folder that holds one per set name, or both by set name."""
    out: str = ""
    preset: tuple[str, ...] = ()
    vary: dict[str, list[Any]] = field(default_factory=dict)
    """Values by dotted field name; all combinations are run."""
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Further variations by label: several fields at once."""
    set: dict[str, Any] = field(default_factory=dict)
    """Fields that are the same in all runs."""
    jobs: int = 0


@dataclass(frozen=True)
class Planned:
    """One run of a sweep."""

    name: str
    """Folder below `runs/`."""
    recipe: str
    """Recipe as it was asked for; the best variation is chosen among its runs."""
    label: str
    """What varies, seeds apart."""
    ablation: str
    config: TrainConfig
    classifier: str | None
    """Folder below `classifiers/` that stage 2 starts from; None for a run that brings its own."""
    overrides: dict[str, Any]
    """What varies, seeds apart, by dotted field name."""


@dataclass(frozen=True)
class Plan:
    """All runs of a sweep, and the classifiers that they share."""

    out: Path
    runs: tuple[Planned, ...]
    classifiers: dict[str, TrainConfig]
    fixed: dict[str, Any]

    def names(self) -> list[str]:
        """Names of the runs, each once."""
        return list(dict.fromkeys(run.name for run in self.runs))


def make_plan(asked: SweepConfig) -> Plan:
    """Lay out every run of a sweep.

    Raises:
        FcamError: an unknown recipe, field, value or data set, before anything is run.
    """
    if not asked.recipes or not asked.data or not asked.out:
        missing = next(name for name in ("recipes", "data", "out") if not getattr(asked, name))
        raise FcamError(
            f"a sweep needs {missing}; for instance: fcam sweep cub10-lite0-cam --data data/cub10 --out sweeps/cub10"
        )
    asked = _checked(asked)
    out = Path(asked.out).resolve()
    runs: dict[tuple[str, str], Planned] = {}
    by_folder: dict[str, Planned] = {}
    classifiers: dict[str, TrainConfig] = {}
    for name in asked.recipes:
        for variation in _variations(asked):
            for seed in _seeds(asked):
                run, shared = _planned(name, variation, seed, asked, out)
                namesake = by_folder.setdefault(run.name, run)
                if namesake.config != run.config:
                    raise FcamError(
                        f"two different runs, of {namesake.recipe} and of {run.recipe}, would both lie in runs/{run.name}; "
                        "rename one of the files or folders, or let the values differ in their first six digits"
                    )
                runs.setdefault((run.name, run.label), run)  # one run may stand in several tables
                classifiers |= shared
    for config in (*(run.config for run in runs.values()), *classifiers.values()):
        settle(config)
    return Plan(out, tuple(runs.values()), classifiers, dict(asked.set))


def _checked(asked: SweepConfig) -> SweepConfig:
    """The same with fields spelled as the configuration has them; those that the sweep itself sets are refused."""

    def spelled(values: Mapping[str, Any]) -> dict[str, Any]:
        found = {str(name).replace("-", "_"): value for name, value in values.items()}
        for name in found.keys() & {"out", "data", "resume", "name"}:
            raise FcamError(f"{name} is set by the sweep itself; take it out of what varies")
        return found

    for name, values in asked.vary.items():
        if not isinstance(values, list) or not values:
            raise FcamError(
                f"what varies needs a list of values, got {name} = {values!r}; write {name}: [0, 1]"
            )
    for label, values in asked.variants.items():
        if not isinstance(values, dict):
            raise FcamError(
                f"the variant {label!r} is {values!r}, but settings by name belong there; write {label}: {{seeds.erosion: 1}}"
            )
    variants = {str(label): spelled(values) for label, values in asked.variants.items()}
    return dataclasses.replace(asked, vary=spelled(asked.vary), variants=variants, set=spelled(asked.set))


def _variations(asked: SweepConfig) -> list[Variation]:
    """Presets and variants one after the other, each with every combination of `vary`."""
    unknown = next((name for name in asked.preset if name not in PRESETS), None)
    if unknown is not None:
        raise FcamError(f"there is no preset {unknown!r}; known are {', '.join(PRESETS)}")
    named = [variation for name in asked.preset for variation in PRESETS[name]]
    named += [Variation(label, dict(values)) for label, values in asked.variants.items()]
    fields = {name: values for name, values in asked.vary.items() if name != "seed"}
    combined = []
    for base in named or [Variation("", {})]:
        for name in base.overrides.keys() & asked.vary.keys():
            raise FcamError(
                f"{name} is set by {base.label or base.overrides[name]!r} and varies as well, so that its label would "
                "be wrong; leave one of them out"
            )
        for values in itertools.product(*fields.values()):
            own = dict(zip(fields, values, strict=True))
            # A method has its own column in the tables.
            words = [base.label, *(f"{name} = {_short(v)}" for name, v in own.items() if name != "method")]
            label = ", ".join(word for word in words if word)
            combined.append(
                Variation(label, {**base.overrides, **own}, base.ablation if set(own) <= {"method"} else "")
            )
    return combined


def _seeds(asked: SweepConfig) -> list[Any]:
    return asked.vary.get("seed") or [None]


def _planned(
    name: str, variation: Variation, seed: Any, asked: SweepConfig, out: Path
) -> tuple[Planned, dict[str, TrainConfig]]:
    """One run, and the classifier that it needs."""
    overrides = dict(variation.overrides)
    base = name
    method = overrides.get("method", asked.set.get("method"))
    if name in list_recipes() and method in METHODS:  # the recipe of that method
        base = f"{name.rpartition('-')[0]}-{method}"
    start = recipe(base) if base in list_recipes() else _from_file(base)
    config = with_fields(start, {**asked.set, **overrides, **({} if seed is None else {"seed": seed})})
    words = [
        f"{k}={_short(v)}" for k, v in overrides.items() if not (k == "method" and base in list_recipes())
    ]
    words.append(f"seed={config.seed}")
    folder = _folder_name(",".join([base if base in list_recipes() else _stem(base), *words]))
    config = dataclasses.replace(
        config,
        name=start.name or _stem(base),
        data=_data_of(start.name or name, asked.data),
        out=str(out / "runs" / folder),
        resume=True,
    )
    shared: dict[str, TrainConfig] = {}
    if config.stages == "both" and not config.classifier_from:
        key, first = classifier_of(config, out)
        shared[key] = first
        config = dataclasses.replace(config, stages="decoder", classifier_from=first.out)
    elif config.stages == "classifier":
        raise FcamError("a sweep compares F-CAM maps; stages = 'classifier' trains none, leave it out")
    classifier = next(iter(shared), None)
    planned = Planned(folder, name, variation.label, variation.ablation, config, classifier, overrides)
    return planned, shared


def classifier_of(config: TrainConfig, out: Path) -> tuple[str, TrainConfig]:
    """Folder name and configuration of stage 1 of a run, without anything that does not move its result.

    Which epoch is selected depends on the CAM method unless it is chosen by classification accuracy.
    """
    by_maps = config.stage1.select != "top1"
    first = dataclasses.replace(
        config,
        stages="classifier",
        name="",
        method=config.method if by_maps else "cam",
        variant=config.variant if by_maps else "published",
        seeds=SeedConfig(),
        loss=LossConfig(),
        stage2=StageConfig(),
        model=dataclasses.replace(config.model, decoder_channels=None),
        decoder_from="",
        rounds=1,
        sharpen=0,
        sharpen_by="refine",
        mosaics=0.0,
        recolor=0.0,
    )
    ordinary = config_to_dict(TrainConfig())
    moves = _differences(config_to_dict(first), ordinary)  # a setting added later must not change the names
    for name in ("out", "data", "workers", "tensorboard", "resume"):
        moves.pop(name, None)
    data_set = [config.name.partition("-")[0], Path(config.data).name]  # not its path: data may be moved
    digest = hashlib.sha256(json.dumps([moves, data_set], sort_keys=True).encode())
    words = [Path(config.data).name, config.model.backbone, *([config.method] if by_maps else [])]
    name = _folder_name("-".join([*words, f"seed={config.seed}", digest.hexdigest()[:6]]))
    return name, dataclasses.replace(first, out=str(out / "classifiers" / name))


def _differences(values: Mapping[str, Any], ordinary: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `values`, group by group, that are not as in `ordinary`."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        other = ordinary.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            found |= {f"{name}.{key}": own for key, own in _differences(value, other).items()}
        elif value != other:
            found[name] = value
    return found


def with_fields(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """The configuration with other values in fields named with dots, such as `stage2.optimizer.lr`.

    Raises:
        FcamError: no such field, or a value that does not belong there.
    """
    tree = config_to_dict(config)
    for name, value in values.items():
        *groups, last = name.split(".")
        node = tree
        for group in groups:
            node = node.get(group)
            if not isinstance(node, dict):
                raise FcamError(f"there is no setting {name!r}: {group!r} is no group of settings")
        node[last] = value
    return config_from_dict(TrainConfig, tree, "the sweep's configuration")


def _from_file(source: str) -> TrainConfig:
    """Configuration of a YAML file or a run; a name that is neither gets the recipes' own message."""
    if source.endswith((".yaml", ".yml")) or Path(source).is_dir():
        return load_config(source)
    return recipe(source)


def _stem(source: str) -> str:
    path = Path(source)
    if path.name == "config.yaml" and path.parent.name:
        return path.parent.name
    return (
        path.stem if path.suffix in (".yaml", ".yml") else path.name
    )  # the folder of a run may be called lr0.1


def _data_of(name: str, data: str | dict[str, str]) -> str:
    """Folder of the data set of a recipe: the one given, or the one below it that has the set's name."""
    data_set = name.partition("-")[0]
    if isinstance(data, dict):
        if data_set not in data:
            raise FcamError(f"the sweep's data names no folder for {data_set!r}; it has {', '.join(data)}")
        return str(Path(data[data_set]).resolve())
    root = Path(data)
    for folder in (root / data_set, root / FOLDERS.get(data_set, data_set)):
        if folder.is_dir():
            root = folder
            break
    if not {"val", "test"} & set(splits(root)):
        raise FcamError(f"{root} has neither val nor test, so a sweep could compare nothing; add one")
    return str(root.resolve())


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).replace(" ", "")


def _folder_name(text: str) -> str:
    """The text as one folder's name: no separators, and a digest in place of what is too long."""
    name = re.sub(r"[^\w.,=+()\[\]-]", "_", text)
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 9]}-{hashlib.sha256(files.utf8(text)).hexdigest()[:8]}"
