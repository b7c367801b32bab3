"""What a browser tab has on screen, and what its controls do to it; one `Viewer` serves all tabs and keeps nothing of any."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from fcam.app import words
from fcam.app.keep import write_zip
from fcam.app.look import Look, Models, class_map, look
from fcam.app.view import View, contour, view
from fcam.data.images import ImageError
from fcam.errors import FcamError
from fcam.grabcut import has_opencv
from fcam.predict.prediction import BoxRule
from fcam.predict.ways import DECIDING, Ways

WAYS = {
    "flip": "Mirror",
    "refine": "Refine",
    "grabcut": "GrabCut",
    "zoom": "Zoom",
    "coarse": "Coarse",
    "fill": "Fill",
    "product": "This class only",
}
"""Ways to a better map, as `fcam predict` calls them, and what they are called on the page."""


def ways_here() -> list[tuple[str, str]]:
    """Those that can be taken here, as (what the page calls it, way): GrabCut where OpenCV is installed."""
    return [(title, way) for way, title in WAYS.items() if way != "grabcut" or has_opencv()]


Pictures = tuple[Image.Image | None, Image.Image | None, Image.Image | None]


@dataclass(frozen=True, eq=False)
class Shown:
    """One look at a photo: what the network said, F-CAM, and the CAM of one class."""

    seen: Look
    fcam: View
    cam: View

    @property
    def class_idx(self) -> int:
        """The class whose CAM is shown."""
        return self.cam.full.class_idx

    @property
    def photo(self) -> tuple[Image.Image, str]:
        """What was looked at, and its name."""
        return self.seen.prediction.photo, self.seen.name


@dataclass(frozen=True, eq=False)
class Session:
    """The state of one browser tab; replaced as a whole, never changed."""

    model: str = ""
    method: str = "cam"
    rule: BoxRule = "largest"
    ways: tuple[str, ...] = ()
    """Which of `WAYS` are on."""
    threshold: float | None = None
    """Where the user has put the cut; None follows the model."""
    shown: Shown | None = field(default=None, repr=False)
    problem: str = ""
    """What could not be done, in a sentence."""

    @property
    def chosen(self) -> Ways:
        """`ways` as prediction takes them: a coarse look waits for one that decides about what it finds."""
        on = {way: way in self.ways for way in WAYS}
        on["coarse"] &= any(on[way] for way in DECIDING)
        return Ways(**on)

    @property
    def cut(self) -> float | None:
        """The threshold in force, or None while no photo is there."""
        if self.threshold is not None or self.shown is None:
            return self.threshold
        return self.shown.seen.prediction.threshold


class Viewer:
    """What the controls of the page do: each takes a session and returns the next one."""

    def __init__(self, models: Models, photos: Mapping[str, Path] | None = None) -> None:
        """`photos` are those that can be chosen by name."""
        self.models, self.photos = models, dict(photos or {})

    def open(self, session: Session, path: str | Path, name: str) -> Session:
        """Look at a photo in a file; a file that cannot be used becomes a sentence on the page."""
        try:
            photo = self.models[session.model].open(path)
        except ImageError as error:  # its path may be that of a temporary copy
            sentence = f"{name} cannot be shown: {error.reason}. Choose another photo."
            return dataclasses.replace(session, shown=None, problem=sentence)
        except FcamError as error:
            return dataclasses.replace(session, shown=None, problem=str(error))
        return self._look(session, photo, name)

    def choose(self, session: Session, name: str | None, step: int = 0) -> tuple[Session, str | None]:
        """Look at a photo of the folder, or `step` photos further; returns its name too."""
        names = list(self.photos)
        if name not in self.photos:
            name, step = (names[0], 0) if names else (None, 0)
        if name is None:
            return session, None
        name = names[(names.index(name) + step) % len(names)]
        return self.open(session, self.photos[name], name), name

    def clear(self, session: Session) -> Session:
        """Take the photo off the screen."""
        return dataclasses.replace(session, shown=None, problem="")

    def use_model(self, session: Session, model: str) -> Session:
        """Look at the same photo with another model, cut where that model says."""
        session = dataclasses.replace(session, model=model, threshold=None)
        if session.shown is None:
            return session
        return self._look(session, *session.shown.photo)

    def use_ways(self, session: Session, ways: Sequence[str]) -> Session:
        """Look at the same photo in other ways, of `WAYS`, cut where the user has put the cut or the model has it for these."""
        return self._again(dataclasses.replace(session, ways=tuple(ways)))

    def use_method(self, session: Session, method: str) -> Session:
        """Show the same class's CAM by another method."""
        if session.shown is None:
            return dataclasses.replace(session, method=method)
        return self._explain(session, session.shown, method, session.shown.class_idx)

    def use_class(self, session: Session, class_idx: int) -> Session:
        """Show the CAM of another class, and its map where F-CAM is one of a class."""
        if session.shown is None:
            return session
        if session.chosen.of_class:
            return self._look(session, *session.shown.photo, class_idx)
        return self._explain(session, session.shown, session.method, class_idx)

    def use_threshold(self, session: Session, threshold: float | None) -> Session:
        """Cut both maps elsewhere, or, with None, where the model says; the network does not run."""
        return self._cut(dataclasses.replace(session, threshold=threshold))

    def use_rule(self, session: Session, rule: BoxRule) -> Session:
        """Box the largest component or all of them; the network runs only where it looks at each of them closer."""
        session = dataclasses.replace(session, rule=rule)
        return self._again(session) if "zoom" in session.ways else self._cut(session)

    def save(self, session: Session, folder: Path) -> Path:
        """Write what is on screen into a zip in `folder`; raises `FcamError` when there is nothing."""
        if session.shown is None:
            raise FcamError("there is nothing to save yet; choose a photo")
        shown = session.shown
        return write_zip(folder, shown.seen, shown.fcam.full, shown.cam.full, session.method)

    def _again(self, session: Session) -> Session:
        """Look once more at the photo on screen, if there is one, and keep the class whose CAM is shown."""
        if session.shown is None:
            return session
        class_idx = session.shown.class_idx
        if session.chosen.of_class:
            return self._look(session, *session.shown.photo, class_idx)
        after = self._look(session, *session.shown.photo)
        if after.shown is None or class_idx not in {row.class_idx for row in after.shown.seen.ranking}:
            return after
        return self._explain(after, after.shown, session.method, class_idx)

    def _look(self, session: Session, photo: Image.Image, name: str, class_idx: int | None = None) -> Session:
        try:
            localizer = self.models[session.model].using(boxes=session.rule, ways=session.chosen)
            seen = look(localizer, photo, name, session.model, class_idx)
            cam = class_map(seen, seen.prediction.class_idx, session.method)
        except FcamError as error:
            return dataclasses.replace(session, shown=None, problem=str(error))
        shown = Shown(seen, view(seen.prediction), view(cam))
        return self._cut(dataclasses.replace(session, shown=shown))

    def _explain(self, session: Session, shown: Shown, method: str, class_idx: int) -> Session:
        """Put another CAM beside F-CAM; where there is none, all stays and a sentence says why."""
        try:
            cam = class_map(shown.seen, class_idx, method)
        except FcamError as error:
            return dataclasses.replace(session, problem=str(error))
        shown = dataclasses.replace(shown, cam=view(cam))
        return self._cut(dataclasses.replace(session, method=method, shown=shown))

    def _cut(self, session: Session) -> Session:
        if session.shown is None or session.cut is None:
            return session
        fcam, cam = (v.at(session.cut, session.rule) for v in (session.shown.fcam, session.shown.cam))
        shown = dataclasses.replace(session.shown, fcam=fcam, cam=cam)
        return dataclasses.replace(session, shown=shown, problem="")


