"""The network that a training run starts with: ImageNet weights, an earlier run's parts, or somebody's own classifier."""

from __future__ import annotations

import difflib
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

from fcam import checkpoint
from fcam.attachment import sources
from fcam.attachment.attach import attach
from fcam.attachment.attached import AttachedClassifier
from fcam.backbones.weights import load_checked
from fcam.config import TrainConfig
from fcam.data import EvalTransform, open_dataset
from fcam.data.split import Split
from fcam.decoder import Decoder, decoder_channels
from fcam.errors import FcamError, shown
from fcam.model import FCAM
from fcam.progress import say
from fcam.registry import create_model

TRIED = 64
"""Training photos that a given classifier is tried on."""


def check_classes(photos: Split) -> None:
    """Raise `FcamError` where a classifier cannot be trained on the classes of a training split."""
    if len(photos.classes) < 2:
        raise FcamError(
            f"{photos.root} has one class, {shown(photos.classes[0])}, and a classifier learns what tells classes apart; add a "
            "folder of other photos, or train only a decoder: --stages decoder with --classifier-from or --classifier"
        )
    if absent := photos.classes_without_images():
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        raise FcamError(
            f"no training photo of {photos.root} shows the class {absent[0]!r}{more}, so no classifier could learn it; "
            "add photos, or take the class out (without folders train and test, photos are split by a hash of their names)"
        )


def build(config: TrainConfig, classes: list[str]) -> FCAM:
    """The network at the start of a run for these classes, in label order; raises `FcamError`."""
    if config.classifier_from:
        model = _from_run(config, classes)
    elif config.classifier:
        model = _own(config, classes)
    else:
        model = _named(config, classes, config.model.pretrained)
    if config.decoder_from:
        weights = checkpoint.decoder_weights(config.decoder_from)
        load_checked(model.decoder, weights, f"the decoder of {config.decoder_from}")
    return model


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
        return FCAM(inner, _decoder_for(inner, config), classes=classes)
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
    new_layer = sources.put_new_layer(network, len(classes)) if config.new_head else None
    found = attach(
        network,
        list(chosen.level) or "auto",
        mean=chosen.mean,
        std=chosen.std,
        image_size=config.crop,
        channels=chosen.decoder_channels,
        source=config.classifier,
    )
    inner = found.classifier
    assert isinstance(inner, AttachedClassifier)
    if new_layer is not None:
        inner.head.scores = "softmax"  # for which stage 1 trains it
        inner.head.new_layer = new_layer
        if not any(inner.head.is_new(name) for name, _ in inner.head.rest.named_parameters()):
            raise FcamError(
                f"the new last layer {new_layer} of {config.classifier} lies before the map that the decoder reads last; name "
                "layers before it with --model.level"
            )
    inner.head.select(outputs_of(classes, inner.head.offer(len(classes)), config))
    return FCAM(inner, _decoder_for(inner, config), classes=classes, metadata=found.metadata)


def _decoder_for(classifier: AttachedClassifier, config: TrainConfig) -> Decoder:
    """A fresh decoder that depends on the seed alone, not on the random numbers that building the classifier took: stages
    that are run apart begin with the decoder of those that are run together.
    """
    backbone = classifier.backbone
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return Decoder(backbone.channels, decoder_channels(backbone, config.model.decoder_channels))


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
            found = (
                f"stands twice in {config.class_names}" if count[name] else f"is not in {config.class_names}"
            )
            hint = f", near are {shown(near)}" if near and not count[name] else ""
            raise FcamError(
                f"the class {name!r} of {config.data} {found}{hint}; rename the folder or the line"
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
