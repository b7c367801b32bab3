"""What an evaluation counts and how it is reported: one card per split, one row per kind of map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import MeanMetric

from fcam.data import LocalizationDataset
from fcam.metrics import MaxBoxAcc, MaxBoxAccV2, PIoU, PxAP, TopKLocalization, label_rank

IOU = (0.3, 0.5, 0.7)
HALF = IOU.index(0.5)
TITLES = {"cam": "CAM", "fcam": "F-CAM", "product": "F-CAM × CAM", "center": "centre Gaussian"}
MASKS = "objects are grey above 0, and fcam data check names the masks"
NUMBERS = ("max_box_acc", "max_box_acc_v2", "top1_loc", "top5_loc", "pxap", "piou")


def title(kind: str) -> str:
    """What a kind of map is called in a table, and how it was looked at: "F-CAM, flip, zoom"."""
    base, *ways = kind.split("+")
    return ", ".join([TITLES[base], *ways])


class BoxScores:
    """Box metrics of one kind of map over one split; images without a true box are left out.

    Args:
        device: where states live.
        classes: whether logits will be given, for top-1 and top-5 localization.
    """

    def __init__(self, device: torch.device, classes: bool = True) -> None:
        self.box = MaxBoxAcc(iou=IOU).to(device)
        self.box_v2 = MaxBoxAccV2(iou=IOU).to(device)
        self.topk = TopKLocalization(topk=(1, 5), iou=(0.5,)).to(device) if classes else None

    def update(
        self, maps: Tensor, logits: Tensor | None, labels: Tensor | None, boxes: Sequence[Tensor]
    ) -> None:
        """Take in maps (B, H, W), logits (B, K), labels (B,) and B sets of boxes."""
        kept = [i for i, own in enumerate(boxes) if len(own)]
        if not kept:
            return
        boxes = [boxes[i] for i in kept]
        self.box.update(maps[kept], boxes)
        self.box_v2.update(maps[kept], boxes)
        if self.topk is not None and logits is not None and labels is not None:
            self.topk.update(maps[kept], boxes, logits[kept], labels[kept])

    def thresholds(self) -> dict[str, Any]:
        """The thresholds that are best on this split."""
        return {
            "max_box_acc": _by_iou(self.box.plateau_threshold()),
            "max_box_acc_v2": _by_iou(self.box_v2.plateau_threshold()),
            **_top(self.topk and self.topk.plateau_threshold()),
        }

    def best(self) -> dict[str, Any]:
        """Percentages at the split's own best thresholds."""
        return {
            "max_box_acc": _by_iou(self.box.compute()),
            "max_box_acc_v2": self.box_v2.compute().item(),
            **_top(self.topk and self.topk.compute()),
        }

    def at(self, other: BoxScores) -> dict[str, Any]:
        """Percentages at the thresholds that were best on another split."""
        top = self.topk and other.topk and self.topk.at_threshold(other.topk.plateau_threshold())
        return {
            "max_box_acc": _by_iou(self.box.at_threshold(other.box.plateau_threshold())),
            "max_box_acc_v2": self.box_v2.at_threshold(other.box_v2.plateau_threshold()).mean().item(),
            **_top(top),
        }


class PixelScores:
    """Pixel metrics of one kind of map over one split; where no mask shows an object there are none."""

    def __init__(self, device: torch.device) -> None:
        self.pxap = PxAP().to(device)
        self.piou = PIoU().to(device)

    def update(self, maps: Tensor, masks: Tensor) -> None:
        """Take in maps (B, H, W) and masks (B, H, W) with 255 for ignored pixels."""
        self.pxap.update(maps, masks)
        self.piou.update(maps, masks)

    def thresholds(self) -> dict[str, Any]:
        """The threshold that is best on this split; PxAP has none."""
        return {"piou": round(self.piou.plateau_threshold().item(), 6)} if self.piou.objects() else {}

    def best(self) -> dict[str, Any]:
        """Percentages over all thresholds, and at the split's own best one."""
        if not self.piou.objects():
            return {}
        return {"pxap": self.pxap.compute().item(), "piou": self.piou.compute().item()}

    def at(self, other: PixelScores) -> dict[str, Any]:
        """Percentage at the threshold that was best on another split."""
        if not (self.piou.objects() and other.piou.objects()):
            return {}
        return {"piou": self.piou.at_threshold(other.piou.plateau_threshold()).item()}


class MapScores:
    """Box and pixel metrics of one kind of map, as far as the split has the truth for them."""

    def __init__(self, has_boxes: bool, has_masks: bool, device: torch.device, classes: bool = True) -> None:
        self.boxes = BoxScores(device, classes) if has_boxes else None
        self.pixels = PixelScores(device) if has_masks else None

    def update(
        self, maps: Tensor, logits: Tensor | None, labels: Tensor | None, batch: dict[str, Any]
    ) -> None:
        """Take in a batch of maps (B, H, W) with its logits, labels and truth."""
        if self.boxes is not None:
            self.boxes.update(maps, logits, labels, batch["boxes"])
        if self.pixels is not None:
            self.pixels.update(maps, batch["mask"])

    def thresholds(self) -> dict[str, Any]:
        """Best thresholds on this split, by metric."""
        found: dict[str, Any] = {}
        for part in filter(None, (self.boxes, self.pixels)):
            found |= part.thresholds()
        return found

    def report(self, carried: MapScores | None = None) -> dict[str, Any]:
        """Percentages at the split's own best thresholds, and at those of `carried` under "transferred"."""
        row: dict[str, Any] = dict.fromkeys(NUMBERS)
        moved: dict[str, Any] = {}
        for part, other in (
            (self.boxes, carried and carried.boxes),
            (self.pixels, carried and carried.pixels),
        ):
            if part is not None:
                row |= part.best()
            if part is not None and other is not None:
                moved |= part.at(other)  # type: ignore[arg-type]
        row["threshold"] = self.thresholds()
        row["transferred"] = (
            {**moved, "threshold": carried.thresholds()} if carried is not None and moved else None
        )
        return row


