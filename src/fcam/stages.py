"""The two training stages as modules: a batch goes in, named loss terms come out (paper, sec. 3 "Overall training loss")."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fcam import cams
from fcam.config import OptimizerConfig, TrainConfig
from fcam.decoder import Decoder
from fcam.errors import FcamError
from fcam.folding import folded
from fcam.losses import PixelAlignmentLoss
from fcam.model import FCAM, foreground
from fcam.model_card import DEFAULT_THRESHOLD
from fcam.mosaics import draw_mosaics
from fcam.recolor import recolored
from fcam.seeds import SeedMaps, sample_seeds
from fcam.settings import sharpens_only, trains_classifier
from fcam.sharpen import sharp_maps, sharpening
from fcam.winograd import quick_convolutions


class ClassifierStage(nn.Module):
    """Stage 1: the classifier with cross-entropy on image labels.

    Args:
        model: the whole network, so that both stages validate alike.
        config: `head_only` keeps the backbone frozen.
    """

    name = "classifier"

    def __init__(self, model: FCAM, config: TrainConfig) -> None:
        super().__init__()
        self.classifier = model.classifier
        self.settings = config.stage1
        self.head_only = config.head_only

    @property
    def trained(self) -> nn.Module:
        """What this stage changes, and therefore saves."""
        return self.classifier.head if self.head_only else self.classifier

    def parameter_groups(self, optimizer: OptimizerConfig) -> list[dict[str, Any]]:
        """Groups for the optimizer; the head and the late layers learn `late_ratio` times faster."""
        if self.head_only:
            self.classifier.freeze("backbone")
        else:
            self.classifier.unfreeze()
        return self.classifier.parameter_groups(optimizer.lr, optimizer.late_ratio)

    def forward(
        self, images: Tensor, labels: Tensor, epoch: int, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Weighted loss terms of one batch; images (B, 3, H, W) in [0, 1], labels (B,)."""
        with quick_convolutions(images):
            logits = self.classifier(images).logits.float()
        return {"cross_entropy": F.cross_entropy(logits, labels)}


