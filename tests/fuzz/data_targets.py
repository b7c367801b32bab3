"""Damaged descriptions of data sets: wsolevaluation's lists and COCO files."""

from __future__ import annotations

from pathlib import Path
from random import Random

import torch
from judge import Violation, judge
from mutations import damage_json, damage_text
from PIL import Image

from fcam.data import open_dataset
from fcam.data.check import check
from fcam.data.transforms import identity

LISTS = {
    "image_ids": "a/1.png\nb/2.png\nc, d/3.png",
    "class_labels": "a/1.png,0\nb/2.png,1\nc, d/3.png,2",
    "image_sizes": "a/1.png,20,12\nb/2.png,30,40\nc, d/3.png,20,12",
    "localization": "a/1.png,1,2,10,11\nb/2.png,0,0,30,40\nb/2.png,3.5,4,6,7\nc, d/3.png,1,1,2,2",
    "classes": "0 ant\n1 bee\n2 wasp",
}
MASK_ROWS = "a/1.png,m/1.png,m/i.png\nb/2.png,m/2.png,\nb/2.png,m/3.png,\nc, d/3.png,m/4.png,"


def wsol(folder: Path, rng: Random) -> str:
    """The lists of wsolevaluation, one or two of them damaged."""
    texts = dict(LISTS)
    if rng.random() < 0.4:
        texts["localization"] = MASK_ROWS
    lists = folder / "metadata" / "val"
    lists.mkdir(parents=True)
    broken = rng.sample(sorted(texts), rng.choice((1, 1, 2)))
    if rng.random() < 0.3 and "classes" not in broken:
        del texts["classes"]
    for name, text in texts.items():
        place = folder / "metadata" if name == "classes" else lists
        (place / f"{name}.txt").write_bytes(damage_text(text, rng) if name in broken else text.encode())

    def read() -> None:
        dataset = open_dataset(folder, "val", localization=True)
        if not len(dataset) == len(dataset.labels) == len(dataset.image_ids):
            raise Violation("labels and images differ in number")
        if not all(0 <= label < len(dataset.classes) for label in dataset.labels):
            raise Violation(f"labels {dataset.labels} of {len(dataset.classes)} classes")
        for i in range(len(dataset) if dataset.has_boxes else 0):
            dataset.truth(i, identity((20, 12)), (20, 12))

    names = [f"{name}.txt" for name in broken]
    if rng.random() < 0.2:  # every fault is collected, and nothing is raised
        return judge(lambda: check(folder), str(folder))
    return judge(read, *names, str(folder))


COCO = {
    "info": {"year": 2020},
    "images": [
        {"id": 1, "file_name": "a/1.png", "width": 20, "height": 12},
        {"id": 2, "file_name": "train/b/2.png", "width": 30, "height": 40},
    ],
    "annotations": [
        {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 9, 9], "iscrowd": 0, "area": 81},
        {"id": 2, "image_id": 2, "category_id": 2, "bbox": [0.5, 0, 29, 40], "segmentation": [[1, 2, 3]]},
        {"id": 3, "image_id": 2, "category_id": 2, "bbox": [1, 1, 2, 2], "iscrowd": 1},
    ],
    "categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}],
}


def coco(folder: Path, rng: Random) -> str:
    """A plain folder whose boxes stand in a damaged COCO file."""
    for name in ("a/1.png", "b/2.png"):
        (folder / "train" / name).parent.mkdir(parents=True)
        Image.new("RGB", (20, 12)).save(folder / "train" / name)
    path = folder / "annotations.json"
    path.write_bytes(damage_json(COCO, rng))

    def read() -> None:
        dataset = open_dataset(folder, "train", localization=True)
        for i in range(len(dataset)):
            boxes = dataset[i].get("boxes")
            if boxes is not None and (boxes.dtype != torch.int64 or boxes.shape[1:] != (4,)):
                raise Violation(f"boxes of {boxes.dtype} {tuple(boxes.shape)}")

    return judge(read, str(path))
