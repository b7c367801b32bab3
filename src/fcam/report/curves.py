"""One pass over a split with a finished model: what the curves, the distributions and the gallery need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fcam.attachment.attached import needs_code
from fcam.data import EvalTransform, LocalizationDataset, open_dataset
from fcam.errors import FcamError
from fcam.metrics.box_acc import best_iou, threshold_grid
from fcam.metrics.histogram import score_edges, score_histograms
from fcam.metrics.pxap import average_precision, precision_recall
from fcam.model import FCAM
from fcam.processes import process_state
from fcam.report.collect import Finished
from fcam.split_maps import KINDS, MapOptions, maps_of

THRESHOLDS = 1000
EXACT = 200
"""Overlaps are kept as floor(200 IoU) in 8 bits: 0.3, 0.5 and 0.7 fall on whole numbers."""
MEDIAN = 5
"""Width of the median filter over the distributions, as in the authors' figure."""

Measure = Literal["box", "mask"]
OnBatch = Callable[[dict[str, Any], dict[str, Tensor], Tensor], None]


@dataclass
class MapCurves:
    """What one kind of map adds up to over the split.

    `overlap` (N, T) uint8 is floor(200 IoU) of every image at every threshold; `pixels` (2, T + 2) counts of
    map values over background and foreground; `activations` (T,) counts of all map values.
    """

    overlap: np.ndarray
    pixels: np.ndarray = field(default_factory=lambda: np.zeros((2, THRESHOLDS + 2), np.int64))
    activations: np.ndarray = field(default_factory=lambda: np.zeros(THRESHOLDS, np.int64))

    def accuracy(self, counted: np.ndarray, iou: float) -> np.ndarray:
        """Percentage of the images `counted` (N,) whose overlap is at least `iou`, at every threshold (T,)."""
        return 100 * (self.overlap[counted] >= round(EXACT * iou)).mean(0)

    def precision_recall(self) -> tuple[np.ndarray, np.ndarray]:
        """Precision and recall in percent of the pixels whose value reaches each threshold, (T,) each."""
        background, foreground = (row[::-1].cumsum() for row in self.pixels)
        precision, recall = precision_recall(foreground, background)
        return 100 * precision[::-1][:THRESHOLDS], 100 * recall[::-1][:THRESHOLDS]

    def pxap(self) -> float | None:
        """PxAP in percent; None without masks."""
        background, foreground = (row[::-1].cumsum() for row in self.pixels)
        return average_precision(*precision_recall(foreground, background)) if foreground[-1] else None

    def distribution(self) -> np.ndarray:
        """Percentage of all pixels per bin of width 1/T, after a median filter of width 5 (T,)."""
        share = 100 * self.activations / max(1, self.activations.sum())
        padded = np.pad(share, MEDIAN // 2, mode="edge")
        return np.median(np.lib.stride_tricks.sliding_window_view(padded, MEDIAN), axis=-1)


@dataclass
class Survey:
    """A model's pass over a split.

    `measure` says what overlaps are those of: boxes, at thresholds relative to each map's maximum, or masks, at
    thresholds of the values themselves. `counted` (N,) images whose truth shows an object; `predicted` (N,) class.
    """

    dataset: LocalizationDataset
    measure: Measure
    maps: dict[str, MapCurves]
    counted: np.ndarray
    predicted: np.ndarray
    thresholds: dict[str, float]
    grid: np.ndarray = field(default_factory=lambda: threshold_grid(THRESHOLDS))

    def iou(self, kind: str, threshold: float | None = None) -> np.ndarray:
        """Overlap of every image at `threshold`, by default the one chosen on val; (N,) in [0, 1], cut to 1/200."""
        tau = self.thresholds[kind] if threshold is None else threshold
        return self.maps[kind].overlap[:, int(np.abs(self.grid - tau).argmin())] / EXACT

    def worst(self, count: int, kind: str = "fcam") -> list[int]:
        """Positions of the images with the smallest overlap, the smallest first; ties in the split's order."""
        order = np.argsort(self.iou(kind), kind="stable")
        return [int(i) for i in order if self.counted[i]][:count]


def open_run(run: Finished, data: str, split: str, classifier: str = "") -> tuple[FCAM, LocalizationDataset]:
    """Load what a run needs to be looked at again; raises `FcamError` when the model or the data is gone.

    `classifier` is "module.path:factory" for a model made from somebody's own code, and of no concern to others.
    """
    root = data or run.config.data
    if not root or not Path(root).is_dir():
        raise FcamError(f"its data set {root or '(no path)'} is not there any more; say where with --data")
    transform = EvalTransform(run.config.crop)
    dataset = open_dataset(root, split, transform=transform, localization=True)
    if len(dataset) != run.report.get("images", len(dataset)):
        raise FcamError(
            f"{root} has {len(dataset)} images on {split} but the numbers are of {run.report['images']}; "
            "it is another data set, or it has changed"
        )
    if not (dataset.has_boxes or dataset.has_masks):
        raise FcamError(f"the {split} split of {root} has neither boxes nor masks to compare maps with")
    own_code = classifier if classifier and needs_code(run.model) else None
    model = FCAM.from_pretrained(run.root, own_code)
    if model.classifier.num_classes != len(dataset.classes):
        raise FcamError(
            f"its model knows {model.classifier.num_classes} classes and {root} has {len(dataset.classes)}; say with --data "
            "where the data set of its classes is"
        )
    return model.to(process_state().device).eval(), dataset


@torch.inference_mode()
def survey(
    run: Finished,
    model: FCAM,
    dataset: LocalizationDataset,
    on_batch: OnBatch | None = None,
    batch_size: int = 32,
    workers: int = 2,
) -> Survey:
    """Compute the maps of a split as evaluation does, and count.

    Args:
        on_batch: called with each collated batch, its maps by kind (B, H, W), and the positions of its images (B,).

    Raises:
        FcamError: an image that cannot be read, or a map with NaN.
    """
    kinds = KINDS if model.metadata.get("decoder_trained", True) else KINDS[:1]
    count = len(dataset)
    measure: Measure = "box" if dataset.has_boxes else "mask"
    thresholds = {kind: chosen_threshold(run.report["maps"].get(kind, {}), measure) for kind in kinds}
    curves = {kind: MapCurves(np.zeros((count, THRESHOLDS), np.uint8)) for kind in kinds}
    found = Survey(dataset, measure, curves, np.zeros(count, np.bool_), np.zeros(count, np.int64), thresholds)
    own = run.config
    options = MapOptions(own.method, own.variant, batch_size, workers=workers, seed=own.seed)
    for batch, maps, logits in maps_of(model, dataset, kinds, options, f"report {run.name}"):  # type: ignore[arg-type]
        found.predicted[batch["index"].numpy()] = logits.argmax(1).cpu().numpy()
        _count(found, batch, maps)
        if on_batch is not None:
            on_batch(batch, maps, batch["index"])
    return found


def _count(found: Survey, batch: dict[str, Any], maps: dict[str, Tensor]) -> None:
    places = batch["index"].numpy()
    # An image whose truth shows no object would stand for a failure, whatever its map is.
    truth = batch["boxes"] if found.measure == "box" else [mask[mask == 1] for mask in batch["mask"]]
    kept = [i for i, own in enumerate(truth) if len(own)]
    found.counted[places[kept]] = True
    for kind, batch_maps in maps.items():
        array, own = batch_maps.cpu().numpy(), found.maps[kind]
        own.activations += np.bincount(
            np.minimum((array * THRESHOLDS).astype(np.int64), THRESHOLDS - 1).ravel(), minlength=THRESHOLDS
        )
        if found.measure == "box" and kept:
            overlap = best_iou(array[kept], [batch["boxes"][i] for i in kept], found.grid)
            own.overlap[places[kept]] = np.floor(EXACT * overlap + 1e-9)
        if "mask" in batch:
            tables = score_histograms(array, batch["mask"], score_edges(THRESHOLDS))
            own.pixels += tables.sum(0)
            if found.measure == "mask":
                own.overlap[places] = np.floor(EXACT * _pixel_overlap(tables) + 1e-9)


def _pixel_overlap(tables: np.ndarray) -> np.ndarray:
    """IoU of `value >= tau` with the mask from histograms (B, 2, T + 2), at every threshold; (B, T)."""
    false, true = (tables[:, row, ::-1].cumsum(-1)[:, ::-1][:, :THRESHOLDS] for row in (0, 1))
    return true / np.maximum(1, true[:, :1] + false)


def chosen_threshold(row: dict[str, Any], measure: Measure) -> float:
    """The threshold chosen on val, or the split's own best one where nothing was carried over."""
    found = (row.get("transferred") or row).get("threshold") or {}
    value = (found.get("max_box_acc") or {}).get("0.5") if measure == "box" else found.get("piou")
    return 0.5 if value is None else float(value)


def deviation(run: Finished, found: Survey) -> str:
    """A sentence that warns where this pass disagrees with the numbers in the tables; empty when it agrees."""
    for kind, own in found.maps.items():
        row = run.report["maps"].get(kind, {})
        by_box = (
            own.accuracy(found.counted, 0.5).max() if found.measure == "box" and found.counted.any() else None
        )
        compared = (
            ("box@0.5", by_box, (row.get("max_box_acc") or {}).get("0.5")),
            ("PxAP", own.pxap(), row.get("pxap")),
        )
        for title, now, printed in compared:
            if now is not None and printed is not None and abs(now - printed) > 0.5:
                return (
                    f"{run.name}: computed anew, {title} of {kind} is {now:.1f}, the table says {printed:.1f}; "
                    "the model, the data or the version has changed since it was evaluated."
                )
    return ""


def best_at(values: Sequence[float] | np.ndarray, grid: np.ndarray) -> tuple[float, float]:
    """Where a curve is highest: threshold and value."""
    place = int(np.nanargmax(values))
    return float(grid[place]), float(np.asarray(values)[place])
