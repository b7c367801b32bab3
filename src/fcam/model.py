"""F-CAM: a classifier, and a decoder that turns its features into a full-resolution activation map."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fcam import checkpoint
from fcam.attachment import attached, sources
from fcam.backbones.weights import load_checked
from fcam.classifier import Classifier
from fcam.decoder import Decoder
from fcam.errors import FcamError, cut, shown
from fcam.plain import class_names
from fcam.winograd import quick_convolutions

CLASSIFIER_WEIGHTS, IMAGENET = "classifier_weights", "imagenet"
"""Entry of `config.json` beside weights that are the decoder's alone."""


class FCAMOutput(NamedTuple):
    """What one forward pass gives.

    Attributes:
        logits: (B, K) class logits, float32.
        maps: (B, 2, H, W) logits of the maps S, float32: channel 0 background, 1 foreground.
        features: [f1, ..., fD] of the classifier, shallow to deep.
    """

    logits: Tensor
    maps: Tensor
    features: list[Tensor]


class FCAM(nn.Module):
    """Classifier and decoder; one forward pass gives class logits and full-resolution maps (paper, fig. 1).

    Attributes:
        classes: class names in label order, or None.
        metadata: JSON values kept with the saved model, such as thresholds.

    Args:
        classifier: frozen unless `freeze_classifier` is False: no gradients, and eval mode even under
            `.train()`.
        decoder: built for the classifier's features.
        classes: K class names in label order: a list, an array, or any other iterable.
    """

    def __init__(
        self,
        classifier: Classifier,
        decoder: Decoder,
        freeze_classifier: bool = True,
        classes: Iterable[str] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if decoder.encoder_channels != classifier.backbone.channels:
            raise FcamError(
                f"the decoder reads features of {decoder.encoder_channels} channels but "
                f"{classifier.backbone.name} gives {classifier.backbone.channels}; build it with these"
            )
        names = None if classes is None else class_names(classes)
        if names is not None and len(names) != classifier.num_classes:
            raise FcamError(
                f"got {len(names)} class names for {classifier.num_classes} classes; give one for each"
            )
        self.classifier = classifier
        self.decoder = decoder
        self.classes = names
        self.metadata: dict[str, Any] = dict(metadata or {})
        if freeze_classifier:
            classifier.freeze()

    def forward(self, images: Tensor) -> FCAMOutput:
        """Map images (B, 3, H, W) in [0, 1], H and W at least 32, to an `FCAMOutput`.

        Raises `FcamError` when the images have another shape, type or range.
        """
        with quick_convolutions(images):
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.classifier.frozen):
                logits, features = self.classifier(images)
            maps = self.decoder(features, images.shape[-2:])
        return FCAMOutput(logits.float(), maps.float(), features)

    def foreground(self, images: Tensor) -> Tensor:
        """The F-CAM S² of images (B, 3, H, W) in [0, 1]: (B, H, W) float32 in [0, 1], also under autocast."""
        return foreground(self(images).maps)

    def doubt_about(self, classes: list[str], data: str) -> str:
        """A sentence that says where the classes of `data`, in label order, are named otherwise than the model's; or ""."""
        pairs = enumerate(zip(self.classes or classes, classes, strict=False))
        differ = [
            f"{i} is {shown(own)} to the model and {shown(name)} there"
            for i, (own, name) in pairs
            if own != name
        ]
        if not differ:
            return ""
        return f"the classes of {data} have other names than the model's: {differ[0]}; if they are others, so are all numbers"

    def config(self) -> dict[str, Any]:
        """All that is needed to build this model again, as JSON values."""
        return {
            **self.classifier.config(),
            "decoder": {"channels": list(self.decoder.channels), "center": self.decoder.has_center},
            "classes": self.classes,
            "metadata": self.metadata,
        }

    @classmethod
    @torch.inference_mode(False)  # tensors made inside could never be trained
    def from_config(cls, config: dict[str, Any], classifier: nn.Module | str | None = None) -> FCAM:
        """Build a model from what `config()` returned, with random weights in the decoder, and in the classifier too
        unless the configuration says that it is a library's ImageNet one.

        `classifier` is the module, or the name that builds it, of a model that `fcam.attach` made. Raises `FcamError` if
        the configuration is incomplete or another classifier is needed.
        """
        try:
            if "classifier" in config:
                inner: Classifier = attached.rebuild(config, classifier)
            elif classifier is not None:
                raise FcamError(
                    "this model was not made by fcam.attach and builds its own classifier; pass none"
                )
            else:
                inner = Classifier.from_config(config, pretrained=_is_decoder_only(config))
            decoder = Decoder(inner.backbone.channels, **config["decoder"])
            return cls(inner, decoder, classes=config.get("classes"), metadata=config.get("metadata"))
        except FcamError:
            raise
        # Numbers and names of any kind reach torch's and timm's constructors, which refuse them in many ways.
        except Exception as error:
            raise FcamError(
                f"the model's configuration is incomplete or damaged ({cut(repr(error))}); save the model again"
            ) from error

    def save_pretrained(self, folder: str | Path, decoder_only: bool = False) -> None:
        """Write `config.json` and `model.safetensors` into `folder`.

        `decoder_only` leaves the classifier out and stores the decoder in half precision: a small file for a classifier
        that anybody can have, a backbone of `list_models()` with its own ImageNet weights and head. It is the caller's to
        know that it is one.
        """
        if not decoder_only:
            checkpoint.write(folder, self.config(), self.state_dict())
            return
        state = {k: v.half() if v.is_floating_point() else v for k, v in self.decoder.state_dict().items()}
        checkpoint.write(folder, {**self.config(), CLASSIFIER_WEIGHTS: IMAGENET}, state)

    @classmethod
    def from_pretrained(cls, source: str | Path, classifier: nn.Module | str | None = None) -> FCAM:
        """Load a model in eval mode, on the CPU, from a folder, a run folder, the name of a model that comes with the
        package (`fcam.shipped.NAMES`), or a Hugging Face repo id.

        A folder is read without network or pickle. A model that was made by `fcam.attach` from somebody's own code needs
        `classifier`, the module (whose weights are left alone) or the "module.path:factory" that builds it. Raises
        `FcamError` when the folder is missing, damaged or does not fit.
        """
        folder = checkpoint.resolve(source)
        config, state = checkpoint.read(folder)
        # Random weights that are overwritten must not cost random numbers.
        with torch.random.fork_rng(devices=[]):
            if isinstance(classifier, str) and "classifier" in config:
                sources.maker(classifier)  # a name that is wrong is no fault of the folder
            try:
                _check_widths(config, state)
                model = cls.from_config(config, classifier)
            except sources.FactoryError:
                raise
            except FcamError as error:
                raise FcamError(f"{folder / checkpoint.CONFIG}: {error}") from error
        part = model.decoder if _is_decoder_only(config) else model
        load_checked(part, state, str(folder / checkpoint.WEIGHTS))
        return model.eval()

    def push_to_hub(self, repo_id: str, private: bool = False, message: str | None = None) -> str:
        """Upload the saved model to the Hugging Face Hub (owner/name); return the address of the commit."""
        return checkpoint.push(repo_id, self.save_pretrained, private, message)


