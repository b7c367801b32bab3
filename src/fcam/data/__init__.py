"""Data sets for weakly supervised object localization: opening, transforming, batching, checking."""

from fcam.data.dataset import EpochSampler, LocalizationDataset, classes, collate, open_dataset, splits
from fcam.data.find import find_images
from fcam.data.images import open_image
from fcam.data.transforms import EvalTransform, TrainTransform

__all__ = [
    "EpochSampler",
    "EvalTransform",
    "LocalizationDataset",
    "TrainTransform",
    "classes",
    "collate",
    "find_images",
    "open_dataset",
    "open_image",
    "splits",
]
