"""Class activation maps of any classifier."""

from __future__ import annotations

from fcam.cams.closed_form import CLOSED_FORMS, VARIANTS, from_features
from fcam.cams.maps import empty_maps, normalize

__all__ = ["CLOSED_FORMS", "VARIANTS", "empty_maps", "from_features", "normalize"]
