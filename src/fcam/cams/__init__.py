"""Class activation maps of any classifier: every method of the paper's comparison, exact and batched."""

from __future__ import annotations

from fcam.cams.center import center_gaussian
from fcam.cams.closed_form import CLOSED_FORMS, VARIANTS, from_features
from fcam.cams.compute import EmptyMapWarning, Explanation, cam, explain_target, from_top
from fcam.cams.interpolate import interpolated
from fcam.cams.maps import empty_maps, normalize
from fcam.cams.methods import METHODS, Method
from fcam.cams.refine import refine

__all__ = [
    "CLOSED_FORMS",
    "METHODS",
    "VARIANTS",
    "EmptyMapWarning",
    "Explanation",
    "Method",
    "cam",
    "center_gaussian",
    "empty_maps",
    "explain_target",
    "from_features",
    "from_top",
    "interpolated",
    "normalize",
    "refine",
]
