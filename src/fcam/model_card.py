"""What a saved model's metadata, which anybody may have edited, says to whoever predicts with it."""

from __future__ import annotations

from typing import Any

from fcam.errors import FcamError, shown

DEFAULT_THRESHOLD = 0.5
DEFAULT_SIZE = 224
LARGEST_SIZE = 4096
"""No model that says of itself that it was trained on larger images is believed."""


def card_threshold(card: dict[str, Any], kind: str = "fcam", otherwise: float = DEFAULT_THRESHOLD) -> float:
    """Return the threshold that the metadata names, or the best on `val` for boxes or pixels, or `otherwise`.

    `kind` is the kind of map; a threshold that was named is F-CAM's.
    """
    named = card.get("threshold") if kind == "fcam" else None
    boxes = _noted(card, "thresholds", kind, "max_box_acc", "0.5")
    for value in (named, boxes, _noted(card, "thresholds", kind, "piou")):
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1:
            return float(value)
    return otherwise


def card_size(card: dict[str, Any], source: object) -> int:
    """Return the side that the metadata says the model was trained on, or 224; raises `FcamError` for nonsense."""
    size = _noted(card, "training", "crop")
    if size is None:
        return DEFAULT_SIZE
    if not isinstance(size, int) or not 32 <= size <= LARGEST_SIZE:
        raise FcamError(
            f"{source} says it was trained on images of side {shown(size)}, but 32 to {LARGEST_SIZE} was expected; "
            "name another size"
        )
    return size


def card_seed(card: dict[str, Any]) -> int:
    """Return the seed that the metadata says the model was trained with, or 0."""
    seed = _noted(card, "training", "seed")
    return seed if isinstance(seed, int) else 0


def _noted(card: Any, *keys: str) -> Any:
    """Return what lies below nested `keys` of the metadata, which anybody may have edited, or None."""
    for key in keys:
        card = card.get(key) if isinstance(card, dict) else None
    return card
