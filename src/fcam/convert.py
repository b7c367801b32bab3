"""Reading the checkpoints of the WSOL codes (wsolevaluation, fcam-wsol) into our format; nothing in them is executed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fcam.backbones.weights import load_checked, read_weights
from fcam.errors import FcamError
from fcam.heads import HEADS, LinearHead, MapHead, build_head
from fcam.model import FCAM
from fcam.registry import create_model

PARTS = ("encoder", "classification_head", "decoder", "segmentation_head")
# A key that only this network has, whatever code wrote the file.
_SIGNS = {
    "vgg16": "conv6.weight",
    "inceptionv3": "Mixed_6e.branch1x1.conv.weight",
    "resnet50": "layer4.2.conv3.weight",
}

State = dict[str, Tensor]


def convert(
    source: str | Path,
    target: str | Path | None = None,
    *,
    classifier: str | Path | None = None,
    output_stride: int = 8,
    classes: list[str] | None = None,
    head: str | None = None,
    head_options: Mapping[str, Any] | None = None,
) -> FCAM:
    """Read a checkpoint of wsolevaluation or fcam-wsol as an FCAM model in eval mode, and save it.

    Args:
        source: a file with a state dict (wsolevaluation's CAM models; either code may have wrapped it in
            "state_dict"), or a folder of fcam-wsol with `encoder.pt` and, as far as they are there,
            `classification_head.pt`, `decoder.pt`, `segmentation_head.pt`.
        target: folder to write our format into; None only returns the model.
        classifier: the folder of fcam-wsol's stage 1, for stage-2 folders, which hold no classification head.
        output_stride: 8 for the 28x28 maps of both codes, 16 for wsolevaluation's ResNet50 without large maps.
        classes: class names in label order.
        head: pooling head, for fcam-wsol's heads that pool class maps: the file does not tell "gap", "maxpool",
            "logsumexp" and "wildcat" apart. None reads the linear head of all methods in the paper's tables.
        head_options: what the file does not tell either: `background`, and where the run changed them `modalities`
            and the head's other numbers; WILDCAT keeps the arithmetic it was trained with (`variant` "reference").

    Where there is no decoder, ours stays random and `model.metadata["decoder_trained"]` is False. The InceptionV3
    of wsolevaluation pads two convolutions less than fcam-wsol's, whose form this is: maps shift a little.
    Raises `FcamError` for files that are missing or hold more than tensors, architectures other than the CAM forms
    of VGG16, InceptionV3 and ResNet50, and any key or shape that does not fit. Source: key schemes of both codes.
    """
    parts = _read(Path(source), Path(classifier) if classifier is not None else None)
    name = _architecture(parts["encoder"], source)
    encoder = _encoder_keys(parts["encoder"], name)
    layer = _head_layer(parts["classification_head"], source)
    kind = head or _head_kind(parts["classification_head"], source)
    options = ({"variant": "reference"} if kind == "wildcat" else {}) | dict(head_options or {})
    num_classes = _num_classes(len(layer["weight"]), kind, options, source)
    with torch.random.fork_rng(devices=[]):
        model = create_model(
            name, num_classes, False, output_stride, head=kind, head_options=options, classes=classes
        )
    load_checked(model.classifier.backbone, encoder, f"{source} (encoder)")
    load_checked(model.classifier.head, _head_keys(layer, kind), f"{source} (classification head)")
    trained = "decoder" in parts
    if trained != ("segmentation_head" in parts):
        found, lost = ("decoder", "segmentation_head") if trained else ("segmentation_head", "decoder")
        raise FcamError(f"{source} has the {found} and not the {lost}, which belong together; copy both")
    if trained:
        decoder = parts["decoder"] | {
            f"segmentation_head.{k}": v for k, v in parts["segmentation_head"].items()
        }
        load_checked(model.decoder, decoder, f"{source} (decoder)")
    model.metadata |= {"decoder_trained": trained, "converted_from": Path(source).name}
    if target is not None:
        model.save_pretrained(target)
    return model.eval()


def _read(source: Path, classifier: Path | None) -> dict[str, State]:
    """Return the state dicts of the parts: of a folder's files, or of one file cut at its prefixes."""
    if source.is_dir():
        parts = {
            part: read_weights(source / f"{part}.pt") for part in PARTS if (source / f"{part}.pt").is_file()
        }
        if "encoder" not in parts:
            raise FcamError(
                f"{source} has no encoder.pt; give a folder that fcam-wsol wrote, or a state dict file"
            )
    else:
        parts = _cut(read_weights(source))
    if "classification_head" not in parts and classifier is not None:
        stage1 = _read(classifier, None)
        if "classification_head" in stage1:
            parts["classification_head"] = stage1["classification_head"]
    if "classification_head" not in parts:
        raise FcamError(
            f"{source} has no classification head; pass classifier=, the folder of the stage 1 it was trained from"
        )
    return parts


