"""When a number of the paper belongs beside ours: settings that are the paper's, or chosen as the paper chose."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fcam import paper_tables
from fcam.cams import METHODS
from fcam.config import TrainConfig
from fcam.recipes import list_recipes, recipe
from fcam.run import FREE_TO_CHANGE, config_to_dict
from fcam.tables import MAP_TITLES, METRIC_TITLES, Cell, Number, Spread, Table, footnote

SAME_RUN = FREE_TO_CHANGE | {"seed", "classifier_from", "stages", "precision"}
"""Fields that do not make a run another experiment."""
CHOSEN_ON_VAL = {"seeds.n_minus", "loss.alpha"}
"""Fields that the paper chose on `val`: its numbers still belong beside the value that was chosen."""
ABLATION = {
    frozenset({"loss.crf", "loss.size"}): "SR",
    frozenset({"loss.crf"}): "SR + ASC",
    frozenset({"loss.size"}): "SR + CRF",
}
"""Rows of the paper's ablation, by the weights that are zero."""
DECODER_ONLY = {"seeds", "loss", "stage2"}
"""Groups of fields that the CAM beside F-CAM does not depend on."""

BackboneCells = dict[tuple[str, str, str, str], dict[str, float]]
"""Our percentages by (data set, method, kind of map, metric) and backbone."""


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested groups of values as one, with dotted names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def settings(config: TrainConfig) -> dict[str, Any]:
    """Dotted fields and values that make an experiment what it is."""
    values = config_to_dict(config)
    values["decoder_from"] = "given" if config.decoder_from else ""  # every seed has its own
    return {k: v for k, v in flat(values).items() if k.partition(".")[0] not in SAME_RUN}


def changed(config: TrainConfig) -> dict[str, Any]:
    """Fields that a run sets otherwise than its recipe; empty for a configuration that is no recipe's."""
    if config.name not in list_recipes():
        return {}
    before = settings(recipe(config.name))
    return {name: value for name, value in settings(config).items() if before.get(name) != value}


def data_set(config: TrainConfig) -> str:
    """The paper's name of a recipe's data set."""
    return config.name.partition("-")[0]


def papers_accuracy(config: TrainConfig) -> float | None:
    """Top-1 classification on `test` that the paper prints for a run's classifier, None as in `papers_number`."""
    row = paper_tables.CLASSIFICATION.get(data_set(config), {}).get(config.method)
    backbone = config.model.backbone
    if row is None or backbone not in paper_tables.BACKBONES or config.name not in list_recipes():
        return None
    return row.cell(backbone) if _has_the_papers_classifier(config) else None


def _has_the_papers_classifier(config: TrainConfig) -> bool:
    return {name.partition(".")[0] for name in changed(config)} <= DECODER_ONLY | {"method"}


def is_the_papers(config: TrainConfig) -> bool:
    """Whether this is a recipe's whole method, but for what the paper chose on `val`."""
    return config.name in list_recipes() and set(changed(config)) <= {"method"} | CHOSEN_ON_VAL


def papers_number(config: TrainConfig, kind: str, metric: str) -> float | None:
    """The number that the paper prints for a run's map on `test`, None where it prints none or the settings are others.

    Args:
        kind: "cam", "fcam" or "center".
        metric: as in `metrics.json`; of MaxBoxAcc the paper prints overlap 0.5.
    """
    if config.name not in list_recipes():
        return None
    if kind == "center":
        return paper_tables.CENTER.get((metric, data_set(config)))
    off = frozenset(name for names in ABLATION for name in names if settings(config)[name] == 0)
    if kind == "cam" and not _has_the_papers_classifier(config):
        return None
    if kind == "fcam" and set(changed(config)) - off - CHOSEN_ON_VAL - {"method"}:
        return None
    names = (data_set(config), config.model.backbone, config.method, kind)
    return paper_tables.printed(metric, *names, ABLATION.get(off, ""))


def add_cell(cells: BackboneCells, config: TrainConfig, kind: str, metric: str, mean: float | None) -> None:
    """Take in a percentage for the means over backbones, where there is one and its settings are the paper's."""
    if mean is not None and is_the_papers(config):
        key = (data_set(config), config.method, kind, metric)
        cells.setdefault(key, {})[config.model.backbone] = mean


def backbone_means(cells: BackboneCells) -> list[dict[str, Any]]:
    """Means over the paper's three backbones where all are there, beside its printed means."""
    found = []
    for (name, method, kind, metric), by_backbone in cells.items():
        if set(paper_tables.BACKBONES) <= set(by_backbone):
            ours = statistics.fmean(by_backbone[backbone] for backbone in paper_tables.BACKBONES)
            printed, note = paper_tables.printed_mean(metric, name, method, kind)
            found.append(
                {"data_set": name, "method": method, "map": kind, "metric": metric, "mean": ours}
                | {"paper": printed, "footnote": note}
            )
    return found


def means_table(means: Sequence[Mapping[str, Any]]) -> Table:
    """What `backbone_means` found, with a footnote where the printed mean is not that of its cells."""
    rows: list[list[Cell]] = []
    notes: list[str] = []
    for own in means:
        note = footnote(notes, own["footnote"]) if own["footnote"] else None
        names = [own["data_set"], METHODS[own["method"]].title, MAP_TITLES[own["map"]]]
        rows.append(
            [*names, METRIC_TITLES[own["metric"]], Number(Spread(own["mean"], None), own["paper"], note)]
        )
    caption = "Mean of VGG16, InceptionV3 and ResNet50, each at its own best threshold on the split."
    head = ["set", "method", "map", "metric", "mean"]
    return Table("means", "Means over backbones", caption, head, rows, set(), notes)
