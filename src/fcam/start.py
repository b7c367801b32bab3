"""The network that a training run starts with: ImageNet weights, an earlier run's classifier, or somebody's own."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fcam.attachment import sources
from fcam.attachment.attach import attach
from fcam.attachment.attached import AttachedClassifier
from fcam.config import StageConfig, TrainConfig
from fcam.data import EvalTransform, open_dataset
from fcam.decoder import Decoder, decoder_channels
from fcam.errors import FcamError, shown
from fcam.model import FCAM
from fcam.progress import say
from fcam.registry import create_model

OWN = "own"
"""`ModelConfig.backbone` of a run on a given classifier."""
RANGES = {
    "lr": (0, 1e6),
    "momentum": (0, 1),
    "weight_decay": (0, 1e6),
    "gamma": (0, 1e6),
    "average": (0, 1),
    "step_epochs": (1, 1e9),
    "n_minus": (0, 1),
    "alpha": (0, 1e12),
    "crf": (0, 1e12),
    "size": (0, 1e12),
    "seed": (0, 2**32 - 1),
    "workers": (0, 1024),
    "mosaics": (0, 10),
    "crop": (32, 16384),
    "resize": (32, 16384),
}
"""What numbers of these names may be, first and last included."""
TRIED = 64
"""Training photos that a given classifier is tried on."""


def settle(config: TrainConfig) -> TrainConfig:
    """`config` with what follows from a given classifier: nothing but a new head is trained in stage 1.

    Raises `FcamError` when options are missing or exclude each other.
    """
    _check_numbers(config)
    if config.stages != "classifier":
        _check_stage("stage2", config.stage2)
    if trains_classifier(config):
        _check_stage("stage1", config.stage1)
    if not config.classifier:
        needs = [name for name in ("weights", "class_names", "new_head") if getattr(config, name)]
        if needs:
            raise FcamError(
                f"--{needs[0].replace('_', '-')} belongs to --classifier, which is missing; add it"
            )
        if config.model.backbone == OWN and not config.classifier_from:
            raise FcamError(
                f"this recipe trains a decoder on your own classifier; name it with --classifier {sources.FORMS}"
            )
        return config
    if config.new_head and config.class_names:
        raise FcamError("--new-head learns the folder's classes and needs no --class-names; leave one out")
    return dataclasses.replace(
        config,
        head_only=True,
        model=dataclasses.replace(config.model, backbone=OWN),
    )


def _check_numbers(group: Any, place: str = "--") -> None:
    """Find here, not after hours of training, what no run can do with."""
    for field in dataclasses.fields(group):
        value, option = getattr(group, field.name), f"{place}{field.name.replace('_', '-')}"
        if dataclasses.is_dataclass(value):
            _check_numbers(value, f"{option}.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise FcamError(f"{option} is {value}; give a number")
        elif isinstance(value, int | float) and field.name in RANGES:
            low, high = RANGES[field.name]
            if not low <= value <= high:
                raise FcamError(f"{option} is {value}; take {low:g} or more, and at most {high:g}")


def _check_stage(name: str, stage: StageConfig) -> None:
    for field in ("epochs", "batch_size", "accumulate"):
        value = getattr(stage, field)
        if value < 1:
            raise FcamError(
                f"--{name}.{field.replace('_', '-')} is {value}; take 1 or more, or leave a stage out with --stages"
            )


def trains_classifier(config: TrainConfig) -> bool:
    """Whether stage 1 has anything to train."""
    return (
        config.stages != "decoder"
        and not config.classifier_from
        and (not config.classifier or config.new_head)
    )


def build(config: TrainConfig, classes: list[str]) -> FCAM:
    """The network at the start of a run for these classes, in label order; raises `FcamError`."""
    if config.classifier_from:
        return _from_run(config, classes)
    if config.classifier:
        return _own(config, classes)
    return _named(config, classes, config.model.pretrained)


def _named(config: TrainConfig, classes: list[str], pretrained: bool) -> FCAM:
    return create_model(
        config.model.backbone,
        num_classes=len(classes),
        pretrained=pretrained,
        output_stride=config.model.output_stride,
        decoder_channels=config.model.decoder_channels,
        head=config.model.head,
        classes=classes,
    )


def _from_run(config: TrainConfig, classes: list[str]) -> FCAM:
    """A fresh decoder on the classifier of an earlier run."""
    own_code = config.classifier if config.classifier and sources.is_importable(config.classifier) else None
    source = FCAM.from_pretrained(config.classifier_from, own_code)
    inner = source.classifier
    if inner.num_classes != len(classes):
        raise FcamError(
            f"the classifier of {config.classifier_from} knows {inner.num_classes} classes, "
            f"{config.data} has {len(classes)}; train one with --stages both"
        )
    if doubt := source.doubt_about(classes, config.data):
        say(doubt)
    if isinstance(inner, AttachedClassifier):
        widths = decoder_channels(inner.backbone, config.model.decoder_channels)
        return FCAM(inner, Decoder(inner.backbone.channels, widths), classes=classes)
    # Built like this the decoder starts from the same random numbers as in a run that trains both stages.
    model = _named(config, classes, pretrained=False)
    own, wanted = inner.config(), model.classifier.config()
    for name in ("backbone", "output_stride", "head"):
        has, asked = ((c[name]["name"] if name == "head" else c[name]) for c in (own, wanted))
        if has != asked:
            raise FcamError(
                f"the classifier of {config.classifier_from} has {name} {has}, these settings ask for {asked}; "
                f"add --model.{name.replace('_', '-')} {has}"
            )
    return FCAM(inner, model.decoder, classes=classes)


def _own(config: TrainConfig, classes: list[str]) -> FCAM:
    """A fresh decoder on the classifier that `--classifier` and `--weights` name."""
    chosen = config.model
    weights = config.weights or None
    network = sources.build(config.classifier, None, weights, chosen.pretrained and not weights)
    if config.new_head:
        network = sources.with_new_layer(network, len(classes))
    model = attach(
        network,
        list(chosen.level) or "auto",
        mean=chosen.mean,
        std=chosen.std,
        image_size=config.crop,
        channels=chosen.decoder_channels,
        source=config.classifier,
    )
    inner = model.classifier
    assert isinstance(inner, AttachedClassifier)
    inner.head.select(outputs_of(classes, inner.head.num_outputs, config))
    model.classes = list(classes)
    return model


def outputs_of(classes: list[str], num_outputs: int, config: TrainConfig) -> list[int] | None:
    """The classifier's output for each class of the data, or None where they are all of them in order.

    Raises `FcamError` when the classes cannot be matched.
    """
    if not config.class_names:
        if num_outputs == len(classes):
            return None
        raise FcamError(
            f"{config.classifier} has {num_outputs} outputs, {config.data} has {len(classes)} classes; say which is which "
            "with --class-names FILE (a name a line, in the order of the outputs), or train a new last layer with "
            "--new-head"
        )
    names = _read_names(config.class_names)
    if len(names) != num_outputs:
        raise FcamError(
            f"{config.class_names} names {len(names)} classes but {config.classifier} has {num_outputs} outputs; "
            "write one name a line, in the order of the outputs"
        )
    count = Counter(names)
    for name in classes:
        if count[name] != 1:
            near = difflib.get_close_matches(name, names, n=2)
            found = "twice" if count[name] else f"not{f', near are {shown(near)}' if near else ''}"
            raise FcamError(
                f"the class {name!r} of {config.data} stands {found} in {config.class_names}; rename the folder or the line"
            )
    outputs = [names.index(name) for name in classes]
    return None if outputs == list(range(num_outputs)) else outputs


def _read_names(path: str) -> list[str]:
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FcamError(f"--class-names {path} cannot be read ({error}); give a text file") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


@torch.inference_mode()
def introduce(model: FCAM, config: TrainConfig) -> str:
    """What was found in a given classifier, which output is which class, and whether it knows the training photos."""
    inner = model.classifier
    assert isinstance(inner, AttachedClassifier)
    names = model.classes or []
    pairs = [f"{i} {name}" for i, name in zip(inner.head.outputs or range(len(names)), names, strict=True)]
    more = ", ..." if len(pairs) > 12 else ""
    lines = [inner.describe(), f"outputs and classes: {', '.join(pairs[:12])}{more}"]
    if config.new_head:
        return "\n".join([*lines, "a new last layer is trained for these classes first"])
    right, tried = _right(model, config)
    verdict = f"the classifier is right on {right} of {tried} training photos"
    if len(pairs) > 1 and right * len(pairs) < 1.5 * tried:
        verdict += ": hardly better than chance, check the order of classes, the weights, mean and std"
    return "\n".join([*lines, verdict])


def _right(model: FCAM, config: TrainConfig) -> tuple[int, int]:
    """How many of at most `TRIED` evenly chosen training photos are classified rightly."""
    photos = open_dataset(config.data, "train", transform=EvalTransform(config.crop))
    chosen = range(0, len(photos), -(-len(photos) // TRIED))
    items = [photos[i] for i in chosen]
    device = next(model.parameters()).device
    right = 0
    for start in range(0, len(items), 16):
        batch = items[start : start + 16]
        images: Tensor = torch.stack([item["image"] for item in batch]).to(device).float().div_(255)
        guess = model.classifier(images).logits.argmax(1).tolist()
        right += sum(g == item["label"] for g, item in zip(guess, batch, strict=True))
    return right, len(items)