def _is_decoder_only(config: dict[str, Any]) -> bool:
    """Whether `model.safetensors` holds the decoder alone, beside a classifier that a library provides."""
    return config.get(CLASSIFIER_WEIGHTS) == IMAGENET


def _check_widths(config: dict[str, Any], state: dict[str, Tensor]) -> None:
    """Raise `FcamError` before a network is built that is larger than the weights that are to fill it."""
    head, decoder = config.get("head"), config.get("decoder")
    widths = decoder.get("channels") if isinstance(decoder, dict) else None
    inner = config.get("classifier")
    numbers: list[Any] = [None, None, None]
    if not _is_decoder_only(config):
        numbers = [config.get("num_classes"), head.get("modalities") if isinstance(head, dict) else None]
        numbers += [inner.get("num_outputs") if isinstance(inner, dict) else None]
    numbers += widths if isinstance(widths, list) else []
    largest = max((side for value in state.values() for side in value.shape), default=0)
    for number in numbers:
        if isinstance(number, int | float) and not number <= largest:
            raise FcamError(
                f"the configuration has a width of {shown(number)} but the largest tensor side is {largest}; "
                "config.json and model.safetensors must come from the same model"
            )
    if len(numbers) > len(state) + 3:
        raise FcamError(f"the configuration has {len(numbers) - 3} decoder blocks for {len(state)} tensors")


def foreground(maps: Tensor) -> Tensor:
    """S², the softmax over the two map logits (B, 2, H, W) at index 1, as (B, H, W) float32."""
    maps = maps.float()
    return torch.sigmoid(maps[:, 1] - maps[:, 0])  # the two-way softmax, in one pass
