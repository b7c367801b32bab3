"""What a run began with that its settings name but do not hold: a path says nothing of what lies there later."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from fcam import files
from fcam.errors import FcamError, cut

FILE = "origin.json"


@dataclass(frozen=True)
class Origin:
    """What lay under the names in a run's settings when it began.

    Attributes:
        classifier: digest of the weights of `classifier_from`, "" where there is none or the run is older than this file.
    """

    classifier: str = ""

    @classmethod
    def read(cls, folder: Path) -> Origin:
        """The origin of the run in `folder`; an empty one for a run that has none, `FcamError` for a damaged file."""
        path = folder / FILE
        if not path.exists():
            return cls()
        try:
            return cls(classifier=str(json.loads(path.read_text(encoding="utf-8"))["classifier"]))
        except (OSError, ValueError, RecursionError, LookupError, TypeError) as error:
            raise FcamError(
                f"{path} is damaged ({cut(error)}); restore it, or delete it to go on unchecked"
            ) from error

    def write(self, folder: Path) -> None:
        """Leave it in the run's folder."""
        files.write_json(folder / FILE, dataclasses.asdict(self))
