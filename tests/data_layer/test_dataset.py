from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader

from fcam.data import EpochSampler, EvalTransform, TrainTransform, collate, open_dataset
from fcam.data.dataset import NoBatchOfOne
from fcam.errors import FcamError

SMALL = TrainTransform(resize=40, crop=32)


def test_items_and_batches_follow_the_contract(drawn: Path) -> None:
    dataset = open_dataset(drawn, "val", EvalTransform(48), localization=True)
    item = dataset[3]
    assert item["image"].shape == (3, 48, 48)
    assert item["image"].dtype == torch.uint8
    assert (item["label"], item["index"], item["image_id"]) == (1, 3, "images/val/01/0001.jpg")
    assert item["boxes"].dtype == torch.int64
    assert item["mask"].dtype == torch.uint8
    assert dataset.path(3).is_file()
    batch = collate([dataset[i] for i in range(4)])
    assert batch["image"].shape == (4, 3, 48, 48)
    assert batch["mask"].shape == (4, 48, 48)
    assert batch["label"].tolist() == dataset.labels[:4] == [0, 0, 1, 1]
    assert batch["index"].tolist() == [0, 1, 2, 3]
    assert batch["image_id"] == dataset.image_ids[:4]
    assert [boxes.shape for boxes in batch["boxes"]] == [(1, 4)] * 4


def test_localization_is_not_even_opened_unless_asked(wsol_set: Path) -> None:
    for metadata in ("metadata", "metadata_masks"):
        (wsol_set / metadata / "train" / "localization.txt").write_text("this line would be refused\n")
    dataset = open_dataset(wsol_set, "train", SMALL)
    assert not dataset.has_boxes
    assert not dataset.has_masks
    assert dataset[0].keys() == {"image", "label", "index", "image_id"}
    with pytest.raises(FcamError, match=r"localization\.txt, line 1"):
        open_dataset(wsol_set, "train", SMALL, localization=True)


def test_augmentation_depends_on_seed_epoch_and_index_only(drawn: Path) -> None:
    dataset = open_dataset(drawn, "train", SMALL, seed=1)
    dataset.set_epoch(2)
    first = [dataset[i]["image"] for i in range(12)]
    backwards = [dataset[i]["image"] for i in reversed(range(12))][::-1]
    again = open_dataset(drawn, "train", SMALL, seed=1)
    again.set_epoch(2)
    assert all(map(torch.equal, first, backwards))
    assert all(map(torch.equal, first, [again[i]["image"] for i in range(12)]))
    for seed, epoch in ((1, 3), (2, 2)):
        other = open_dataset(drawn, "train", SMALL, seed=seed)
        other.set_epoch(epoch)
        assert sum(torch.equal(a, other[i]["image"]) for i, a in enumerate(first)) < 4
    assert len({tuple(dataset._geometry(i, (72, 72))) for i in range(12)}) > 8


def test_workers_and_persistence_do_not_change_a_pixel(drawn: Path) -> None:
    alone = open_dataset(drawn, "train", SMALL)
    shared_epoch = open_dataset(drawn, "train", SMALL)
    sampler = EpochSampler(shared_epoch, seed=5)
    loader = DataLoader(
        shared_epoch, 5, sampler=sampler, num_workers=2, persistent_workers=True, collate_fn=collate
    )
    for epoch in range(3):
        sampler.set_epoch(epoch)
        got = {
            int(i): image for batch in loader for i, image in zip(batch["index"], batch["image"], strict=True)
        }
        alone.set_epoch(epoch)
        assert len(got) == 12
        assert all(torch.equal(got[i], alone[i]["image"]) for i in range(12))


def test_epoch_sampler() -> None:
    sampler = EpochSampler(50, seed=3)
    orders = []
    for epoch in (0, 1, 2):
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
        assert sorted(orders[-1]) == list(range(50))
    assert orders[0] != orders[1] != orders[2]
    resumed = EpochSampler(50, seed=3)
    resumed.set_epoch(2)
    assert list(resumed) == list(resumed) == orders[2]
    assert list(EpochSampler(50, seed=4)) != orders[0]
    assert list(EpochSampler(4, shuffle=False)) == [0, 1, 2, 3]
    assert len(sampler) == 50
    with pytest.raises(FcamError, match="negative"):
        EpochSampler(4, seed=-1)


