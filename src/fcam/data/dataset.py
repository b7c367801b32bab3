"""One dataset class over every layout, with augmentation that depends on (seed, epoch, index) only."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import BatchSampler, Dataset, Sampler

from fcam.data import folder, wsol
from fcam.data.images import image_size, open_image, open_mask
from fcam.data.split import MaskFiles, Split
from fcam.data.transforms import Geometry, Transform, identity
from fcam.errors import FcamError

IGNORE = 255
"""Value of mask pixels that no metric counts."""

# First word of the seed sequences, so that the order of images and their augmentation never share random
# numbers.
_ORDER, _AUGMENT = 1, 2


class LocalizationDataset(Dataset[dict[str, Any]]):
    """The images of one split with their class and, if asked for, their boxes and masks.

    Items are dicts: "image" uint8 (3, h, w), "label" int, "index" int (position in the split), "image_id"
    str, and with localization "boxes" int64 (n, 4) x0, y0, x1, y1 in pixels of the transformed image, "mask"
    uint8 (h, w) with 0 background, 1 object, 255 ignored. `image_ids`, `labels` and `classes` are lists;
    `has_boxes` and `has_masks` say which keys the items carry. An unreadable file raises `FcamError` naming
    it.
    """

    def __init__(self, split: Split, transform: Transform | None = None, seed: int = 0) -> None:
        self.split = split
        self.transform = transform
        self.seed = _checked_seed(seed)
        self.classes = split.classes
        self.labels = split.labels
        self.image_ids = split.image_ids
        self.has_boxes = split.boxes is not None
        self.has_masks = split.masks is not None
        # In shared memory, so that loader workers which outlive an epoch see the next one.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return len(self.image_ids)

    def __getitem__(self, index: int) -> dict[str, Any]:
        index = range(len(self))[index]
        image = self.photo(index)
        geometry = self._geometry(index, image.size)
        return {
            "image": geometry.image(image),
            "label": self.labels[index],
            "index": index,
            "image_id": self.image_ids[index],
            **self.truth(index, geometry, image.size),
        }

    def truth(self, index: int, geometry: Geometry, size: tuple[int, int] | None = None) -> dict[str, Any]:
        """Return "boxes" (n, 4) and "mask" (h, w) of an image, as far as the split has them, moved by
        `geometry`.

        `size` (w, h) is the photo's, used where the lists do not say what their boxes refer to; without it
        the photo is asked.
        """
        image_id, found = self.image_ids[index], {}
        if self.split.boxes is not None:
            boxes = self.split.boxes.get(image_id, np.zeros((0, 4)))
            size = self.split.sizes.get(image_id) or size or image_size(self.path(index), self.split.exif)
            found["boxes"] = torch.from_numpy(geometry.boxes(boxes, size))
        if self.split.masks is not None:
            found["mask"] = _mask(self.split.masks.get(image_id, []), geometry)
        return found

    def photo(self, index: int) -> Image.Image:
        """Open the image at `index` as it is, RGB, at its own size."""
        return open_image(self.path(index), exif=self.split.exif)

    def path(self, index: int) -> Path:
        """Return the path of the image file at `index`."""
        return self.split.root / self.image_ids[index]

    def set_epoch(self, epoch: int) -> None:
        """Choose the augmentation of `epoch`, here and in loader workers that are already running."""
        self._epoch.fill_(epoch)

    def _geometry(self, index: int, size: tuple[int, int]) -> Geometry:
        if self.transform is None:
            return identity(size)
        rng = np.random.default_rng((_AUGMENT, self.seed, int(self._epoch), index))
        return self.transform.geometry(size, rng)


class EpochSampler(Sampler[int]):
    """Indices 0..n-1 in an order that depends on (seed, epoch) alone, so that a resumed run sees the same
    batches.

    `source` is n or a dataset; `set_epoch` of the sampler then also sets the dataset's epoch, so that one
    call moves order and augmentation on together. Without `shuffle` the order is that of the list.
    """

    def __init__(self, source: int | LocalizationDataset, seed: int = 0, shuffle: bool = True) -> None:
        self.dataset = None if isinstance(source, int) else source
        self.n = source if isinstance(source, int) else len(source)
        self.seed = _checked_seed(seed)
        self.shuffle = shuffle
        self.epoch = 0

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        if not self.shuffle:
            return iter(range(self.n))
        rng = np.random.default_rng((_ORDER, self.seed, self.epoch))
        return iter(rng.permutation(self.n).tolist())

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of `epoch`, and the augmentation too when the sampler was made from a dataset."""
        self.epoch = epoch
        if self.dataset is not None:
            self.dataset.set_epoch(epoch)


