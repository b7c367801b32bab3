"""fcam: full-resolution class activation maps for any CNN image classifier."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fcam.errors import FcamError

if TYPE_CHECKING:
    from fcam import bilateral, boxes, cams, data, losses, metrics, seeds
    from fcam.attachment.attach import attach
    from fcam.cams import cam, explain_target
    from fcam.model import FCAM
    from fcam.predict.localizer import Localizer
    from fcam.registry import create_model, list_models

__version__ = "0.1.0"

__all__ = [
    "FCAM",
    "FcamError",
    "Localizer",
    "attach",
    "bilateral",
    "boxes",
    "cam",
    "cams",
    "create_model",
    "data",
    "explain_target",
    "list_models",
    "losses",
    "metrics",
    "seeds",
]

_HOMES = {
    "FCAM": "model",
    "Localizer": "predict.localizer",
    "attach": "attachment.attach",
    "cam": "cams",
    "explain_target": "cams",
    "create_model": "registry",
    "list_models": "registry",
}


def __getattr__(name: str) -> Any:
    """Import public names when they are first asked for, so that `fcam --help` need not wait for torch."""
    if name not in __all__:
        raise AttributeError(f"module 'fcam' has no attribute {name!r}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"fcam.{_HOMES[name]}"), name)
    return importlib.import_module(f"fcam.{name}")


def __dir__() -> list[str]:
    return sorted(__all__)
