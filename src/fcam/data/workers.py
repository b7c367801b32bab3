"""The processes that load images: what is said when one of them dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fcam.errors import FcamError


@contextmanager
def deaths_explained() -> Iterator[None]:
    """Raise `FcamError` where torch says that a worker of a data loader died, most often killed by the system for its memory.

    It goes around all that is done between two batches: torch notices by a signal, and raises wherever the main thread
    then is. What a worker itself raises has another message, and passes as it is.
    """
    try:
        yield
    except RuntimeError as error:
        first = error.__cause__ if isinstance(error.__cause__, RuntimeError) else error  # it names the signal
        if not str(first).startswith("DataLoader worker (pid"):
            raise
        raise FcamError(
            f"a process that loads images died ({str(first).partition('. ')[0]}), most often since memory ran out; take "
            "fewer --workers (0 loads in the main process), and go on with training by --resume, which keeps finished epochs"
        ) from error
