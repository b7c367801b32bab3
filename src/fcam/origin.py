"""What a run began with that its settings name but do not hold: a path says nothing of what lies there later."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from fcam import files
from fcam.checkpoint import Part
from fcam.data import open_dataset
from fcam.errors import FcamError, cut, shown

FILE = "origin.json"
PARTS: tuple[Part, ...] = get_args(Part)
"""Of each, `PART_from` of a run's settings names where it lies, and the origin holds a digest."""


@dataclass(frozen=True)
class Origin:
    """What lay under the names in a run's settings when it began.

    Attributes:
        classes: class names of the data, in label order; () where the run is older than this file.
        classifier: digest of the weights of `classifier_from`, or of those and the outputs of `classifier`; "" where there is
            neither, or the run is older than this.
        decoder: digest of the decoder's weights of `decoder_from`; "" where there is none.
    """

    classes: tuple[str, ...] = ()
    classifier: str = ""
    decoder: str = ""

    @classmethod
    def read(cls, folder: Path) -> Origin:
        """The origin of the run in `folder`; an empty one for a run that has none, `FcamError` for a damaged file."""
        path = folder / FILE
        if not path.exists():
            return cls()
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            classes, decoder = tuple(map(str, found["classes"])), str(found.get("decoder", ""))
            return cls(classes, str(found["classifier"]), decoder)
        except (OSError, ValueError, RecursionError, LookupError, TypeError) as error:
            raise FcamError(
                f"{path} is damaged ({cut(error)}); restore it, or delete it to go on unchecked"
            ) from error

    def other_class(self, now: Origin) -> str:
        """In words the first class that is another one now; "" where none is, or where one of the two is not known."""
        if not (self.classes and now.classes):
            return ""
        for index, (old, new) in enumerate(itertools.zip_longest(self.classes, now.classes)):
            if old != new:
                names = ["missing" if name is None else shown(name) for name in (old, new)]
                return f"class {index} was {names[0]}, now it is {names[1]}"
        return ""

    def write(self, folder: Path) -> None:
        """Leave it in the run's folder."""
        files.write_json(folder / FILE, dataclasses.asdict(self))


def origin_of(run: Path, data: str) -> Origin:
    """What the run in a folder began with, on `data` by its settings. Of one from before this was noted, the classes are those
    of its model, or of its data where that still lies there.
    """
    origin = Origin.read(run)
    if origin.classes:
        return origin
    with contextlib.suppress(OSError, ValueError, RecursionError, LookupError, TypeError):
        model = json.loads((run / "model" / "config.json").read_text(encoding="utf-8"))
        return dataclasses.replace(origin, classes=tuple(model["classes"]))
    with contextlib.suppress(FcamError, OSError):
        return dataclasses.replace(origin, classes=tuple(open_dataset(data, "train").classes))
    return origin
