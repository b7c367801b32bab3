"""What a reader owes to its user whatever the file: a good result, or one sentence that names the file."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fcam.errors import FcamError
from fcam.quiet import quiet_decoders

SECONDS = 30.0
"""A case that takes longer by the clock hangs; the machine may be busy with other things."""
CPU_SECONDS = 5.0
LONGEST = 1000
"""Characters of a sentence beside the file's name."""


class Violation(AssertionError):  # noqa: N818
    """The property does not hold, and why."""


class _Hang(BaseException):
    """Not an `Exception`: no reader may swallow it."""


def judge(call: Callable[[], Any], *names: str) -> str:
    """Return "good" or "refused"; raise `Violation` for anything else that `call` does.

    `names` are the ways in which a sentence may name the file; at least one must be in it.
    """
    started = time.process_time()
    with _Stderr() as stderr, _time_limit():
        try:
            with warnings.catch_warnings():
                # Python's own filters, but nothing is shown only once.
                warnings.simplefilter("always")
                for category in (DeprecationWarning, PendingDeprecationWarning, ResourceWarning):
                    warnings.simplefilter("ignore", category)
                warnings.filterwarnings("ignore", "the decoder of this model was never trained")
                quiet_decoders()
                call()
            outcome = "good"
        except FcamError as error:
            _check_sentence(str(error), names)
            outcome = "refused"
        except _Hang as hang:
            raise Violation(f"took more than {SECONDS} seconds by the clock") from hang
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | Violation):
                raise
            where = " < ".join(
                f"{os.path.basename(f.filename)}:{f.lineno}"
                for f in traceback.extract_tb(error.__traceback__)[::-1]
            )
            raise Violation(f"{type(error).__name__}: {str(error)[:300]} at {where}") from error
    if (used := time.process_time() - started) > CPU_SECONDS:
        raise Violation(f"took {used:.1f} seconds of CPU")
    if stderr.text:
        raise Violation(f"wrote to the terminal: {stderr.text[:300]!r}")
    return outcome


def _check_sentence(sentence: str, names: tuple[str, ...]) -> None:
    named = next((name for name in names if name in sentence), None)
    if named is None:
        raise Violation(f"the sentence names none of {names}: {sentence[:300]!r}")
    if len(sentence.splitlines()) != 1:
        raise Violation(f"more than one line: {sentence[:300]!r}")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in sentence):
        raise Violation(f"not printable: {sentence[:300]!r}")
    if len(sentence) > LONGEST + 2 * len(named):
        raise Violation(f"{len(sentence)} characters long: {sentence[:200]!r}")
    if "Traceback" in sentence:
        raise Violation(f"a traceback: {sentence[:300]!r}")


class _Stderr:
    """Catch what Python and C libraries write to file descriptor 2."""

    text = ""

    def __enter__(self) -> _Stderr:
        sys.stderr.flush()
        self.file = tempfile.TemporaryFile()
        self.kept, self.stream = os.dup(2), sys.stderr
        os.dup2(self.file.fileno(), 2)
        sys.stderr = open(os.dup(2), "w", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        sys.stderr.close()
        sys.stderr = self.stream
        os.dup2(self.kept, 2)
        os.close(self.kept)
        self.file.seek(0)
        self.text = self.file.read().decode("utf-8", "replace")
        self.file.close()


@contextmanager
def _time_limit() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise _Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
