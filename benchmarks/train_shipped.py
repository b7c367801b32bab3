"""Train the decoder that ships with the package, measure it on every set, and write its folder and card.

    python benchmarks/photo_sets.py --data ../shared/data --out runs/photo_sets      # the teachers
    python benchmarks/train_shipped.py --data ../shared/data --teachers runs/photo_sets --out runs/shipped
    python benchmarks/train_shipped.py --data ... --out ... --ship      # also replace src/fcam/shipped/lite0

One class-agnostic decoder for EfficientNet-Lite0 with its 1000 ImageNet classes, on the training images of all four sets
together, and mosaics of them.
Seeds come from the maps of each set's own F-CAM, which learned from image labels and reads the same frozen
features; on `imagenette10`, where that F-CAM and its CAM find different objects, from the two together. The decoder then
goes on with its own maps as teacher, refined and cut out along the photos' edges (`--sharpen`, which needs the extra grabcut).
No box and no mask of a data set teaches anything. The epoch, and everything else that was chosen, is chosen on the four `val`
splits together; `test` is read once, at the end. A finished training is not repeated, an interrupted one goes on.
"""

from __future__ import annotations

import argparse
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from timm.data import ImageNetInfo  # pyright: ignore[reportPrivateImportUsage]
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import ConcatDataset, DataLoader

from fcam import files, shipped
from fcam.cams import center_gaussian, interpolated, normalize
from fcam.config import ModelConfig, OptimizerConfig, SeedConfig, StageConfig, TrainConfig
from fcam.data import EvalTransform, collate, open_dataset
from fcam.errors import FcamError
from fcam.evaluate import evaluate
from fcam.heads import LinearHead
from fcam.model import FCAM, foreground
from fcam.progress import say
from fcam.recipes import METHODS
from fcam.registry import create_model
from fcam.scores import Scorecard
from fcam.train import train
from photo_sets import HEADLINE, NAMES, RESULTS, insert

KINDS = ("fcam", "center", *METHODS)
WITH_CAM = ("imagenette10",)
"""Sets where the product of F-CAM and CAM teaches: where one alone is wrong, they seldom agree (docs/when-it-fails.md)."""
SPLITS = ("train", "val", "test")
MOST = 1000
"""Training images of one set, so that none of the four outweighs the others by much."""
SINGLES_PER_MOSAIC = 3
SIZE = 224


def imagenet_classes() -> list[str]:
    """The 1000 names: each class's first synonym, made unique by the second where two classes share it."""
    info = ImageNetInfo()
    synonyms = [str(info.index_to_description(i, detailed=False)).split(", ") for i in range(1000)]
    first = [words[0] for words in synonyms]
    return [words[0] if first.count(words[0]) == 1 else ", ".join(words[:2]) for words in synonyms]


def build_classifier(folder: Path) -> FCAM:
    """The ImageNet network with a fresh decoder."""
    if not (folder / "config.json").exists():
        model = create_model("tf_efficientnet_lite0", 1000, output_stride=16, classes=imagenet_classes())
        model.save_pretrained(folder)
    return FCAM.from_pretrained(folder)