def _cut(state: Mapping[str, Tensor]) -> dict[str, State]:
    state = {key.removeprefix("module."): value for key, value in state.items()}
    if any(key.startswith("encoder.") for key in state):
        parts: dict[str, State] = {}
        for key, value in state.items():
            part, _, rest = key.partition(".")
            parts.setdefault(part, {})[rest] = value
        return parts
    heads = ("fc.", "SPG_A4.")
    head = {key: value for key, value in state.items() if key.startswith(heads)}
    rest = {key: value for key, value in state.items() if key not in head}
    return {"encoder": rest} | ({"classification_head": head} if head else {})


def _architecture(encoder: Mapping[str, Tensor], source: str | Path) -> str:
    for name, sign in _SIGNS.items():
        if sign in encoder:
            if name == "vgg16" and "features.28.weight" in encoder:
                raise FcamError(f"{source} is the 14x14 form of VGG16; only the 28x28 form can be read")
            return name
    raise FcamError(
        f"{source} is none of the VGG16, InceptionV3, ResNet50 of the WSOL codes (first key: "
        f"{next(iter(encoder), 'none')}); other timm or torchvision weights go through create_model(pretrained=file)"
    )


def _encoder_keys(encoder: Mapping[str, Tensor], name: str) -> State:
    """Our keys: without what fcam-wsol's encoders hold twice, and with the dropout slot of the SPG layers."""
    twice = {"vgg16": "full_features.", "inceptionv3": "features.", "resnet50": "\0"}[name]
    own = {key: value for key, value in encoder.items() if not key.startswith(twice)}
    if name == "inceptionv3":
        for layer in ("SPG_A3_1b", "SPG_A3_2b"):
            for kind in ("weight", "bias"):
                if f"{layer}.0.{kind}" in own:
                    own[f"{layer}.1.{kind}"] = own.pop(f"{layer}.0.{kind}")
    return own


def _head_layer(head: Mapping[str, Tensor], source: str | Path) -> State:
    """Weight and bias of the head's only layer, whatever it is called."""
    found = {kind: [v for key, v in head.items() if key.endswith(kind)] for kind in ("weight", "bias")}
    if len(head) != 2 or any(len(values) != 1 for values in found.values()):
        raise FcamError(
            f"{source}: the classification head has {', '.join(head) or 'no keys'}; one layer was expected"
        )
    layer = {kind: values[0] for kind, values in found.items()}
    if layer["weight"].dim() < 2 or tuple(layer["weight"].shape[2:]) not in ((), (1, 1)):
        raise FcamError(
            f"{source}: the classification head has shape {tuple(layer['weight'].shape)}; 1x1 was expected"
        )
    return layer


def _head_kind(head: Mapping[str, Tensor], source: str | Path) -> str:
    """The linear head; a convolution before wsolevaluation's average pooling is the same function."""
    if all(value.dim() <= 2 or key.startswith("SPG_A4.") for key, value in head.items()):
        return LinearHead.name
    kinds = ", ".join(name for name in HEADS if name != LinearHead.name)
    raise FcamError(
        f"{source} pools class maps ({', '.join(head)}), and the file does not say how; name the head it was "
        f"trained with: {kinds}"
    )


def _num_classes(rows: int, kind: str, options: Mapping[str, Any], source: str | Path) -> int:
    """Number of classes behind `rows` outputs of the head's layer."""
    if kind not in HEADS or kind == LinearHead.name:
        return rows
    probe = build_head(kind, 1, 1, **options)
    assert isinstance(probe, MapHead)
    classes, rest = divmod(rows, probe.maps_per_class)
    if rest or classes <= probe.background:
        raise FcamError(
            f"{source}: the classification head has {rows} maps, which are not {probe.maps_per_class} for each class"
            f"{' and the background' if probe.background else ''}; check the options of the head {kind!r}"
        )
    return classes - probe.background


def _head_keys(layer: State, kind: str) -> State:
    rows = layer["weight"].flatten(1)
    name, weight = ("fc", rows) if kind == LinearHead.name else ("conv", rows[:, :, None, None])
    return {f"{name}.weight": weight, f"{name}.bias": layer["bias"]}