def pictures(session: Session) -> Pictures:
    """The photo with contour and boxes, the CAM over it, F-CAM over it."""
    if session.shown is None:
        return None, None, None
    fcam, cam = session.shown.fcam.small, session.shown.cam.small
    return contour(fcam), cam.overlay(), fcam.overlay()


def titles(session: Session) -> tuple[str, str, str]:
    """What stands above each of the three pictures."""
    if session.shown is None:
        return "", "", ""
    return words.titles(session.shown.cam.full, session.method, session.shown.seen.localizer.ways)


def headline(session: Session, models: Models) -> str:
    """What stands above the pictures: the result, what went wrong, or what to do first."""
    problem = words.problem(session.problem) if session.problem else ""
    if session.shown is None:
        return problem or words.WELCOME
    return problem + words.headline(session.shown.seen, models.untrained(session.shown.seen.model))


def details(session: Session) -> str:
    """What stands below the pictures: classes, mask shares, boxes."""
    if session.shown is None:
        return ""
    shown = session.shown
    return words.details(shown.seen, shown.fcam.full, shown.cam.full, session.method)


def classes(session: Session) -> list[tuple[str, int]]:
    """The classes whose CAM can be asked for, as (what to show, class)."""
    if session.shown is None:
        return []
    rows = session.shown.seen.ranking
    notes = [" (predicted)" if place == 0 else "" for place in range(len(rows))]
    return [
        (f"{row.label}, {100 * row.score:.1f} %{note}", row.class_idx)
        for row, note in zip(rows, notes, strict=True)
    ]
