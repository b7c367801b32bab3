"""`fcam sweep`: recipes, overrides and presets from the command line or a YAML file."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional

from fcam.errors import FcamError, cut, shown
from fcam.progress import say
from fcam.run import config_from_dict, parsed_yaml
from fcam.sweep.collect import collect
from fcam.sweep.execute import execute, is_finished
from fcam.sweep.plan import Plan, SweepConfig, make_plan

SOME_FAILED = 1


@dataclass(frozen=True)
class SweepCommand:
    """Run recipes with all combinations of settings, and put the results into one table.

    Runs that differ in stage 2 only share one classifier. Finished runs are skipped and interrupted ones go on, so the same
    command may be given again; a run that fails is listed, the others go on. Left in OUT: runs/, classifiers/, and the table
    as sweep.json, sweep.csv, sweep.md and sweep.tex.
    """

    recipes: Positional[tuple[str, ...]]
    """Names from `fcam list recipes`, configuration files, or one YAML file that describes the sweep."""
    data: str = ""
    """Data set, or a folder that holds one data set per set name (cub10, CUB, ...)."""
    out: str = ""
    """Folder of the sweep."""
    preset: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """methods, n-minus, alpha or ablation: the experiments of the paper; may be given several times."""
    vary: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """SETTING=VALUE,VALUE,...; may be given several times, all combinations are run."""
    fixed: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(name="set")] = ()
    """SETTING=VALUE for all runs; may be given several times."""
    jobs: int = 0
    """Runs at a time, each in its own process; default: one per GPU, or one."""
    plan: bool = False
    """Only list what would be run."""
    table: bool = False
    """Only write the table of what is finished."""


def run_sweep(command: SweepCommand) -> int:
    """Do what `fcam sweep` was asked for; 0 when every run of the plan is finished."""
    plan = make_plan(asked_for(command))
    if command.plan:
        _print_plan(plan)
        return 0
    failed: dict[str, str] = {}
    if not command.table:
        jobs = command.jobs or _file(command.recipes).get("jobs", 0)
        try:
            failed = execute(plan, jobs, after_each=lambda failures: collect(plan, failures))
        except KeyboardInterrupt:
            collect(plan)
            say("stopped; finished epochs are kept, give the same command again to go on")
            raise
    table = collect(plan, failed)
    say(f"{table['finished']} of {table['runs']} runs are finished; table in {plan.out / 'sweep.md'}")
    for name, message in table["failed"].items():
        say(f"failed: {name}: {message}")
    return 0 if table["finished"] == table["runs"] else SOME_FAILED


def asked_for(command: SweepCommand) -> SweepConfig:
    """The sweep of a command line: its file, if it names one, with what else it says put over it."""
    values = _file(command.recipes)
    start: SweepConfig = _checked({"recipes": command.recipes, **values})
    given: dict[str, Any] = {
        name: getattr(command, name) for name in ("data", "out", "preset") if getattr(command, name)
    }
    return dataclasses.replace(
        start,
        **given,
        vary={**start.vary, **{k: _list(k, v) for k, v in map(_pair, command.vary)}},
        set={**start.set, **{k: _value(k, v) for k, v in map(_pair, command.fixed)}},
    )


def _checked(values: dict[str, Any]) -> SweepConfig:
    """Check the names and kinds of a sweep's fields.

    Raises:
        FcamError: an unknown field or a value that does not belong there.
    """
    kinds = {"data": str | dict, "vary": dict, "variants": dict, "set": dict}
    loose = {name: values[name] for name in kinds if name in values}
    for name, value in loose.items():
        if not isinstance(value, kinds[name]):
            raise FcamError(f"the sweep's {name} is {value!r}, but named values belong there; mend the file")
    strict = {name: value for name, value in values.items() if name not in kinds}
    for name in {"recipes", "preset"} & strict.keys():
        if isinstance(strict[name], str):  # one of them needs no brackets
            strict[name] = [strict[name]]
    checked = config_from_dict(SweepConfig, strict, "the sweep")
    return dataclasses.replace(checked, **loose)


def _file(recipes: Sequence[str]) -> dict[str, Any]:
    """Content of the YAML file that describes a sweep, told from a configuration by its `recipes`; else nothing."""
    if len(recipes) != 1 or not recipes[0].endswith((".yaml", ".yml")):
        return {}
    path = Path(recipes[0])
    try:
        text = path.read_bytes()
    except OSError as error:
        raise FcamError(f"cannot read {path}: {error.strerror}; check the path") from error
    values = parsed_yaml(text, f"{path} is no YAML", "mend the file")
    return values if isinstance(values, dict) and "recipes" in values else {}


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise FcamError(f"expected SETTING=VALUE, got {text!r}; for instance seeds.n_minus=0.1,0.2")
    return name, value


def _value(name: str, text: str) -> Any:
    """The value of one setting, as YAML reads it."""
    # Once for YAML, once for the shell.
    quoted = shlex.quote(f"{name}={json.dumps(text, ensure_ascii=False)}")
    return parsed_yaml(
        text, f"cannot read {shown(text)}, the value of {name}", f"quote it: --set {cut(quoted)}"
    )


def _list(name: str, text: str) -> list[Any]:
    """Values between commas, each as YAML reads it; commas inside brackets belong to a value."""
    example = shlex.quote(f'{name}="a","b"')
    complaint = f"cannot read {shown(text)}, the values of {name}"
    return parsed_yaml(f"[{text}]", complaint, f"quote those that are text: --vary {example}")


def _print_plan(plan: Plan) -> None:
    for name, config in plan.classifiers.items():
        print(f"classifiers/{name}{'  (finished)' if is_finished(config) else ''}")
    for run in plan.runs:
        print(f"runs/{run.name}{'  (finished)' if is_finished(run.config) else ''}")