class Teachers:
    """The F-CAM of every set; their classes follow one another, so that a label names the teacher too."""

    def __init__(self, folder: Path, seeds: Sequence[int], student: FCAM) -> None:
        self.models = {
            name: FCAM.from_pretrained(folder / f"{name}-cam-{seed}")
            for name, seed in zip(HEADLINE, seeds, strict=True)
        }
        own = student.classifier.backbone.state_dict()
        for name, model in self.models.items():
            state = model.classifier.backbone.state_dict()
            if state.keys() != own.keys() or not all(torch.equal(state[key], own[key]) for key in own):
                raise FcamError(f"the teacher of {name} in {folder} reads other features than the student")
        self.first: dict[str, int] = {}
        self.classes: list[str] = []
        for name, model in self.models.items():
            self.first[name] = len(self.classes)
            self.classes += [f"{name} {own_name}" for own_name in model.classes or ()]

        self.singles = len(self.classes)
        """Labels from here on are those of mosaics, in the same order."""
        self.classes += [f"mosaic of {own_name}" for own_name in self.classes]

    def joined(self, folder: Path) -> Path:
        """Save the network whose head has the classes of all teachers, for training to start from."""
        if not (folder / "config.json").exists():
            model = create_model(
                "tf_efficientnet_lite0", len(self.classes), output_stride=16, classes=self.classes
            )
            heads = [m.classifier.head for m in self.models.values()]
            rows = [head.fc for head in heads if isinstance(head, LinearHead)] * 2
            joined = {key: torch.cat([row.state_dict()[key] for row in rows]) for key in ("weight", "bias")}
            assert isinstance(model.classifier.head, LinearHead)
            model.classifier.head.fc.load_state_dict(joined)
            model.save_pretrained(folder)
        return folder

    def labels(self, source: Path, split: str) -> dict[str, int]:
        """The set's own image labels, counted after those of the teachers before."""
        dataset, offset = open_dataset(source, split), self.first[source.name]
        return {i: offset + k for i, k in zip(dataset.image_ids, dataset.labels, strict=True)}

    def seed_maps(self, images: Tensor, features: Sequence[Tensor], labels: Tensor) -> Tensor:
        """Each image's map from the teacher of its set, which sees mosaics at twice the side: photos of the size it knows."""
        maps = torch.empty(len(images), *images.shape[-2:])
        single = labels < self.singles
        maps[single] = self._maps(images[single], [f[single] for f in features], labels[single])
        if not single.all():
            large = F.interpolate(images[~single], scale_factor=2, mode="bilinear")
            found = next(iter(self.models.values())).classifier(large)
            seen = self._maps(large, found.features, labels[~single] - self.singles)
            maps[~single] = F.avg_pool2d(seen[:, None], 2)[:, 0]
        return maps

    def _maps(self, images: Tensor, features: Sequence[Tensor], labels: Tensor) -> Tensor:
        maps = torch.empty(len(images), *images.shape[-2:])
        for name, model in self.models.items():
            own = labels - self.first[name]
            mine = (own >= 0) & (own < model.classifier.num_classes)
            if not mine.any():
                continue
            found = foreground(model.decoder([f[mine] for f in features], images.shape[-2:])).float()
            if name in WITH_CAM:
                cams = interpolated(model.classifier, images[mine], features[-1][mine], own[mine], "cam")
                found = found * cams
            maps[mine] = found
        return maps


@torch.inference_mode()
def predictions(model: FCAM, root: Path, split: str) -> dict[str, int]:
    """The class that the classifier ranks first, for every image of a split."""
    dataset = open_dataset(root, split, transform=EvalTransform(SIZE))
    found: dict[str, int] = {}
    for batch in DataLoader(dataset, batch_size=32, collate_fn=collate, num_workers=2):  # type: ignore[arg-type]
        logits = model.classifier(batch["image"].float().div_(255)).logits
        found |= dict(zip(batch["image_id"], logits.argmax(1).tolist(), strict=True))
    return found


def relabel(
    labels: Callable[[Path, str], dict[str, int]],
    classes: list[str],
    source: Path,
    root: Path,
    splits: Sequence[str] = SPLITS,
) -> None:
    """Write `root`: the same images, boxes and masks as `source`, with other labels, a function of set and split."""
    if (root / "classes.txt").exists():
        return
    root.mkdir(parents=True, exist_ok=True)
    for entry in source.iterdir():
        if entry.is_dir() and entry.name not in ("metadata", "metadata_masks"):
            (root / entry.name).symlink_to(entry.resolve(), target_is_directory=True)
    for split in splits:
        lines = "".join(f"{i},{k}\n" for i, k in labels(source, split).items())
        for lists in ("metadata", "metadata_masks"):
            if (source / lists / split).is_dir():
                shutil.copytree(source / lists / split, root / lists / split, dirs_exist_ok=True)
                files.write_text(root / lists / split / "class_labels.txt", lines)
    files.write_text(root / "classes.txt", "".join(f"{name}\n" for name in classes))


def merge(roots: dict[str, Path], classes: list[str], root: Path, splits: Sequence[str] = SPLITS) -> None:
    """Write `root`: one data set whose image ids begin with the set's name, at most `MOST` training images of each."""
    if (root / "classes.txt").exists():
        return
    root.mkdir(parents=True, exist_ok=True)
    for split in splits:
        for name, lines in _prefixed(roots, split):
            files.write_text(root / "metadata" / split / name, lines)
    for name, source in roots.items():
        (root / name).symlink_to(source.resolve(), target_is_directory=True)
    files.write_text(root / "classes.txt", "".join(f"{name}\n" for name in classes))


def _prefixed(roots: dict[str, Path], split: str) -> Iterator[tuple[str, str]]:
    """Name and text of each list of the merged split."""
    texts: dict[str, list[str]] = {}
    for name, source in roots.items():
        folder = source / "metadata" / split
        kept = (folder / "image_ids.txt").read_text().split()
        if split == "train" and len(kept) > MOST:
            kept = sorted(random.Random(0).sample(kept, MOST))
        chosen = set(kept)
        for path in sorted(folder.glob("*.txt")):
            rows = [row for row in path.read_text().splitlines() if row.split(",")[0] in chosen]
            texts.setdefault(path.name, []).extend(f"{name}/{row}\n" for row in rows)
    for name, rows in texts.items():
        yield name, "".join(rows)


