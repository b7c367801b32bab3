"""Running a plan: what is finished is skipped, what was interrupted goes on, what fails is noted and the rest goes on."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
import yaml

from fcam import checkpoint, files
from fcam.checkpoint import Part
from fcam.config import TrainConfig
from fcam.errors import FcamError
from fcam.lock import alone
from fcam.origin import PARTS, Origin
from fcam.progress import say
from fcam.run import FREE_TO_CHANGE, Run, config_to_dict, load_config
from fcam.settings import settle
from fcam.sweep.plan import Plan

POLL = 0.2
"""Seconds between looks at running processes."""
GRACE = 15.0
"""Seconds that a process is given to end after it was asked to."""

Train = Callable[[TrainConfig], object]


@dataclass(frozen=True)
class Job:
    """One training, and the job that must have ended well before it."""

    name: str
    config: TrainConfig
    needs: str | None = None


def is_finished(config: TrainConfig) -> bool:
    """Whether the run of a configuration is complete and was made with the same settings."""
    folder = Path(config.out)
    if not Run(folder).metrics.exists():
        return False
    with contextlib.suppress(FcamError, OSError):
        then = _stored(folder, (folder / "config.yaml").stat().st_mtime_ns)
        now = config_to_dict(settle(config))  # as the run stored it
        sources: dict[Part, str] = {part: f"{part}_from" for part in PARTS}
        free = {*FREE_TO_CHANGE, *sources.values()}
        same = all(then[name] == now[name] for name in now if name not in free)
        return same and all(_began_on(folder, part, then[name], now[name]) for part, name in sources.items())
    return False


def _began_on(folder: Path, part: Part, then: str, now: str) -> bool:
    """Whether a run began on the part of the folder `now`: its weights tell, and where one of the two is not there to be asked,
    the folder's name, since a sweep may have moved as a whole.
    """
    began = getattr(Origin.read(folder), part)
    with contextlib.suppress(FcamError, OSError):
        if began and now and Path(now).is_dir():
            weights = checkpoint.resolve(now) / checkpoint.WEIGHTS
            return began == _digest(part, Path(now), weights.stat().st_mtime_ns)
    return Path(then).name == Path(now).name


@functools.cache
def _digest(part: Part, folder: Path, changed: int) -> str:
    """Digest of a part's weights; several runs share it, and a sweep asks after every one of them."""
    del changed
    return checkpoint.part_digest(folder, part)


@functools.cache
def _stored(folder: Path, changed: int) -> dict[str, Any]:
    """Configuration of a run's folder; reading YAML is slow, and a sweep asks after every run."""
    del changed
    return config_to_dict(load_config(folder))


def execute(
    plan: Plan,
    jobs: int = 0,
    after_each: Callable[[dict[str, str]], object] = lambda failed: None,
    train: Train | None = None,
) -> dict[str, str]:
    """Run what is missing of a plan.

    Args:
        jobs: runs at a time; 0 is one per GPU, or one. With more than one, each is a process of its own that sees
            one GPU, and its output goes to `logs/`.
        after_each: called with the failures so far whenever a run has ended.
        train: training function, for one run at a time; `fcam.train.train` by default.

    Returns:
        messages of the runs that failed, by name.

    Raises:
        FcamError: another sweep is at work in the same folder; fewer than 0 jobs.
        KeyboardInterrupt: after every process was stopped; finished epochs are kept.
    """
    if jobs < 0:
        raise FcamError(f"jobs is {jobs}; take 1 or more, or 0 for one run per GPU")
    todo = _jobs(plan)
    gpus = visible_gpus()
    jobs = jobs or max(1, len(gpus))
    with alone(plan.out, "sweep"):
        say(f"{len(plan.names())} runs, {len(todo)} trainings to do, {jobs} at a time")
        if jobs == 1:
            return _one_by_one(todo, after_each, train)
        return _side_by_side(todo, jobs, gpus, plan.out, after_each)


def _jobs(plan: Plan) -> list[Job]:
    """Unfinished runs, each after the classifier that it needs."""
    jobs: dict[str, Job] = {}
    for run in plan.runs:
        if is_finished(run.config):
            continue
        needs = None
        if run.classifier is not None and not is_finished(plan.classifiers[run.classifier]):
            needs = f"classifiers/{run.classifier}"
            jobs.setdefault(needs, Job(needs, plan.classifiers[run.classifier]))
        name = f"runs/{run.name}"
        jobs[name] = Job(name, run.config, needs)
    return list(jobs.values())


