"""Keeping what image decoders remark on damaged files off the terminal: a bad file is reported once, by us."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import warnings


def quiet_decoders(worker: int = 0) -> None:
    """Silence Pillow's warnings and libtiff's messages for this process; fits `DataLoader(worker_init_fn=)`.

    For the command line and for our own loader processes: a library that is imported must not decide this.
    """
    from PIL import Image

    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    logging.getLogger("PIL").addHandler(logging.NullHandler())  # without any, errors go to stderr
    # libtiff prints from C, under Pillow and past Python. The symbol is found through the module that links
    # it; where it is linked in for good (Windows), the messages stay.
    with contextlib.suppress(AttributeError, OSError):
        pillow = ctypes.CDLL(Image.core.__file__)
        for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
            function = getattr(pillow, name)
            function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
            function(None)