class NoBatchOfOne(BatchSampler):
    """Batches of the indices of `sampler` in their order; a last batch that would hold one image joins the batch before.

    A network that normalises pooled features cannot be trained on a single image, of which there is no variance.
    """

    def __init__(self, sampler: EpochSampler, batch_size: int) -> None:
        super().__init__(sampler, batch_size, drop_last=False)
        self._joined = batch_size > 1 and len(sampler) % batch_size == 1 and len(sampler) > 1

    def __len__(self) -> int:
        return super().__len__() - self._joined

    def __iter__(self) -> Iterator[list[int]]:
        if not self._joined:
            return super().__iter__()
        *batches, single = super().__iter__()
        batches[-1] = [*batches[-1], *single]
        return iter(batches)


def open_dataset(
    root: str | os.PathLike[str],
    split: str,
    transform: Transform | None = None,
    localization: bool = False,
    seed: int = 0,
    *,
    metadata: str | os.PathLike[str] | None = None,
) -> LocalizationDataset:
    """Open the split "train", "val" or "test" of the data set below `root`, whatever its layout
    (docs/data.md).

    Boxes and masks are read only with `localization`, so that weak supervision stays weak. `seed` decides the
    augmentation together with the epoch. `metadata` names the folder of wsolevaluation's lists when it is not
    `root/metadata`. Raises `FcamError` for an unknown layout, a missing split or a malformed list.
    """
    folder_root = Path(root)
    if not folder_root.is_dir():
        raise FcamError(f"there is no data set at {folder_root}: it is not a folder; check the path")
    lists = wsol.metadata_folder(folder_root, metadata)
    if lists is not None:
        found = wsol.read(folder_root, split, lists, localization, own_lists=metadata is not None)
    else:
        found = folder.read(folder_root, split, localization)
    return LocalizationDataset(found, transform, seed)


def classes(root: str | os.PathLike[str], *, metadata: str | os.PathLike[str] | None = None) -> list[str]:
    """Return the class names of the data set below `root` in label order; raises `FcamError` as
    `open_dataset` does.
    """
    lists = wsol.metadata_folder(Path(root), metadata)
    return folder.class_names(Path(root)) if lists is None else wsol.class_names(Path(root), lists)


def splits(root: str | os.PathLike[str], *, metadata: str | os.PathLike[str] | None = None) -> list[str]:
    """Return the names of the splits that the data set below `root` has, in the order train, val, test."""
    if not Path(root).is_dir():
        raise FcamError(f"there is no data set at {root}: it is not a folder; check the path")
    lists = wsol.metadata_folder(Path(root), metadata)
    found = wsol.splits_in(lists) if lists is not None else folder.images_by_split(Path(root))
    return [name for name in ("train", "val", "test") if name in found]


def collate(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Stack items to a batch: "image" uint8 (B, 3, h, w), "label" and "index" int64 (B,), "image_id" list of
    str, "boxes" list of (n, 4), "mask" uint8 (B, h, w); the last two only when the items carry them.

    Raises `FcamError` when the images differ in size.
    """
    shapes = {tuple(item["image"].shape) for item in items}
    if len(shapes) != 1:
        raise FcamError(
            f"a batch needs images of one size, got {sorted(shapes)}; open the data set with a transform"
        )
    batch: dict[str, Any] = {
        "image": torch.stack([item["image"] for item in items]),
        "label": torch.tensor([item["label"] for item in items], dtype=torch.int64),
        "index": torch.tensor([item["index"] for item in items], dtype=torch.int64),
        "image_id": [item["image_id"] for item in items],
    }
    if "boxes" in items[0]:
        batch["boxes"] = [item["boxes"] for item in items]
    if "mask" in items[0]:
        batch["mask"] = torch.stack([item["mask"] for item in items])
    return batch


def _mask(files: list[MaskFiles], geometry: Geometry) -> torch.Tensor:
    """Union of the objects, then ignored pixels that no object covers; without any file all is ignored."""
    _, _, width, height = geometry.crop
    objects = np.zeros((height, width), dtype=bool)
    ignored = np.full((height, width), not files)
    for mask, ignore in files:
        objects |= geometry.mask(open_mask(mask))
        if ignore is not None:
            ignored |= geometry.mask(open_mask(ignore))
    return torch.from_numpy(np.where(objects, 1, np.where(ignored, IGNORE, 0)).astype(np.uint8))


def _checked_seed(seed: int) -> int:
    if seed < 0:
        raise FcamError(f"a seed must not be negative, got {seed}")
    return seed