class DecoderStage(nn.Module):
    """Stage 2: the decoder with the pixel alignment loss, on the frozen classifier's features.

    The backbone runs once: the same features feed the decoder and the CAM that seeds are drawn from. With
    `config.mosaics` it also runs on these, whose maps are those of the photos in them, and with `config.recolor` on
    photos in other colours, which the decoder sees while maps and loss are those of the photos as they are.

    Args:
        seed_maps: maps to sample seeds in, instead of the CAM of `config.method`.
        name: what log and resume point call it.
    """

    def __init__(
        self, model: FCAM, config: TrainConfig, seed_maps: SeedMaps | None = None, name: str = "decoder"
    ) -> None:
        super().__init__()
        self.name = name
        self.model = model
        self.seed_maps = seed_maps
        self.settings = config.stage2
        self.config = config
        self.loss = PixelAlignmentLoss(config.loss)
        # In a list, which hides it from parameters and state: a copy of the backbone that runs quicker.
        self._frozen: list[nn.Module] = [model.classifier.backbone]

    @property
    def trained(self) -> nn.Module:
        """What this stage changes, and therefore saves."""
        return self.model.decoder

    def parameter_groups(self, optimizer: OptimizerConfig) -> list[dict[str, Any]]:
        """One group, the decoder; from here on the classifier is fixed."""
        classifier = self.model.classifier
        classifier.freeze()
        side, device = self.config.crop, next(classifier.parameters()).device
        example = torch.zeros(1, 3, side, side, device=device).contiguous(memory_format=torch.channels_last)
        self._frozen = [folded(classifier.backbone, example)]
        return [{"params": list(self.model.decoder.parameters()), "lr": optimizer.lr}]

    def forward(
        self, images: Tensor, labels: Tensor, epoch: int, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Weighted loss terms of one batch; images (B, 3, H, W) in [0, 1], labels (B,)."""
        features = self.features(images)
        maps = self._maps(images, features, labels, generator) if self.loss.needs_seeds(epoch) else None
        if count := round(self.config.recolor * len(images)):
            changed = self.features(recolored(images[:count], generator))
            features = [torch.cat((new, old[count:])) for new, old in zip(changed, features, strict=True)]
        if count := round(self.config.mosaics * len(images)):
            mosaics, their_maps = draw_mosaics(images, maps, count, generator)
            features = [torch.cat(pair) for pair in zip(features, self.features(mosaics), strict=True)]
            images = torch.cat((images, mosaics))
            maps = None if maps is None or their_maps is None else torch.cat((maps, their_maps))
        seeds = None if maps is None else sample_seeds(maps, self.config.seeds, generator)
        with quick_convolutions(images):
            logits = self.model.decoder(features, images.shape[-2:]).float()
        return self.loss(logits, seeds, images, epoch)

    def features(self, images: Tensor) -> list[Tensor]:
        """The frozen backbone's features [f1, ..., fD] of images (B, 3, H, W) in [0, 1]."""
        with quick_convolutions(images), torch.no_grad():
            return self._frozen[0](images)

    def _maps(
        self, images: Tensor, features: Sequence[Tensor], labels: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        if self.seed_maps is not None:
            return _untraced(self.seed_maps, images, features, labels)
        return _cams(self.model, self.config, images, features, labels, generator)


@torch.no_grad()
def _given(seed_maps: SeedMaps, images: Tensor, features: Sequence[Tensor], labels: Tensor) -> Tensor:
    maps = seed_maps(images, features, labels)
    if maps.shape != (len(images), *images.shape[-2:]):
        raise FcamError(
            f"seed_maps returned shape {tuple(maps.shape)} for images of shape {tuple(images.shape)}; "
            "one map (H, W) for each image is needed"
        )
    return maps


# Somebody's own code, or a filter's, which torch.compile need not follow.
_untraced = cast(Callable[..., Tensor], torch.compiler.disable(_given))
Stage = ClassifierStage | DecoderStage


def stages_of(
    model: FCAM,
    config: TrainConfig,
    seed_maps: SeedMaps | None = None,
    threshold: Callable[[], float] = lambda: DEFAULT_THRESHOLD,
) -> Iterator[Stage]:
    """The stages of a run, each to be trained before the next is asked for.

    Stage 2 comes once for each of `config.rounds`, every time with the decoder as it was at first, and once more where
    `config.sharpen` lets the last of them go on, or one that was given. "decoder" is the last of all, whose weights are the
    run's.

    Args:
        seed_maps: what the first round samples in, instead of the CAM; sharpening too takes it for the maps of the classes.
        threshold: where the decoder's map as it is now is cut; asked for before sharpening.
    """
    if trains_classifier(config):
        yield ClassifierStage(model, config)
    if config.stages == "classifier":
        return
    class_maps = seed_maps or class_maps_of(model, config)
    untrained = copy.deepcopy(model.decoder.state_dict())
    rounds = 0 if sharpens_only(config) else config.rounds
    before = rounds - (not config.sharpen)
    names = [*(f"decoder-round{number}" for number in range(1, before + 1)), "decoder"]
    for number in range(rounds):
        if number:
            seed_maps = maps_of(model.decoder)
            model.decoder.load_state_dict(untrained)
        yield DecoderStage(model, config, seed_maps, names[number])
    if config.sharpen:
        teacher = sharp_maps(maps_of(model.decoder), class_maps, threshold(), config.sharpen_by)
        yield DecoderStage(model, sharpening(config), teacher)


def maps_of(decoder: Decoder) -> SeedMaps:
    """Maps of a trained decoder as it is now to sample seeds in, for another one to learn from."""
    teacher = copy.deepcopy(decoder).requires_grad_(False).eval()

    def seed_maps(images: Tensor, features: Sequence[Tensor], labels: Tensor) -> Tensor:
        with quick_convolutions(images):
            return foreground(teacher.to(images.device)(features, images.shape[-2:])).float()

    return seed_maps


def class_maps_of(model: FCAM, config: TrainConfig) -> SeedMaps:
    """The classifier's own maps of `config.method`, the same at every call also where the method looks at noisy copies."""

    def class_maps(images: Tensor, features: Sequence[Tensor], labels: Tensor) -> Tensor:
        return _cams(model, config, images, features, labels, torch.Generator(images.device).manual_seed(0))

    return class_maps


def _cams(
    model: FCAM,
    config: TrainConfig,
    images: Tensor,
    features: Sequence[Tensor],
    labels: Tensor,
    generator: torch.Generator | None,
) -> Tensor:
    return cams.interpolated(
        model.classifier, images, features[-1], labels, config.method, config.variant, generator
    )
