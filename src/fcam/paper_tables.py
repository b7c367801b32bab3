"""The numbers that the paper prints, as data: tables maxbox-pxap, maxboxv2, top15, ablation-parts and main_cls.

Belharbi et al., F-CAM: Full Resolution Class Activation Maps via Guided Parametric Upscaling, WACV 2022
(arXiv 2109.07069). Percentages on `test`, single runs without a spread. Cells stand in the order VGG16,
InceptionV3, ResNet50; the printed mean is kept apart, since some printed means are not those of their cells.
"""

from __future__ import annotations

from typing import NamedTuple

BACKBONES = ("vgg16", "inceptionv3", "resnet50")
METHODS = {
    "cam": "CAM*",
    "gradcam": "GradCAM",
    "gradcampp": "GradCAM++",
    "smoothgradcampp": "Smooth-GradCAM++",
    "xgradcam": "XGradCAM",
    "layercam": "LayerCAM",
}
"""Our names of the six methods, and the paper's."""
HEADLINE = {"cub": "max_box_acc", "openimages": "pxap"}
"""Metric of the paper's main table, by data set."""


class Row(NamedTuple):
    """One printed row: three cells, and the mean where one is printed."""

    vgg16: float
    inceptionv3: float
    resnet50: float
    mean: float | None = None

    def cell(self, backbone: str) -> float:
        """The cell of one of `BACKBONES`."""
        return self[BACKBONES.index(backbone)]  # type: ignore[return-value]

    def true_mean(self) -> float:
        """Mean of the three cells."""
        return (self.vgg16 + self.inceptionv3 + self.resnet50) / 3


Key = tuple[str, str, str]
"""(metric, data set, kind of map); metric as in `metrics.json`, kind "cam" or "fcam"."""


def _rows(*rows: tuple[float, ...]) -> dict[str, Row]:
    return {method: Row(*row) for method, row in zip(METHODS, rows, strict=True)}


MAIN: dict[Key, dict[str, Row]] = {
    ("max_box_acc", "cub", "cam"): _rows(
        (61.6, 58.8, 71.5, 63.9),
        (69.3, 62.3, 73.1, 68.2),
        (84.1, 63.3, 81.9, 76.4),
        (69.7, 66.9, 76.3, 70.9),
        (69.3, 60.9, 72.7, 67.6),
        (84.3, 66.5, 85.2, 78.6),
    ),
    ("max_box_acc", "cub", "fcam"): _rows(
        (87.3, 82.0, 90.3, 86.5),
        (87.5, 84.4, 90.5, 87.4),
        (91.5, 84.6, 91.0, 89.0),
        (89.1, 86.8, 90.7, 88.8),
        (86.8, 84.4, 90.4, 88.8),
        (91.0, 85.3, 92.4, 89.7),
    ),
    ("pxap", "openimages", "cam"): _rows(
        (53.0, 62.7, 56.8, 57.5),
        (59.6, 63.9, 60.1, 61.2),
        (60.5, 64.0, 60.2, 61.5),
        (52.2, 61.7, 54.3, 56.0),
        (59.0, 63.9, 60.2, 61.0),
        (59.5, 63.5, 61.1, 61.3),
    ),
    ("pxap", "openimages", "fcam"): _rows(
        (67.8, 71.9, 72.1, 70.6),
        (68.6, 70.0, 70.9, 69.8),
        (64.8, 67.1, 66.3, 66.0),
        (60.3, 65.4, 64.4, 63.3),
        (68.7, 71.3, 70.4, 70.1),
        (64.3, 64.9, 65.3, 64.8),
    ),
    ("max_box_acc_v2", "cub", "cam"): _rows(
        (57.0, 54.4, 62.1, 57.8),
        (62.7, 57.1, 63.3, 61.0),
        (73.8, 60.7, 70.2, 68.2),
        (64.1, 59.7, 66.6, 63.4),
        (62.8, 56.7, 63.2, 60.9),
        (74.1, 62.6, 72.6, 69.7),
    ),
    ("max_box_acc_v2", "cub", "fcam"): _rows(
        (79.1, 71.2, 79.4, 76.5),
        (79.5, 76.2, 80.8, 78.5),
        (84.1, 73.1, 82.7, 79.9),
        (83.1, 74.0, 81.6, 79.5),
        (80.1, 70.6, 80.0, 76.9),
        (84.3, 73.9, 82.7, 80.3),
    ),
    ("top1_loc", "cub", "cam"): _rows(
        (33.5, 40.9, 47.8),
        (18.5, 41.6, 32.3),
        (20.8, 41.4, 34.7),
        (17.7, 44.4, 33.1),
        (18.5, 40.9, 48.3),
        (24.8, 43.9, 44.2),
    ),
    ("top1_loc", "cub", "fcam"): _rows(
        (44.0, 54.6, 59.1),
        (22.1, 56.1, 38.8),
        (23.2, 55.9, 39.0),
        (22.9, 57.3, 38.9),
        (22.0, 55.8, 59.3),
        (23.1, 56.4, 47.7),
    ),
    ("top5_loc", "cub", "cam"): _rows(
        (52.7, 54.8, 66.5),
        (41.7, 56.2, 56.4),
        (47.5, 56.8, 61.4),
        (40.2, 60.2, 57.7),
        (41.7, 55.2, 67.3),
        (47.8, 59.7, 70.3),
    ),
    ("top5_loc", "cub", "fcam"): _rows(
        (70.1, 73.8, 82.6),
        (50.0, 75.4, 68.5),
        (52.0, 76.0, 68.9),
        (51.2, 77.6, 68.6),
        (49.6, 75.3, 82.7),
        (51.9, 76.6, 76.1),
    ),
}

