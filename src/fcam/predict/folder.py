"""Folders of photos: decoding, network and writing overlapped, memory bounded, bad files accounted for."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from fcam.data.images import image_size
from fcam.errors import FcamError, cut
from fcam.lock import alone
from fcam.predict.localizer import Localizer
from fcam.predict.network import NetworkOutput
from fcam.predict.output import Journal, Named, Outputs, name_outputs, save

PIXELS_IN_FLIGHT = 64_000_000
"""Pixels of photos that are held decoded at one time (192 MB), unless a single photo has more."""
LARGE = 8_000_000
"""Photos above this many pixels are finished one at a time: drawing needs some 25 bytes a pixel."""


@dataclass
class FolderResult:
    """What became of a folder run."""

    rows: list[dict[str, Any]]
    """One row per finished photo, as in `predictions.json`, in the order of the photos."""
    failed: list[dict[str, str]]
    """`path` and `reason` of every photo that could not be used."""
    interrupted: int = 0
    """Number of the signal that ended the run early, or 0."""
    resumed: int = 0
    """How many rows come from the run before ..."""
    others: int = 0
    """... and how many of these are of photos that were not asked for this time."""


class _Read(NamedTuple):
    """A photo on its way: decoded, and resized to what the network sees."""

    named: Named
    weight: int
    photo: Image.Image
    pixels: Tensor


def predict_files(
    localizer: Localizer,
    paths: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    outputs: Outputs | None = None,
    *,
    unusable: Sequence[Mapping[str, str]] = (),
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    workers: int | None = None,
    on_photo: Callable[[int], None] | None = None,
) -> FolderResult:
    """Localize every photo of `paths` and write what `outputs` asks for below `out`; see `predict.output`.

    A photo that cannot be used is listed in the result with its reason, and the others go on. The first
    Ctrl-C (or SIGTERM) finishes what is being written and leaves a valid `predictions.json`; the second stops
    at once.

    Args:
        unusable: paths that were found unusable before, as `path` and `reason`, to be listed with the others.
        settings: what the results depend on, kept in `predictions.json`; `resume` refuses to mix settings.
        resume: keep what a run before has finished in `out`, and do the rest.
        workers: threads that decode, and as many that write; None takes the number of cores, 8 at most.
        on_photo: called with the number of photos that are done.

    Raises:
        FcamError: `out` cannot be written to, holds something else, or is full; what is done stays.
    """
    run = _Run(localizer, Path(out), outputs or Outputs(), workers or min(8, os.cpu_count() or 2), on_photo)
    with alone(run.out, "prediction"):
        return _predict(run, paths, unusable, settings or {}, resume)


def _predict(
    run: _Run,
    paths: Sequence[str | os.PathLike[str]],
    unusable: Sequence[Mapping[str, str]],
    settings: Mapping[str, Any],
    resume: bool,
) -> FolderResult:
    """Do a run in a folder that no other is at work in; as `predict_files`."""
    files = list({os.path.abspath(path): Path(path) for path in reversed(paths)}.values())[::-1]
    run.journal = Journal(run.out, settings, resume)
    named, others = _continued(run.journal.rows, files)
    resumed = len(run.journal.rows)
    for row in unusable:
        run.journal.add(dict(row))
    try:
        with _signals(run):
            run.go(named)
    finally:
        end = {"classes": run.localizer.classes, "interrupted": bool(run.stop)}
        try:
            run.journal.close(files, end)
        except FcamError:
            if run.error is None:  # the first error says more
                raise
    if isinstance(run.error, FcamError):
        raise FcamError(f"{run.error}; resume keeps what is done and does the rest") from run.error
    if run.error is not None:
        raise run.error
    return FolderResult(run.journal.rows, run.journal.failed, run.stop, resumed, others)


def _continued(rows: list[dict[str, Any]], files: Sequence[Path]) -> tuple[list[Named], int]:
    """Name the photos that are still to be done; return them, and how many `rows` are of photos not among `files`.

    A row's `path` and `file` become those of this run: the photo may be called by another path now, and all
    photos together may have another common folder.
    """
    asked = {os.path.abspath(path) for path in files}
    real = {os.path.realpath(path): path for path in asked}
    known: dict[str, dict[str, Any]] = {}
    for row in rows:
        path: str = os.path.abspath(row["path"])
        if path not in asked:
            path = real.get(os.path.realpath(path), path)
        known.setdefault(path, row)
    rows[:] = known.values()
    others = [Path(path) for path in known if path not in asked]
    named = name_outputs([*files, *others], fixed={path: row["name"] for path, row in known.items()})
    todo = []
    for photo in named:
        if (row := known.get(path := os.path.abspath(photo.path))) is None:
            todo.append(photo)
        else:
            row["path"], row["file"] = path, photo.file
    return todo, len(others)


@dataclass
class _Run:
    """The state of one folder run; the main thread alone changes it, workers return their results."""

    localizer: Localizer
    out: Path
    outputs: Outputs
    workers: int
    on_photo: Callable[[int], None] | None
    stop: int = 0
    error: BaseException | None = None
    in_flight: int = 0
    done: int = 0
    journal: Journal = field(init=False)
    writing: dict[Future[None], int] = field(default_factory=dict)
    large: threading.Lock = field(default_factory=threading.Lock)

    def go(self, photos: Sequence[Named]) -> None:
        """Read ahead, run full batches, hand results to the writers; order of batches is order of photos."""
        todo = deque(photos)
        reading: deque[tuple[Named, int, Future[_Read]]] = deque()
        batch: list[_Read] = []
        with (
            ThreadPoolExecutor(self.workers, "read") as readers,
            ThreadPoolExecutor(self.workers, "write") as writers,
        ):
            try:
                while True:
                    self._collect()
                    while todo and not self._halted and self._room(len(reading) + len(batch), todo[0]):
                        named = todo.popleft()
                        weight = self._weight(named.path)
                        self.in_flight += weight
                        reading.append((named, weight, readers.submit(self._read, named, weight)))
                    if self._halted:
                        break
                    if reading and len(batch) < self.localizer.batch_size:
                        self._take(reading.popleft(), batch, writers)
                    elif batch:
                        self._infer(batch, writers)
                        batch = []
                    elif self.writing:
                        wait(self.writing, return_when=FIRST_COMPLETED)
                    elif not todo:
                        break
            finally:
                for _, _, future in reading:
                    future.cancel()
                while self.writing:
                    wait(self.writing, return_when=FIRST_COMPLETED)
                    self._collect()

    @property
    def _halted(self) -> bool:
        return bool(self.stop) or self.error is not None

    def _room(self, ahead: int, named: Named) -> bool:
        """Whether another photo may be decoded: not too many waiting, not too many pixels held."""
        enough = ahead + len(self.writing) >= 2 * self.localizer.batch_size + 2 * self.workers
        return self.in_flight == 0 or (not enough and self.in_flight < PIXELS_IN_FLIGHT)

    def _weight(self, path: Path) -> int:
        """Return the number of pixels from the file's header; 0 for a file that will fail to open."""
        try:
            width, height = image_size(path, max_pixels=self.localizer.max_pixels)
        except (FcamError, OSError):
            return 0
        return width * height

    def _read(self, named: Named, weight: int) -> _Read:
        photo = self.localizer.open(named.path)
        return _Read(named, weight, photo, self.localizer.prepare(photo))

    def _take(
        self, reading: tuple[Named, int, Future[_Read]], batch: list[_Read], writers: ThreadPoolExecutor
    ) -> None:
        """Put a decoded photo into the batch, running it first where the photo's shape differs."""
        named, weight, future = reading
        try:
            read = future.result()
        # One photo, whatever its decoder does, must not end a run over thousands.
        except Exception as error:
            self._fail(named, error)
            self.in_flight -= weight
            self._count()
            return
        if batch and batch[0].pixels.shape != read.pixels.shape:
            self._infer(batch, writers)
            batch.clear()
        batch.append(read)

    def _infer(self, batch: Sequence[_Read], writers: ThreadPoolExecutor) -> None:
        pixels = torch.stack([read.pixels for read in batch])
        outputs = self.localizer.look([read.photo for read in batch], pixels)
        for read, output in zip(batch, outputs, strict=True):
            future = writers.submit(self._write, read.named, read.photo, output)
            self.writing[future] = read.weight

    def _write(self, named: Named, photo: Image.Image, output: NetworkOutput) -> None:
        with self.large if photo.width * photo.height > LARGE else nullcontext():
            try:
                prediction = self.localizer.finish(photo, output, str(named.path))
            except Exception as error:
                self._fail(named, error)
            else:
                row = save(prediction, named, self.out, self.outputs)
                self.journal.add(row | {"path": os.path.abspath(named.path)})

    def _fail(self, named: Named, error: Exception) -> None:
        reason = str(error) if isinstance(error, FcamError) else f"{type(error).__name__}: {cut(error)}"
        self.journal.add({"path": str(named.path), "reason": getattr(error, "reason", reason)})

    def _collect(self) -> None:
        """Take note of photos whose files are written; an error in writing ends the run."""
        for future in [future for future in self.writing if future.done()]:
            self.in_flight -= self.writing.pop(future)
            if (error := future.exception()) is not None:
                self.error = self.error or error
            else:
                self._count()

    def _count(self) -> None:
        self.done += 1
        if self.on_photo is not None:
            self.on_photo(self.done)


@contextmanager
def _signals(run: _Run) -> Iterator[None]:
    """Let the first SIGINT or SIGTERM ask the run to stop, and the second do what it always does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: object) -> None:
        run.stop = number
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
