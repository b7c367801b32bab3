"""Heat maps on disk, one `.npy` per image in wsolevaluation's layout: written from here, scored from anywhere."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fcam import files
from fcam.data import LocalizationDataset, open_dataset, splits
from fcam.data.ids import leads_out
from fcam.data.transforms import EvalTransform, Geometry
from fcam.errors import FcamError, cut
from fcam.scores import MapScores, report_of_maps

MapType = Literal["float16", "float32"]


def write_maps(
    folder: Path, maps: dict[str, Tensor], image_ids: list[str], dtype: MapType = "float16"
) -> None:
    """Write `<folder>/<kind>/<image id>.npy` for a batch: `dtype`, (H, W), in [0, 1]; raises as `check_ids` does."""
    check_ids(image_ids)
    for kind, batch in maps.items():
        for image_id, array in zip(image_ids, batch.cpu().numpy(), strict=True):
            files.write_array(folder / kind / f"{image_id}.npy", array.astype(dtype))


def check_ids(image_ids: Iterable[str]) -> None:
    """Raise `FcamError` for an id whose map would lie outside the folder of its kind, where all kinds could be one file."""
    for image_id in image_ids:
        if leads_out(image_id):
            raise FcamError(
                f"the map of image {cut(image_id)} would lie outside the folder of maps; write the lists' ids relative to a "
                "folder above all photos, without .., and give that as --data"
            )


def evaluate_map_files(maps: Path, metadata: Path | None, split: str, data: str = "") -> dict[str, Any]:
    """Score a folder of heat maps against the boxes or masks of a split; photos are not needed for boxes.

    Args:
        maps: `<image id>.npy` (or the id without its suffix), each (H, W) floating point in [0, 1]; where those of
            the split are in a folder named after it, they are taken from there.
        metadata: folder of wsolevaluation's lists; None looks in `data`.
        split: split to score. With maps of `val` there too, thresholds are carried over from them.
        data: root of the data set, for masks.

    Returns:
        the content of `metrics.json`, with the kind of map named "cam".

    Raises:
        FcamError: a missing, misshapen, non-finite or out-of-range map, or one outside `maps`, with its image id; no
            number is ever computed on a part of the split.
    """
    root = data or (str(metadata.parent) if metadata is not None else "")
    if not root:
        raise FcamError(
            "--maps needs --metadata (folder of val/ and test/ lists) or --data (folder of the data set)"
        )
    cards, truths = {}, {}
    for name in dict.fromkeys(("val", split)):
        if name != split and name not in splits(root, metadata=metadata):
            continue
        truths[name] = truth = open_dataset(
            root, name, transform=EvalTransform(), localization=True, metadata=metadata
        )
        places = [folder for folder in (maps / name, maps) if _holds(folder, truth.image_ids)]
        if not places and name != split:
            continue
        folder = maps / name if (maps / name).is_dir() else maps
        cards[name] = _score(places[0] if places else folder, truth)
    carried = cards.get("val") if split != "val" else None
    return report_of_maps(split, truths[split], cards[split], carried)


def _holds(folder: Path, image_ids: Sequence[str]) -> bool:
    """Whether maps of these images are in the folder; its name does not tell, since ids may begin with `test/` or `val/`."""
    inside = (image_id for image_id in image_ids if not leads_out(image_id))
    return any(path.is_file() for image_id in inside for path in _named(folder, image_id))


def _named(folder: Path, image_id: str) -> tuple[Path, Path]:
    """What the map of an image may be called."""
    return folder / f"{image_id}.npy", (folder / image_id).with_suffix(".npy")


def _score(folder: Path, truth: LocalizationDataset) -> MapScores:
    card = MapScores(truth.has_boxes, truth.has_masks, torch.device("cpu"), classes=False)
    if card.boxes is None and card.pixels is None:
        raise FcamError(f"the {truth.split.name} split has neither boxes nor masks to score maps against")
    for index, array in enumerate(_maps(folder, truth.image_ids)):
        height, width = array.shape
        item = truth.truth(index, Geometry((width, height), (0, 0, width, height)))
        batch = {
            "boxes": [item["boxes"]] if "boxes" in item else None,
            "mask": item["mask"][None] if "mask" in item else None,
        }
        card.update(torch.from_numpy(array)[None], None, None, batch)
    return card


def _maps(folder: Path, image_ids: list[str]) -> Iterator[np.ndarray]:
    """Every map of the split in list order, checked."""
    if not folder.is_dir():
        raise FcamError(f"there is no folder of heat maps at {folder}; check the path")
    check_ids(image_ids)
    for image_id in image_ids:
        named = _named(folder, image_id)
        path = next((p for p in named if p.is_file()), None)
        if path is None:
            raise FcamError(
                f"the map of image {image_id} is missing: neither {named[0]} nor {named[1]} is there"
            )
        try:
            with open(path, "rb") as stream, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # numpy remarks on the headers of old versions
                array = np.lib.format.read_array(stream, allow_pickle=False)
        # numpy parses the header as Python: damage shows as any error of its tokenizer, parser or allocator.
        except Exception as error:
            raise FcamError(
                f"the map {path} of image {image_id} cannot be read: {cut(error)}; write it again"
            ) from error
        yield _checked(array, image_id, path)


def _checked(array: np.ndarray, image_id: str, path: Path) -> np.ndarray:
    if array.ndim != 2 or not array.size or not np.issubdtype(array.dtype, np.floating):
        raise FcamError(
            f"the map of image {image_id} is {array.dtype} {array.shape}, not floating point (H, W): {path}"
        )
    if not np.isfinite(array).all():
        raise FcamError(
            f"the map of image {image_id} holds NaN or infinity: {path}; normalise constant maps to zeros"
        )
    low, high = float(array.min()), float(array.max())
    if low < 0 or high > 1:
        raise FcamError(
            f"the map of image {image_id} spans {low:.4g} to {high:.4g}, outside [0, 1]: {path}; normalise it"
        )
    # float16 is widened exactly; float64 keeps the precision that the benchmark quantises at.
    return array if array.dtype == np.float64 else array.astype(np.float32)
