"""The one exception that speaks to the user."""

from __future__ import annotations


class FcamError(ValueError):
    """A mistake that its reader can mend: one sentence with the offending value and what to do next.

    The command line prints the sentence without a traceback and exits with status 2.
    """