def add_mosaics(root: Path, singles: int) -> None:
    """Add to the training images one mosaic for every `SINGLES_PER_MOSAIC` of a class: four of its photos, two by two.

    In the sets' own photos the object fills the frame's middle; here it is small and stands anywhere.
    """
    lists = root / "metadata" / "train"
    lines = (lists / "class_labels.txt").read_text().splitlines()
    if any(line.startswith("mosaics/") for line in lines):
        return
    labels = (line.rsplit(",", 1) for line in lines)
    by_class: dict[int, list[str]] = {}
    for image_id, label in labels:
        by_class.setdefault(int(label), []).append(image_id)
    draw = random.Random(0)
    texts = {
        name: (lists / name).read_text() for name in ("image_ids.txt", "class_labels.txt", "image_sizes.txt")
    }
    for label, image_ids in sorted(by_class.items()):
        for number in range(len(image_ids) // SINGLES_PER_MOSAIC):
            mosaic = Image.new("RGB", (2 * SIZE, 2 * SIZE))
            for place, image_id in enumerate(draw.sample(image_ids, 4)):
                with Image.open(root / image_id) as photo:
                    tile = photo.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC)
                mosaic.paste(tile, (place % 2 * SIZE, place // 2 * SIZE))
            name = f"mosaics/{label:03d}-{number:03d}.jpg"
            files.write_image(root / name, mosaic, quality=92)
            texts["image_ids.txt"] += f"{name}\n"
            texts["class_labels.txt"] += f"{name},{singles + label}\n"
            texts["image_sizes.txt"] += f"{name},{2 * SIZE},{2 * SIZE}\n"
    for name in ("image_ids.txt", "image_sizes.txt", "class_labels.txt"):  # last the one that tells of them
        files.write_text(lists / name, texts[name])


def config(data: Path, classifier: Path, out: Path, seed: int) -> TrainConfig:
    """Settings of the training; ours, chosen on the four `val` splits together."""
    return TrainConfig(
        name="shipped-lite0",
        data=str(data),
        out=str(out),
        stages="decoder",
        classifier_from=str(classifier),
        model=ModelConfig(backbone="tf_efficientnet_lite0", output_stride=16),
        seeds=SeedConfig(n_minus=0.3, foreground_pixels=5, background_pixels=5),
        stage2=StageConfig(
            epochs=3,
            batch_size=16,
            select="max_box_acc_v2",
            average=0.98,
            optimizer=OptimizerConfig(lr=0.03, schedule="cosine"),
        ),
        seed=seed,
        resume=True,
    )


@torch.inference_mode()
def make_sure(model: FCAM, roots: dict[str, Path]) -> None:
    """Give the logits the factor with which the first class is as probable, on average over `val`, as in the network as it is.

    Without its last stride the network averages over more positions and is unsure of everything; no label is needed here.
    """
    head = model.classifier.head
    assert isinstance(head, LinearHead)
    whole = create_model("tf_efficientnet_lite0", 1000, output_stride=32).eval()
    sure, logits = [], []
    dataset = ConcatDataset(
        [open_dataset(root, "val", transform=EvalTransform(SIZE)) for root in roots.values()]
    )
    for batch in DataLoader(dataset, batch_size=32, collate_fn=collate, num_workers=2):  # type: ignore[arg-type]
        images = batch["image"].to(memory_format=torch.channels_last).float().div_(255)
        sure.append(whole.classifier(images).logits.softmax(1).amax(1))
        logits.append(model.classifier(images).logits / head.scale)
    wanted, raw, low, high = torch.cat(sure).mean(), torch.cat(logits), 0.1, 1000.0
    for _ in range(50):
        scale = (low * high) ** 0.5
        low, high = (scale, high) if (scale * raw).softmax(1).amax(1).mean() < wanted else (low, scale)
    head.scale = round(low, 2)
    say(f"first class {wanted:.3f} probable on average; scale of the logits {head.scale}")


def note_thresholds(model: FCAM, roots: dict[str, Path], root: Path) -> None:
    """Note where boxes of `val` cut maps best, with the CAM of the class ranked first, as in prediction; `root` is written."""
    merge(roots, imagenet_classes(), root, ["val"])
    evaluate(model, str(root), "val", SIZE)


@torch.inference_mode()
def measure(model: FCAM, roots: dict[str, Path], split: str) -> dict[str, Any]:
    """The set's own metric for every CAM of the classifier's first class, for F-CAM and for the centre Gaussian."""
    results: dict[str, Any] = {}
    for name, metric in HEADLINE.items():
        dataset = open_dataset(roots[name], split, transform=EvalTransform(SIZE), localization=True)
        card = Scorecard(dataset, KINDS, device=torch.device("cpu"))
        for batch in DataLoader(dataset, batch_size=32, collate_fn=collate, num_workers=2):  # type: ignore[arg-type]
            images = batch["image"].to(memory_format=torch.channels_last).float().div_(255)
            out, floor = model(images), normalize(center_gaussian(SIZE, SIZE)[None])
            maps = {"fcam": foreground(out.maps), "center": floor.expand(len(images), -1, -1)}
            for method in METHODS:
                maps[method] = interpolated(
                    model.classifier, images, out.features[-1], batch["label"], method
                )
            card.update(maps, out.logits, batch)
        values = {kind: _percent(card, kind, metric) for kind in KINDS}
        results[name] = {"metric": metric, "images": len(dataset), **values}
        say(f"{name} {split}: " + "  ".join(f"{k} {v}" for k, v in results[name].items()))
    return results


def _percent(card: Any, kind: str, metric: str) -> float:
    value = card.value(kind, metric)
    assert value is not None
    return round(float(value), 1)


def table(results: dict[str, Any]) -> str:
    """Markdown: the best of the classifier's CAMs beside F-CAM."""
    head = ["set", "images", "metric", "centre Gaussian", "best CAM (method)", "F-CAM", "gain"]
    rows = []
    for name, row in results.items():
        method = max(METHODS, key=lambda m, row=row: row.get(m, -1.0))
        cells = [name, row["images"], NAMES[row["metric"]], row["center"], f"{row[method]} ({method})"]
        rows.append([*cells, row["fcam"], f"{row['fcam'] - row[method]:+.1f}"])
    lines = ["| " + " | ".join(map(str, cells)) + " |" for cells in [head, ["---"] * len(head), *rows]]
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then measure, then ship if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the four sets")
    parser.add_argument("--out", type=Path, default=Path("runs/shipped"))
    parser.add_argument(
        "--teachers", type=Path, default=Path("runs/photo_sets"), help="runs of photo_sets.py"
    )
    parser.add_argument(
        "--teacher-seeds",
        type=int,
        nargs=len(HEADLINE),
        default=(1, 1, 1, 0),
        help=f"of {', '.join(HEADLINE)}",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--recolor", type=float, default=0.5, help="as in fcam train")
    parser.add_argument(
        "--mosaics", type=float, default=0.33, help="as in fcam train, beside those that are files"
    )
    parser.add_argument("--sharpen", type=int, default=1, help="epochs, as in fcam train, by GrabCut")
    parser.add_argument("--split", default="test", choices=("val", "test"), help="what to measure on")
    parser.add_argument("--baselines", action="store_true", help="only measure the classifier's CAMs")
    parser.add_argument("--ship", action="store_true", help="write the decoder and its card into the package")
    arguments = parser.parse_args()
    out: Path = arguments.out
    model = build_classifier(out / "classifier")
    roots = {name: out / "sets" / name for name in HEADLINE}
    for name, root in roots.items():
        relabel(partial(predictions, model), imagenet_classes(), arguments.data / name, root, SPLITS[1:])
    run = out / f"decoder-{arguments.seed}"
    if not arguments.baselines:
        teachers = Teachers(arguments.teachers, arguments.teacher_seeds, model)
        taught = {name: out / "taught" / name for name in HEADLINE}
        for name, root in taught.items():
            relabel(teachers.labels, teachers.classes, arguments.data / name, root)
        merge(taught, teachers.classes, out / "data")
        add_mosaics(out / "data", teachers.singles)
        if not (run / "metrics.json").exists():
            start = teachers.joined(out / "joined")
            settings = config(out / "data", start, run, arguments.seed)
            settings = replace(settings, recolor=arguments.recolor, mosaics=arguments.mosaics)
            settings = replace(settings, sharpen=arguments.sharpen, sharpen_by="grabcut")
            train(settings, teachers.seed_maps)
        trained = FCAM.from_pretrained(run)
        model.decoder.load_state_dict(trained.decoder.state_dict())
        model.metadata |= trained.metadata
        model.eval()
    make_sure(model, roots)
    if not arguments.baselines:
        note_thresholds(model, roots, out / "predicted")
    results = measure(model, roots, arguments.split)
    files.write_json(run / f"shipped-{arguments.split}.json", results)
    print(table(results))
    if arguments.ship:
        ship(model, results)


def ship(model: FCAM, results: dict[str, Any]) -> None:
    """Write the package's folder: configuration, the decoder in half precision, and the table into card and docs."""
    folder = shipped.folder("lite0")
    training = model.metadata["training"]
    training["classifier_from"] = ""  # a folder of one machine
    model.save_pretrained(folder, decoder_only=True)
    for page in (folder / "README.md", RESULTS):
        insert(page, "shipped", table(results))


if __name__ == "__main__":
    main()
