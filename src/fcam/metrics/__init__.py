"""Localization metrics of the WSOL benchmark, exact, as `torchmetrics.Metric` classes over pure functions."""

from fcam.boxes import box_iou, from_map, scale_boxes
from fcam.metrics.box_acc import MaxBoxAcc, MaxBoxAccV2, best_iou, threshold_grid
from fcam.metrics.histogram import score_histograms
from fcam.metrics.piou import PIoU
from fcam.metrics.pxap import PixelScores, PrecisionRecall, PxAP, average_precision, precision_recall
from fcam.metrics.sweep import best_iou_of_all, best_iou_of_largest, largest_boxes
from fcam.metrics.topk import TopKLocalization, label_rank

__all__ = [
    "MaxBoxAcc",
    "MaxBoxAccV2",
    "PIoU",
    "PixelScores",
    "PrecisionRecall",
    "PxAP",
    "TopKLocalization",
    "average_precision",
    "best_iou",
    "best_iou_of_all",
    "best_iou_of_largest",
    "box_iou",
    "from_map",
    "label_rank",
    "largest_boxes",
    "precision_recall",
    "scale_boxes",
    "score_histograms",
    "threshold_grid",
]
