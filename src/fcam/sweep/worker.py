"""One training of a sweep in a process of its own: `python -m fcam.sweep.worker FOLDER`, FOLDER holding config.yaml."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from fcam import files
from fcam.errors import FcamError
from fcam.run import load_config

INTERRUPTED = 130


def main(folder: Path) -> int:
    """Train; status 0, or 1 with the reason in `failure.json`."""
    threading.Thread(target=_follow_parent, daemon=True).start()
    from fcam.sweep.execute import train_here

    try:
        message = train_here(load_config(folder))
    except FcamError as error:
        message = str(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    if message:
        files.write_json(folder / "failure.json", {"message": message})
    return 1 if message else 0


def _follow_parent() -> None:
    """End with the sweep, even when that was killed: two processes must never train in one folder."""
    os.read(0, 1)  # returns when the sweep's end of the pipe is closed
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