def _one_by_one(
    todo: list[Job], after_each: Callable[[dict[str, str]], object], train: Train | None
) -> dict[str, str]:
    failed: dict[str, str] = {}
    for number, job in enumerate(todo, start=1):
        if job.needs in failed:
            failed[job.name] = f"not started, since {job.needs} failed"
        else:
            say(f"[{number}/{len(todo)}] {job.name}")
            message = train_here(job.config, train)
            if message:
                failed[job.name] = message
        _say_failure(job, failed)
        after_each(failed)
    return failed


def train_here(config: TrainConfig, train: Train | None = None) -> str:
    """Train in this process; returns one sentence when it failed, else "".

    Whatever goes wrong in one run must not end the others, so every exception but Ctrl-C is taken.
    """
    if train is None:
        from fcam.train import train
    failure = Path(config.out) / "failure.txt"
    try:
        train(config)
    except FcamError as error:
        return str(error)
    except Exception as error:
        with contextlib.suppress(FcamError):
            files.write_text(failure, traceback.format_exc())
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]} (traceback in {failure.name} of the run)"
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    failure.unlink(missing_ok=True)
    return ""


@dataclass
class _Running:
    job: Job
    process: subprocess.Popen[bytes]
    slot: int
    log: IO[bytes]


def _side_by_side(
    todo: list[Job], jobs: int, gpus: list[str], out: Path, after_each: Callable[[dict[str, str]], object]
) -> dict[str, str]:
    failed: dict[str, str] = {}
    waiting, running, ended = list(todo), [], set()
    try:
        while waiting or running:
            for job in [job for job in waiting if job.needs in failed]:
                waiting.remove(job)
                failed[job.name] = f"not started, since {job.needs} failed"
                _say_failure(job, failed)
            free = [slot for slot in range(jobs) if slot not in {r.slot for r in running}]
            ready = [job for job in waiting if job.needs is None or job.needs in ended]
            for slot, job in zip(free, ready, strict=False):
                waiting.remove(job)
                running.append(_start(job, slot, gpus, out))
            for one in [one for one in running if one.process.poll() is not None]:
                running.remove(one)
                one.log.close()
                message = _message(one, out)
                if message:
                    failed[one.job.name] = message
                else:
                    ended.add(one.job.name)
                    say(f"{one.job.name} is finished")
                _say_failure(one.job, failed)
                after_each(failed)
            time.sleep(POLL)
    except BaseException:
        _stop(running)
        raise
    after_each(failed)
    return failed


def _start(job: Job, slot: int, gpus: list[str], out: Path) -> _Running:
    """Start a job in its own process, on the GPU of its slot."""
    folder = out / "logs" / job.name.replace("/", "-")
    files.write_text(folder / "config.yaml", yaml.safe_dump(config_to_dict(job.config), sort_keys=False))
    (folder / "failure.json").unlink(missing_ok=True)
    environment = dict(os.environ)
    where = ""
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
        where = f" on GPU {gpus[slot % len(gpus)]}"
    say(f"{job.name}: started{where}, output in {folder / 'output.txt'}")
    log = (folder / "output.txt").open("ab")
    process = subprocess.Popen(
        [sys.executable, "-m", "fcam.sweep.worker", str(folder)],
        stdin=subprocess.PIPE,  # its end tells the process that this one is gone
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the others
    )
    return _Running(job, process, slot, log)


def _message(one: _Running, out: Path) -> str:
    """Why a process failed, or ""."""
    code = one.process.returncode
    if code == 0:
        return ""
    folder = out / "logs" / one.job.name.replace("/", "-")
    with contextlib.suppress(OSError, ValueError):
        return json.loads((folder / "failure.json").read_text(encoding="utf-8"))["message"]
    cause = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
    return f"the process {cause}; memory may have run out, see {folder / 'output.txt'}"


def _stop(running: list[_Running]) -> None:
    """Ask every process to stop, and insist after a while."""
    for one in running:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(one.process.pid, signal.SIGINT)
    deadline = time.monotonic() + GRACE
    for one in running:
        try:
            one.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()
        one.log.close()


def visible_gpus() -> list[str]:
    """Names by which CUDA_VISIBLE_DEVICES calls the GPUs that this process may use."""
    count = torch.cuda.device_count()
    given = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return given[:count] if given else [str(number) for number in range(count)]


def _say_failure(job: Job, failed: dict[str, str]) -> None:
    if job.name in failed:
        say(f"{job.name} failed: {failed[job.name]}")
