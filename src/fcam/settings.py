"""Settings that go together: what follows from them, and what they may not be, said before anything is read or written."""

from __future__ import annotations

import dataclasses

from fcam.attachment import sources
from fcam.attachment.attach import checked_normalization
from fcam.config import LossConfig, StageConfig, TrainConfig, wrong_numbers
from fcam.errors import FcamError
from fcam.grabcut import load_opencv
from fcam.losses.total import TERMS, terms_on

OWN = "own"
"""`ModelConfig.backbone` of a run on a given classifier."""


def settle(config: TrainConfig) -> TrainConfig:
    """`config` with what follows from what is given: of a given classifier nothing but a new head is trained in stage 1, and a
    given decoder comes with its classifier where stage 1 is left out.

    Raises `FcamError` when options are missing or exclude each other.
    """
    for name, value, rule in wrong_numbers(config):
        raise FcamError(f"{_option(name)} is {value}; {rule}")
    # Code alone names no weights: it is what the classifier that comes with the decoder is built by.
    only_code = sources.is_importable(config.classifier) and not config.weights
    named = config.classifier_from or (config.classifier and not only_code)
    if config.decoder_from and config.stages == "decoder" and not named:
        config = dataclasses.replace(config, classifier_from=config.decoder_from)
    _check_order("crop", config.crop, "resize", config.resize)
    if config.stages != "classifier":
        _check_stage("stage2", config.stage2, least=0 if sharpens_only(config) else 1)
        _check_decoder_stage(config)
    elif config.decoder_from:
        raise FcamError(
            "--decoder-from is for stage 2, which --stages classifier leaves out; drop one of the two"
        )
    if trains_classifier(config):
        _check_stage("stage1", config.stage1)
    checked_normalization(config.model.mean, config.model.std)
    if not config.classifier:
        fields = {**vars(config), **{f"model.{name}": value for name, value in vars(config.model).items()}}
        for name in ("weights", "class_names", "new_head", "model.level", "model.mean", "model.std"):
            if fields[name]:
                raise FcamError(f"{_option(name)} belongs to --classifier, which is missing; add it")
        if config.model.backbone == OWN and not config.classifier_from:
            raise FcamError(
                f"this recipe trains a decoder on your own classifier; name it with --classifier {sources.FORMS}"
            )
        return config
    if config.new_head and config.class_names:
        raise FcamError("--new-head learns the folder's classes and needs no --class-names; leave one out")
    if config.new_head and config.stages == "decoder" and not config.classifier_from:
        raise FcamError(
            "--new-head has to be trained before the decoder, which --stages decoder skips; leave one out"
        )
    return dataclasses.replace(
        config,
        head_only=True,
        model=dataclasses.replace(config.model, backbone=OWN),
    )


def as_given(config: TrainConfig) -> TrainConfig:
    """A run's settings as they were given to it: without the classifier that `settle` took from the decoder's model."""
    came_along = config.stages == "decoder" and config.classifier_from == config.decoder_from
    return dataclasses.replace(config, classifier_from="") if came_along else config


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _check_order(smaller: str, value: float, larger: str, limit: float) -> None:
    if value > limit:
        raise FcamError(
            f"{_option(smaller)} is {value:g} and {_option(larger)} {limit:g}; the first may not be the greater one"
        )


def _check_stage(name: str, stage: StageConfig, least: int = 1) -> None:
    if stage.epochs < least:
        raise FcamError(
            f"--{name}.epochs is {stage.epochs}; take 1 or more, or leave a stage out with --stages"
        )
    rates = stage.optimizer
    _check_order(f"{name}.optimizer.min_lr", rates.min_lr, f"{name}.optimizer.lr", rates.lr)


def _check_decoder_stage(config: TrainConfig) -> None:
    loss, seeds, stage = config.loss, config.seeds, config.stage2
    if not sharpens_only(config):
        _check_terms(loss, stage.epochs)
    _check_order("loss.barrier_t", loss.barrier_t, "loss.barrier_max", loss.barrier_max)
    background = seeds.n_minus and seeds.background_pixels
    if loss.alpha and not seeds.foreground_pixels and not background:
        raise FcamError(
            "--seeds.foreground-pixels and --seeds.background-pixels draw no pixel at all; raise one, or turn their "
            "term off with --loss.alpha 0"
        )
    if stage.select == "top1":
        raise FcamError(
            "--stage2.select top1 cannot tell the decoder's epochs apart, since the classifier is fixed; name a metric of the "
            "map, such as max_box_acc (without boxes and masks in val, the last epoch stands)"
        )
    for option, passes in (("rounds", config.rounds - 1), ("sharpen", config.sharpen)):
        if passes and not loss.alpha:
            raise FcamError(
                f"--{option} {getattr(config, option)} hands maps on by their seeds, which --loss.alpha 0 turns off; "
                "drop one of the two"
            )
    if config.sharpen and config.sharpen_by == "grabcut":
        load_opencv()  # so that whoever lacks it hears so before anything is trained
    for name in ("mosaics", "recolor"):
        share = getattr(config, name)
        if share and not round(share * stage.batch_size):
            raise FcamError(
                f"--{name} {share:g} makes none of a batch of {stage.batch_size}; take {1 / stage.batch_size:g} or more"
            )


def _check_terms(loss: LossConfig, epochs: int) -> None:
    """Find terms that would never be on, and epochs without any."""
    for name in TERMS.values():
        first, last = getattr(loss, f"{name}_epochs")
        ends = last >= max(first, 1)
        if first < 0 or not (ends or last == -1) or (getattr(loss, name) and first > epochs):
            raise FcamError(
                f"{_option(f'loss.{name}_epochs')} is {first} {last}, which holds no epoch of 1 to {epochs}; give the first "
                "and the last, -1 for no end"
            )
    # Epochs without a term begin where training does, or where a window ends.
    lasts = (getattr(loss, f"{name}_epochs")[1] for name in TERMS.values())
    for epoch in sorted({1, *(last + 1 for last in lasts if 0 < last < epochs)}):
        if not terms_on(loss, epoch):
            options = ", ".join(_option(f"loss.{name}") for name in TERMS.values())
            raise FcamError(
                f"no term of the loss is on in epoch {epoch} of stage 2; give one of {options} a weight, "
                "or a longer window of epochs"
            )


def trains_classifier(config: TrainConfig) -> bool:
    """Whether stage 1 has anything to train."""
    return (
        config.stages != "decoder"
        and not config.classifier_from
        and (not config.classifier or config.new_head)
    )


def sharpens_only(config: TrainConfig) -> bool:
    """Whether a given decoder goes on with its own sharper maps at once, without epochs of stage 2 before."""
    return bool(config.decoder_from and config.sharpen and config.rounds == 1 and config.stage2.epochs == 0)