def test_no_batch_of_one() -> None:
    for images, size in ((9, 4), (5, 4), (3, 2), (8, 4), (10, 4), (1, 4), (3, 1)):
        sampler = EpochSampler(images, seed=3)
        plain, joined = list(BatchSampler(sampler, size, False)), NoBatchOfOne(sampler, size)
        batches = list(joined)
        assert len(joined) == len(batches)
        assert [i for batch in batches for i in batch] == list(sampler)
        if images % size == 1 < min(images, size):
            assert batches == [*plain[:-2], plain[-2] + plain[-1]]
        else:
            assert batches == plain
    joined.sampler.set_epoch(1)  # as accelerate reaches it
    assert list(joined) != batches


def test_an_unreadable_image_is_named(wsol_set: Path) -> None:
    dataset = open_dataset(wsol_set, "train", SMALL)
    dataset.path(4).write_bytes(b"")
    with pytest.raises(FcamError, match=r"01/0000\.jpg: the file is empty"):
        next(iter(DataLoader(dataset, 12, collate_fn=collate)))


def test_images_of_different_sizes_need_a_transform(drawn: Path) -> None:
    items = [open_dataset(drawn, "val", EvalTransform(size))[0] for size in (20, 30)]
    with pytest.raises(FcamError, match=r"\(3, 20, 20\), \(3, 30, 30\)"):
        collate(items)


def test_negative_indices_and_the_end(drawn: Path) -> None:
    dataset = open_dataset(drawn, "val", EvalTransform(32))
    assert dataset[-1]["index"] == 5
    with pytest.raises(IndexError):
        dataset[6]
    assert len(list(dataset)) == 6


def test_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(FcamError, match="not a folder"):
        open_dataset(tmp_path / "gone", "train")
    with pytest.raises(FcamError, match=r"is no data set: expected metadata/<split>/image_ids\.txt"):
        open_dataset(tmp_path, "train")


def test_unknown_split_names_those_there_are(drawn: Path) -> None:
    with pytest.raises(FcamError, match=r"no split 'validation' .* found train, val, test"):
        open_dataset(drawn, "validation")


@pytest.mark.parametrize("name", ["cub10", "pets3", "imagenette10", "butterfly10"])
def test_photographs(shared: Path, name: str) -> None:
    root = shared / "data" / name
    train = open_dataset(root, "train", TrainTransform(), localization=True)
    assert not train.has_boxes
    assert not train.has_masks
    assert train[0]["image"].shape == (3, 224, 224)
    test = open_dataset(root, "test", EvalTransform(), localization=True)
    assert test.has_boxes
    assert test.has_masks == (root / "metadata_masks").is_dir()
    assert test.classes == train.classes
    for index in np.linspace(0, len(test) - 1, 8).astype(int).tolist():
        item = test[index]
        boxes = item["boxes"]
        assert len(boxes) >= 1
        assert boxes.min() >= 0
        assert boxes.max() <= 224
        if test.has_masks:
            # pets3's boxes end somewhere in the ignored band around the object.
            outer = np.r_[boxes[:, :2].amin(0), boxes[:, 2:].amax(0)]
            for pixels, grow in ((item["mask"] == 1, 3), (item["mask"] > 0, -3)):
                rows, columns = np.nonzero(pixels.numpy())
                x0, y0, x1, y1 = outer + np.array([-grow, -grow, grow, grow])
                inside = x0 <= columns.min() and y0 <= rows.min() and columns.max() <= x1 and rows.max() <= y1
                around = x0 >= columns.min() and y0 >= rows.min() and columns.max() >= x1 and rows.max() >= y1
                assert inside if grow > 0 else around
