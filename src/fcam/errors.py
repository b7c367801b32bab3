"""The one exception that speaks to the user, and how values stand in its sentences."""

from __future__ import annotations

import re
import reprlib
from typing import Any

_BREAKS = re.compile(r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class FcamError(ValueError):
    """A mistake that its reader can mend: one sentence with the offending value and what to do next.

    The command line prints the sentence without a traceback and exits with status 2. It is always one line
    without control characters, whatever file or library its parts come from. A data loader raises a worker's
    exception again with the worker's traceback as its message; of that the sentence is kept.
    """

    def __init__(self, message: str = "") -> None:
        if message.startswith("Caught ") and "Traceback" in message:
            message = re.sub(r"^[\w.]+Error: ", "", message.strip().splitlines()[-1])
        super().__init__(one_line(message))


def one_line(text: str) -> str:
    """The text without breaks, and with control characters and halves of surrogates written out."""
    return escaped(_BREAKS.sub(" ", text))


def shown(value: Any) -> str:
    """The repr of a value from a file, cut to some 200 characters however large, deep or self-similar it is."""
    return cut(_BRIEF.repr(value))


def cut(text: object, length: int = 200) -> str:
    """The first `length` characters of a text from a file; three dots stand for the rest."""
    text = str(text)
    return text if len(text) <= length else f"{text[:length]}..."


def escaped(text: str) -> str:
    r"""The text with control characters, and bytes of file names that are not valid UTF-8, as `\x1b` and `\udcff`."""
    return _CONTROL.sub(lambda match: ascii(match.group())[1:-1], text)


class _Brief(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to print integers of thousands of digits.
        return super().repr_int(x, level) if x.bit_length() < 1000 else f"an integer of {x.bit_length()} bits"


_BRIEF = _Brief()
_BRIEF.maxstring = _BRIEF.maxother = 160
_BRIEF.maxlevel = 3