def _by_iou(values: Tensor) -> dict[str, float]:
    return {f"{iou:g}": round(value, 6) for iou, value in zip(IOU, values.tolist(), strict=True)}


def _top(values: Tensor | None) -> dict[str, float]:
    """Row of top-1 and top-5 localization from (2, 1); nothing where classes are unknown."""
    return {} if values is None else dict(zip(("top1_loc", "top5_loc"), values[:, 0].tolist(), strict=True))


class Scorecard:
    """All counts of one pass over a split.

    Args:
        dataset: says whether there are boxes and masks.
        kinds: names of kinds of map, as in `TITLES` or `Ways.kind`.
        device: where states live, so that processes can add them up.
    """

    def __init__(self, dataset: LocalizationDataset, kinds: Sequence[str], device: torch.device) -> None:
        self.dataset = dataset
        self.maps = {kind: MapScores(dataset.has_boxes, dataset.has_masks, device) for kind in kinds}
        self.top1, self.top5 = MeanMetric().to(device), MeanMetric().to(device)

    def update(self, maps: dict[str, Tensor], logits: Tensor, batch: dict[str, Any]) -> None:
        """Take in a batch: maps by kind (B, H, W), logits (B, K), and the collated items."""
        labels = batch["label"].to(logits.device)
        rank = label_rank(logits, labels)
        self.top1.update((rank < 1).float())
        self.top5.update((rank < 5).float())
        for kind, scores in self.maps.items():
            scores.update(maps[kind], logits, labels, batch)

    def thresholds(self) -> dict[str, Any]:
        """Best thresholds by kind of map."""
        return {kind: scores.thresholds() for kind, scores in self.maps.items()}

    def value(self, kind: str, metric: str) -> float | None:
        """One number by its name in the configuration; None where the split lacks the truth for it."""
        scores = self.maps[kind]
        if metric == "top1":
            return 100 * self.top1.compute().item()
        if metric == "pxap":
            pixels = scores.pixels
            return pixels.pxap.compute().item() if pixels is not None and pixels.pxap.objects() else None
        if scores.boxes is None:
            return None
        if metric == "max_box_acc_v2":
            return scores.boxes.box_v2.compute().item()
        return scores.boxes.box.compute()[HALF].item()

    def report(self, split: str, carried_from: Scorecard | None = None) -> dict[str, Any]:
        """The content of `metrics.json`; percentages."""
        rows = {}
        for kind, scores in self.maps.items():
            rows[kind] = scores.report(carried_from.maps.get(kind) if carried_from is not None else None)
        classification = {"top1": 100 * self.top1.compute().item(), "top5": 100 * self.top5.compute().item()}
        return _report(split, self.dataset, classification, rows)


def report_of_maps(
    split: str, dataset: LocalizationDataset, scores: MapScores, carried: MapScores | None
) -> dict[str, Any]:
    """The content of `metrics.json` for maps that came without a classifier."""
    return _report(split, dataset, {"top1": None, "top5": None}, {"cam": scores.report(carried)})


def _report(
    split: str, dataset: LocalizationDataset, classification: dict[str, Any], rows: dict[str, Any]
) -> dict[str, Any]:
    convention = "reference (wsolevaluation); thresholds are relative to each map's maximum, that of PIoU is the value itself"
    return {
        "split": split,
        "images": len(dataset),
        "images_with": {"boxes": len(dataset.split.with_boxes()), "masks": len(dataset.split.with_masks())},
        "convention": convention,
        "classification": classification,
        "maps": rows,
    }


def images_scored(report: dict[str, Any]) -> str:
    """How many images a report is of, and on how many of them its metrics stand where others have no truth."""
    images = report["images"]
    fewer = [f"{n} with {kind}" for kind, n in report.get("images_with", {}).items() if 0 < n < images]
    return ", ".join([f"{images} images", *fewer])


def no_object(report: dict[str, Any]) -> str:
    """Say that masks are there and show nothing, so that there are no pixel metrics; empty where that is not so."""
    if not report["images_with"]["masks"] or any(row["pxap"] is not None for row in report["maps"].values()):
        return ""
    return f"no mask of the {report['split']} split shows an object, so there are no pixel metrics; {MASKS}"


def table(report: dict[str, Any]) -> list[list[str]]:
    """The report as rows of text, the header first: kinds of map down, metrics across, both threshold rules.

    box@d is MaxBoxAcc at overlap d, V2 MaxBoxAccV2, top-1 and top-5 localization at overlap 0.5.
    """
    boxes = [f"box@{iou:g}" for iou in IOU]
    header = ["map", "threshold from", *boxes, "V2", "top-1", "top-5", "PxAP", "PIoU"]
    rows = [header]
    for kind, row in report["maps"].items():
        rows.append([title(kind), f"{report['split']}, its best", *_cells(row)])
        if row["transferred"]:
            rows.append([title(kind), "val, carried over", *_cells(row["transferred"])])
    return rows


def _cells(row: dict[str, Any]) -> list[str]:
    boxes = row.get("max_box_acc") or {}
    numbers = [boxes.get(f"{iou:g}") for iou in IOU] + [row.get(name) for name in NUMBERS[1:]]
    return ["-" if number is None else f"{number:.1f}" for number in numbers]
