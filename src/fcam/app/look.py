"""What the network says about one photo, kept so that class, CAM method and threshold change without another run."""

from __future__ import annotations

import dataclasses
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from fcam import cams, checkpoint
from fcam.errors import FcamError
from fcam.predict.localizer import Localizer
from fcam.predict.network import NetworkOutput
from fcam.predict.prediction import Prediction, to_size

TOP = 5
"""How many classes are listed, and can be asked for a CAM."""

METHODS = {name: cams.METHODS[name].title for name in (*cams.CLOSED_FORMS, "refinecam")}
"""Methods that answer at once, and what they are called; the Score-CAM family needs a forward pass per channel."""


class Ranked(NamedTuple):
    """One of the most probable classes of a photo."""

    class_idx: int
    label: str
    score: float


@dataclass(frozen=True, eq=False)
class Look:
    """One look at one photo."""

    name: str
    """What the photo is called."""
    localizer: Localizer = field(repr=False)
    """What looked at it, in its way."""
    model: str
    """What the model is called."""
    prediction: Prediction
    """What `fcam predict` would say: cut at the model's own threshold."""
    ranking: tuple[Ranked, ...]
    """The most probable classes, best first, and last the one that was asked for where it is none of them."""
    pixels: Tensor = field(repr=False)
    """uint8 (3, h, w), what the network saw."""
    top: Tensor = field(repr=False)
    """(1, C, h', w') float32, the features that CAMs are read from."""

    def ranked(self, class_idx: int) -> Ranked:
        """Return the place in the ranking of a class; raises `FcamError` when it is not among the best."""
        for row in self.ranking:
            if row.class_idx == class_idx:
                return row
        known = ", ".join(str(row.class_idx) for row in self.ranking)
        raise FcamError(
            f"class {class_idx} is not among the most probable of this photo; take one of {known}"
        )


def look(
    localizer: Localizer, photo: Image.Image, name: str, model: str, class_idx: int | None = None
) -> Look:
    """Look at an RGB photo in the localizer's way; raises `FcamError` when the network's output is not finite.

    `class_idx` is the class whose CAM the localizer's ways take; None takes the most probable one.
    """
    pixels = localizer.prepare(photo)
    wanted = None if class_idx is None else torch.tensor([class_idx])
    logits, maps, top = localizer.see(pixels[None], wanted)
    scores = localizer.model.classifier.probabilities(logits)[0]
    classes = scores.topk(min(TOP, len(scores))).indices
    shown = classes.tolist()
    index = shown[0] if class_idx is None else class_idx
    shown += [index] if index not in shown else []
    seen = NetworkOutput(index, float(scores[index]), maps[0].cpu(), None)
    (output,) = localizer.look_closer([photo], [seen])
    names = localizer.classes
    ranking = tuple(Ranked(one, names[one] if names else str(one), float(scores[one])) for one in shown)
    prediction = localizer.finish(photo, output, name)
    return Look(name, localizer, model, prediction, ranking, pixels, top.float())


def class_map(seen: Look, class_idx: int, method: str) -> Prediction:
    """Return the classifier's CAM of one class, by one of `METHODS`, at the photo's size, cut where F-CAM was.

    All but RefineCAM run the head alone. A CAM that is empty is all zeros. Raises `FcamError` for a class that is
    not among the most probable ones, and for an unknown method.
    """
    if method not in METHODS:
        raise FcamError(f"there is no method {method!r} here; take one of {', '.join(METHODS)}")
    ranked, localizer = seen.ranked(class_idx), seen.localizer
    index = torch.tensor([class_idx], device=localizer.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cams.EmptyMapWarning)  # the page says it
        if method in cams.CLOSED_FORMS:
            maps = localizer.network.class_maps(seen.pixels[None], seen.top, index, method)
        else:
            maps = cams.cam(localizer.model.classifier, _images(localizer, seen.pixels), index, method)
    return dataclasses.replace(
        seen.prediction,
        label=ranked.label,
        class_idx=class_idx,
        score=ranked.score,
        cam=to_size(maps[0].cpu(), seen.prediction.size),
        baseline=None,
    ).at(seen.prediction.threshold)


def _images(localizer: Localizer, pixels: Tensor) -> Tensor:
    """What the network saw as (1, 3, h, w) in [0, 1] on its device."""
    return pixels[None].to(localizer.device).float() / 255


class Models:
    """The models that can be chosen, by the names they were asked for; each is loaded once, when it is needed."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        device: str | None = None,
        classifier: str = "",
        max_pixels: int | None = None,
    ) -> None:
        self.names = list(dict.fromkeys(names))
        self.max_pixels = max_pixels
        self._options = {"device": device, "classifier": classifier or None, "max_pixels": max_pixels}
        self._loaded: dict[str, Localizer] = {}
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> Localizer:
        """Return the localizer of a model, loading it when it is asked for first; raises `FcamError`."""
        if name not in self.names:
            raise FcamError(f"there is no model {name!r} here; take one of {', '.join(self.names)}")
        with self._lock:
            if name not in self._loaded:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # an untrained decoder: the page says it
                    self._loaded[name] = Localizer(name, **self._options)
            return self._loaded[name]

    def check(self) -> None:
        """Load the first model and read the others' files, so that a mistake is told before anything is served."""
        _ = self[self.names[0]]
        for name in self.names[1:]:
            checkpoint.read(checkpoint.resolve(name))

    def untrained(self, name: str) -> bool:
        """Whether the model says of itself that its decoder was never trained."""
        return self[name].model.metadata.get("decoder_trained") is False
