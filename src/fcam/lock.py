"""One process at a time in a folder that is written to: of two, each would take the other's files for its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path

from fcam.errors import FcamError

LOCK = ".lock"


@contextlib.contextmanager
def alone(folder: Path, work: str) -> Iterator[None]:
    """Hold the lock of `folder`, where the system has such locks; it ends with the process, however that ends.

    Args:
        folder: made where it is missing.
        work: what holds it, for the sentence: "training".

    Raises:
        FcamError: the folder cannot be made, or another process holds its lock.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FcamError(
            f"cannot make the folder {folder}: {error.strerror or error}; choose another --out"
        ) from error
    with contextlib.ExitStack() as held:
        try:
            file = held.enter_context(_locked(folder / LOCK))
        except BlockingIOError as error:
            raise FcamError(
                f"another {work} is at work in {folder}; wait for it, or choose another --out"
            ) from error
        except (
            ImportError,
            OSError,
        ):  # Windows, or a file system without locks; what cannot be written says so itself
            file = None
        try:
            yield
        finally:
            if file is not None:
                with contextlib.suppress(OSError):
                    (folder / LOCK).unlink()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[TextIOWrapper]:
    import fcntl

    while True:
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever held it until now may have removed it in between: then the name is somebody else's, or nobody's.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    yield file
                    return
