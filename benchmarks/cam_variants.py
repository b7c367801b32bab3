"""How far the published and the reference variant of a CAM method differ, and what boxes each method gives.

    python benchmarks/cam_variants.py --data ../shared/data --out runs/cam_variants

The ImageNet EfficientNet-Lite0 as it is (output stride 32, 7x7 maps) on `test` photos of the four sets at 224x224.
First table: both variants' normalised maps of the predicted class, compared pixel by pixel at their own resolution; the
Score-CAM family runs on few photos and on the most active channels alone, because a channel costs it 1 (Score-CAM), 10 (IS-CAM)
or 35 (SS-CAM) forward passes. Second table: MaxBoxAcc of the true class's map on `imagenette10`, whose
classes are the network's own.
"""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from timm.data import ImageNetInfo  # pyright: ignore[reportPrivateImportUsage]
from torch import Tensor

from fcam import files
from fcam.cams import EmptyMapWarning, cam
from fcam.classifier import Classifier
from fcam.data import EvalTransform, LocalizationDataset, collate, open_dataset
from fcam.metrics import MaxBoxAcc
from fcam.progress import say
from fcam.registry import create_model

SETS = ("cub10", "pets3", "butterfly10", "imagenette10")
OWN = "imagenette10"
SIZE = 224
IOU = (0.3, 0.5, 0.7)


class Compared(NamedTuple):
    """One row of the table of variants."""

    method: str
    photos: int
    """Photos of each set."""
    channels: int | None = None
    """Most active channels kept by the Score-CAM family; None takes all."""


COMPARED = (
    Compared("gradcampp", 40),
    Compared("smoothgradcampp", 40),
    Compared("scorecam", 4, 128),
    Compared("iscam", 2, 32),
    Compared("sscam", 2, 8),
)
BOXES = (
    ("cam", "published"),
    ("gradcam", "published"),
    ("xgradcam", "published"),
    ("gradcampp", "published"),
    ("smoothgradcampp", "published"),
    ("layercam", "published"),
    ("gradcampp", "reference"),
    ("smoothgradcampp", "reference"),
    ("refinecam", "published"),
    ("center", "published"),
)


def batches(dataset: LocalizationDataset, indices: list[int], size: int = 16) -> Iterator[dict[str, Any]]:
    """Batches of those photos, images as floats."""
    for start in range(0, len(indices), size):
        batch = collate([dataset[i] for i in indices[start : start + size]])
        yield batch | {"image": batch["image"].float().div_(255)}


def spread(length: int, count: int) -> list[int]:
    """`count` indices, evenly over a split that is sorted by class."""
    return sorted({round(i * (length - 1) / max(count - 1, 1)) for i in range(count)})


def differences(classifier: Classifier, dataset: LocalizationDataset, row: Compared, seed: int) -> Tensor:
    """Absolute differences (photos, h, w) between the variants' normalised maps of the predicted class."""
    found = []
    for batch in batches(dataset, spread(len(dataset), row.photos)):
        images = batch["image"]
        classes = classifier(images).logits.argmax(1)
        maps = []
        for variant in ("published", "reference"):
            options: dict[str, Any] = {"variant": variant, "generator": torch.Generator().manual_seed(seed)}
            if row.method.endswith(("scorecam", "iscam", "sscam")):
                options["top_channels"] = row.channels
            maps.append(cam(classifier, images, classes, row.method, **options))
        found.append((maps[0] - maps[1]).abs())
    return torch.cat(found)


def compare(classifier: Classifier, data: Path, seed: int) -> list[dict[str, Any]]:
    """Mean, median over photos of the largest, and largest difference, for every method and set."""
    rows = []
    for row in COMPARED:
        for name in SETS:
            dataset = open_dataset(data / name, "test", transform=EvalTransform(SIZE))
            off = differences(classifier, dataset, row, seed)
            largest = off.flatten(1).amax(1)
            rows.append(
                row._asdict()
                | {"set": name, "mean": off.mean().item(), "median_of_largest": largest.median().item()}
                | {"largest": largest.max().item()}
            )
            say("  ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{v}" for k, v in rows[-1].items()))
    return rows


def boxes(classifier: Classifier, data: Path, seed: int) -> list[dict[str, Any]]:
    """MaxBoxAcc in percent of every method on the set whose classes are the network's own."""
    dataset = open_dataset(data / OWN, "test", transform=EvalTransform(SIZE), localization=True)
    imagenet = ImageNetInfo()
    wnids = [m.group() for m in map(re.compile(r"n\d{8}").search, dataset.classes) if m]
    own = torch.tensor([imagenet.label_names().index(wnid) for wnid in wnids])
    scores = {row: MaxBoxAcc(iou=IOU) for row in BOXES}
    for batch in batches(dataset, list(range(len(dataset))), 32):
        classes = own[batch["label"]]
        for method, variant in BOXES:
            generator = torch.Generator().manual_seed(seed)
            maps = cam(classifier, batch["image"], classes, method, variant=variant, generator=generator)
            maps = F.interpolate(maps[:, None], (SIZE, SIZE), mode="bilinear", align_corners=False)[:, 0]
            scores[method, variant].update(maps, batch["boxes"])
    rows = []
    for (method, variant), score in scores.items():
        values = {f"{iou}": round(v, 1) for iou, v in zip(IOU, score.compute().tolist(), strict=True)}
        rows.append({"method": method, "variant": variant, **values})
    return rows


def as_markdown(variants: list[dict[str, Any]], found: list[dict[str, Any]]) -> str:
    """Both tables; of the first, the range over the sets."""
    lines = [
        "| method | photos a set | channels | mean | median of the largest | largest |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for row in COMPARED:
        own = [r for r in variants if r["method"] == row.method]
        ranges = [
            f"{min(r[k] for r in own):.2f}-{max(r[k] for r in own):.2f}"
            for k in ("mean", "median_of_largest")
        ]
        cells = [
            f"`{row.method}`",
            row.photos,
            row.channels or "all",
            *ranges,
            f"{max(r['largest'] for r in own):.2f}",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "| method | variant | IoU 0.3 | IoU 0.5 | IoU 0.7 |", "|---|---|--:|--:|--:|"]
    lines += [
        f"| `{r['method']}` | {r['variant']} | " + " | ".join(str(r[f"{i}"]) for i in IOU) + " |"
        for r in found
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure both, print the tables, and keep them with the numbers of every set."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the four sets")
    parser.add_argument("--out", type=Path, default=Path("runs/cam_variants"))
    parser.add_argument("--seed", type=int, default=0, help="of the noise")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", EmptyMapWarning)
    model = create_model("tf_efficientnet_lite0", 1000, output_stride=32)
    with torch.no_grad():
        found = boxes(model.classifier, arguments.data, arguments.seed)
        variants = compare(model.classifier, arguments.data, arguments.seed)
    files.write_json(arguments.out / "cam_variants.json", {"variants": variants, "boxes": found})
    text = as_markdown(variants, found)
    files.write_text(arguments.out / "cam_variants.md", text)
    print(text)


if __name__ == "__main__":
    main()