CLASSIFICATION: dict[str, dict[str, Row]] = {
    "cub": _rows(
        (49.3, 65.5, 65.1, 59.9),
        (24.8, 65.4, 42.2, 44.1),
        (24.8, 65.2, 42.2, 44.0),
        (24.8, 65.3, 42.2, 44.1),
        (24.8, 65.4, 65.1, 51.7),
        (24.8, 65.0, 51.2, 47.0),
    ),
    "openimages": _rows(
        (69.1, 61.2, 73.2, 67.8),
        (69.0, 54.0, 72.4, 65.1),
        (70.3, 69.6, 72.3, 70.7),
        (69.0, 54.0, 67.0, 63.3),
        (69.0, 69.4, 72.0, 70.1),
        (70.3, 53.9, 72.2, 65.4),
    ),
}
"""Top-1 classification of the same classifiers; they were selected by localization."""

ABLATION: dict[str, dict[str, Row]] = {
    "cub": {
        "SR": Row(84.2, 73.0, 82.2, 79.8),
        "SR + ASC": Row(82.9, 74.1, 83.2, 80.0),
        "SR + CRF": Row(84.6, 78.9, 86.1, 83.2),
        "SR + CRF + ASC": Row(87.3, 82.0, 90.3, 86.5),
    },
    "openimages": {
        "SR": Row(64.5, 64.1, 63.8, 64.1),
        "SR + ASC": Row(63.9, 63.4, 62.0, 63.1),
        "SR + CRF": Row(66.3, 68.3, 67.5, 67.3),
        "SR + CRF + ASC": Row(67.8, 71.9, 72.1, 70.6),
    },
}
"""Terms of the loss with seeds from CAM*: SR sampling regions, CRF, ASC absolute size constraint."""

CENTER = {("max_box_acc", "cub"): 59.7, ("pxap", "openimages"): 45.8, ("max_box_acc_v2", "cub"): 59.7}
"""The centre-Gaussian baseline as printed."""

FOOTNOTES: dict[tuple[str, str, str, str], str] = {
    ("max_box_acc", "cub", "fcam", "xgradcam"): "printed 88.8; the mean of its cells is 87.2",
    ("max_box_acc", "cub", "fcam", "layercam"): "printed 89.7; the mean of its cells is 89.6",
    ("max_box_acc_v2", "cub", "fcam", "gradcam"): "printed 78.5; the mean of its cells is 78.8",
}
"""Printed means that their own cells contradict, rounded or cut off, by (metric, data set, kind of map, method)."""

CENTER_FOOTNOTE = (
    "the MaxBoxAccV2 table prints 59.7 for the centre Gaussian, its value under MaxBoxAcc; "
    "MaxBoxAccV2 recomputed from the official boxes is 56.97"
)
OTHER_FOOTNOTES = (
    CENTER_FOOTNOTE,
    'the captions of the prediction figures swap σ and τ ("τ=50, σ=0.8")',
    '"averaged over three sizes σ" means three overlap thresholds',
    'several "+ ours" rows cite CAM instead of their own method',
)


def printed(
    metric: str, data_set: str, backbone: str, method: str, kind: str, ablation: str = ""
) -> float | None:
    """The number that the paper prints for one run of its grid, or None where it prints none.

    Args:
        metric: name in `metrics.json`; "max_box_acc" is the one at overlap 0.5.
        data_set: "cub" or "openimages".
        backbone: one of `BACKBONES`.
        method: one of `METHODS`.
        kind: "cam" or "fcam".
        ablation: terms of the loss, a key of `ABLATION`; "" is the whole loss.
    """
    if backbone not in BACKBONES:
        return None
    if ablation and kind == "fcam":
        if method != "cam" or metric != HEADLINE.get(data_set):
            return None
        row = ABLATION[data_set].get(ablation)
    else:
        row = MAIN.get((metric, data_set, kind), {}).get(method)
    return None if row is None else row.cell(backbone)


def printed_mean(metric: str, data_set: str, method: str, kind: str) -> tuple[float | None, str]:
    """The mean over backbones that the paper prints, and the footnote that it needs, if any."""
    row = MAIN.get((metric, data_set, kind), {}).get(method)
    note = FOOTNOTES.get((metric, data_set, kind, method), "")
    return (None if row is None else row.mean), note
