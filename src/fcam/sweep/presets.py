"""Named sets of variations: the paper's experiments."""

from __future__ import annotations

from typing import Any, NamedTuple

from fcam.paper_tables import METHODS


class Variation(NamedTuple):
    """One setting of what varies, seeds apart."""

    label: str
    """How the tables call it."""
    overrides: dict[str, Any]
    """Values by dotted field name of the configuration."""
    ablation: str = ""
    """Key of the paper's ablation table, where it is of that kind."""


WHOLE_LOSS = "SR + CRF + ASC"

PRESETS: dict[str, tuple[Variation, ...]] = {
    "methods": tuple(Variation("", {"method": method}) for method in METHODS),
    "n-minus": tuple(Variation(f"n⁻ = {n / 10}", {"seeds.n_minus": n / 10}) for n in range(1, 8)),
    "alpha": tuple(Variation(f"α = {a:g}", {"loss.alpha": a}) for a in (1.0, 0.1)),
    "ablation": (
        Variation("SR", {"loss.crf": 0.0, "loss.size": 0.0}, "SR"),
        Variation("SR + ASC", {"loss.crf": 0.0}, "SR + ASC"),
        Variation("SR + CRF", {"loss.size": 0.0}, "SR + CRF"),
        Variation(WHOLE_LOSS, {}, WHOLE_LOSS),
    ),
}
"""methods: the six CAM methods; n-minus: Fig. ablation-n; alpha: sec. 4.1; ablation: Tab. ablation-parts, its first row being
the CAM that stands beside F-CAM in every table."""
