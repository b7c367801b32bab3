"""Training: one loop over epochs for both stages, read from top to bottom; `fcam.optimization` does an epoch.

Everything random is a function of (seed, epoch, step, process), so a run that was killed and resumed ends with the
same weights as one that was not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import time
from pathlib import Path
from typing import Any, get_args

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import set_seed
from torch import nn

from fcam import checkpoint, files
from fcam.attachment.attached import AttachedClassifier
from fcam.classifier import Classifier
from fcam.config import SelectionMetric, TrainConfig
from fcam.data import EvalTransform, open_dataset, splits
from fcam.data.workers import deaths_explained
from fcam.environment import environment
from fcam.errors import FcamError
from fcam.evaluate import evaluate, evaluate_split, has_truth_for
from fcam.lock import alone
from fcam.memory import keep_freed_memory
from fcam.model import FCAM
from fcam.model_card import DEFAULT_THRESHOLD, card_threshold
from fcam.optimization import Optimization, copy_of
from fcam.origin import Origin
from fcam.precision import resolve
from fcam.processes import process_state
from fcam.progress import say
from fcam.run import Run, config_to_dict
from fcam.scores import MASKS, Scorecard
from fcam.settings import settle, trains_classifier
from fcam.split_maps import MapOptions
from fcam.stages import SeedMaps, Stage, stages_of
from fcam.start import build, check_classes, introduce

IMAGENET_CLASSES = 1000
"""With so many classes a pretrained backbone may bring its own head."""
FINER = {"max_box_acc": "max_box_acc_v2"}
"""What tells epochs apart that a metric of few photos has equal: MaxBoxAccV2 counts the same boxes at three overlaps."""
NAME_ONE = "name its run with --classifier-from, or your own with --classifier, or train both stages"


def train(config: TrainConfig, seed_maps: SeedMaps | None = None) -> Path:
    """Run both stages (or one), evaluate the selected model on `test`, and leave everything in `config.out`.

    Args:
        config: every setting of the run.
        seed_maps: maps to sample seeds in, instead of the CAM of `config.method`: a function of images (B, 3, H, W),
            their features f1..fD and labels (B,), which returns (B, H, W) in [0, 1]. Sharpening takes it for the CAM as
            well. It is not part of the run's folder, so resuming needs it again.

    Returns:
        the run's folder.

    Raises:
        FcamError: settings, data or a loss that went wrong, in one sentence.
    """
    accelerator = _accelerator(config)
    config = settle(config)
    photos = open_dataset(config.data, "train").split  # a wrong path ends here, before anything is written
    classes = photos.classes
    for name in splits(config.data)[1:]:  # and so do lists that nothing asks for until the end
        open_dataset(config.data, name, localization=True)
    if trains_classifier(config):
        check_classes(photos)
    _check_classifier_is_there(config, len(classes))
    set_seed(config.seed)
    model = build(config, classes)
    _check_head_is_trained(config, model.classifier)
    model = model.to(accelerator.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    run = Run(config.out)
    with alone(run.root, "training") if accelerator.is_main_process else contextlib.nullcontext():
        _train(model, config, run, accelerator, seed_maps)
    return run.root


def _train(
    model: FCAM, config: TrainConfig, run: Run, accelerator: Accelerator, seed_maps: SeedMaps | None
) -> None:
    """Do a run in a folder that no other is at work in; as `train`."""
    if accelerator.is_main_process:
        run.open(config, _origin(config, model))
        if config.classifier and not config.classifier_from:
            say(introduce(model, config))
    accelerator.wait_for_everyone()
    if config.tensorboard:
        accelerator.init_trackers("tensorboard")
    for stage in stages_of(model, config, seed_maps, lambda: _threshold(model, config)):
        train_stage(stage, model, config, run, accelerator)
        if stage.name == "classifier" and accelerator.is_main_process:
            run.keep_classifier(model)  # whatever befalls the decoder, another run can start from it
    model.metadata["decoder_trained"] = config.stages != "classifier"
    model.metadata["method"], model.metadata["variant"] = config.method, config.variant
    _evaluate_and_save(model, config, run, accelerator)
    accelerator.end_training()


def _origin(config: TrainConfig, model: FCAM) -> Origin:
    """What the names in the settings stand for now: the data's classes, and the classifier and decoder that are given."""
    digest, inner = "", model.classifier
    if config.classifier_from:
        digest = checkpoint.part_digest(config.classifier_from, "classifier")
    elif isinstance(inner, AttachedClassifier):
        # The order of its outputs is read from --class-names, and belongs to it as much as its weights.
        order = torch.tensor(inner.head.outputs or range(inner.num_classes))
        digest = checkpoint.weights_digest({**inner.state_dict(), "outputs": order})
    decoder = checkpoint.part_digest(config.decoder_from, "decoder") if config.decoder_from else ""
    return Origin(tuple(model.classes or ()), digest, decoder)


def _accelerator(config: TrainConfig) -> Accelerator:
    """The devices and the precision of the run; on a CPU the process keeps freed memory from here on."""
    if config.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise FcamError(
            '--tensorboard needs a package that is not installed; pip install "fcam[tensorboard]"'
        )
    device = process_state().device or torch.device("cpu")
    precision = resolve(config.precision, device)
    if precision == "fp16" and device.type == "cpu":  # where accelerate would train in float32 without a word
        raise FcamError("--precision fp16 trains on a GPU only, and there is none; take bf16 or no")
    AcceleratorState._reset_state()  # it remembers the precision of an earlier run in this process, and refuses another
    accelerator = Accelerator(
        mixed_precision=precision,
        log_with="tensorboard" if config.tensorboard else None,
        project_dir=config.out,
    )
    if accelerator.device.type == "cpu":
        keep_freed_memory()
    return accelerator


def _check_classifier_is_there(config: TrainConfig, classes: int) -> None:
    """Raise `FcamError` when the decoder alone is trained and nothing says on which classifier."""
    if _needs_classifier(config) and classes != IMAGENET_CLASSES:
        raise FcamError(
            f"--stages decoder needs a trained classifier of the {classes} classes of {config.data}; {NAME_ONE}"
        )


def _check_head_is_trained(config: TrainConfig, classifier: Classifier) -> None:
    """Raise `FcamError` when the decoder alone would be trained on a head of random weights."""
    if _needs_classifier(config) and not classifier.took_imagenet_head:
        raise FcamError(
            f"--stages decoder needs a trained classifier, but the {config.model.head} head of {config.model.backbone} for "
            f"{classifier.num_classes} classes begins with random weights; {NAME_ONE}"
        )


def _needs_classifier(config: TrainConfig) -> bool:
    return config.stages == "decoder" and not config.classifier_from and not config.classifier


@deaths_explained()
def train_stage(stage: Stage, model: FCAM, config: TrainConfig, run: Run, accelerator: Accelerator) -> None:
    """Train one stage, or go on with it, and leave its selected weights in the model."""
    settings, trained, main = stage.settings, stage.trained, accelerator.is_main_process
    optimization = Optimization(stage, config, accelerator, run.state_path(stage.name))
    # Without boxes or masks in `val` nothing can be selected, and the last epoch stands.
    selecting = has_truth_for(settings.select, config.data)
    if not selecting and main and has_truth_for("pxap", config.data):
        say(
            f"val has masks but no boxes, so {settings.select} chooses no epoch and the last one stands; "
            f"let the masks choose with --{'stage1' if stage.name == 'classifier' else 'stage2'}.select pxap"
        )

    state = run.load_state(stage.name) or {"epoch": 0, "best": None, "best_weights": None}
    if state["epoch"]:
        try:
            trained.load_state_dict(state["best_weights"])  # found here to fit, not after hours of training
            optimization.load_state_dict(state)
        except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise run.damaged(stage.name, error) from error
    if main:
        run.trim_log(stage.name, state["epoch"])

    for epoch in range(state["epoch"] + 1, settings.epochs + 1):
        started = time.perf_counter()
        rates = optimization.set_rates(epoch)
        terms = optimization.run_epoch(epoch)
        seconds = time.perf_counter() - started
        with optimization.average.in_place():
            _share_statistics(trained, accelerator)
            scores = _validate(model, stage, config) if selecting else {}
            value = scores.get(settings.select)
            if selecting and value is None and main and epoch == 1:
                say(
                    f"no mask of val shows an object, so {settings.select} chooses no epoch and the last one stands; {MASKS}"
                )
            chosen = {"epoch": epoch, "value": value, "finer": scores.get(FINER.get(settings.select, ""))}
            if _is_better(chosen, state["best"]):
                state["best"] = chosen
                state["best_weights"] = copy_of(trained)
        state |= {"epoch": epoch, **optimization.state_dict()}
        record = {
            "stage": stage.name,
            "epoch": epoch,
            "lr": rates,
            "loss": sum(terms.values()),
            "terms": terms,
        }
        record |= {"val": scores, "best": state["best"], "seconds": round(seconds, 3)}
        if main:
            # In this order: a line without its state is cut off on resuming, an epoch without its line would stay lost.
            run.log(record)
            run.save_state(stage.name, state)
        accelerator.log({f"{stage.name}/{k}": v for k, v in {**terms, **scores}.items()}, step=epoch)
        if main:
            _say_epoch(record, settings.epochs)
    trained.load_state_dict(state["best_weights"])
    accelerator.free_memory()


def _is_better(new: dict[str, Any], best: dict[str, Any] | None) -> bool:
    """Whether an epoch takes the place of the best so far by its value on `val`; without values the last one does.

    An interrupted run may have got boxes or masks for `val` since: a scored epoch takes the place of one without a score.
    """
    if best is None or new["value"] is None or best["value"] is None:
        return True
    if new["value"] != best["value"]:
        return new["value"] > best["value"]
    # A run that was interrupted may come from a version that kept no finer value.
    return None not in (new["finer"], best.get("finer")) and new["finer"] > best["finer"]


def _validate(model: FCAM, stage: Stage, config: TrainConfig) -> dict[str, float]:
    """Scores on `val` of the map that the stage shapes: the CAM in stage 1, F-CAM in stage 2."""
    kind = "cam" if stage.name == "classifier" else "fcam"
    card = _score_val(model, config, kind, stage.settings.batch_size)
    values = {name: card.value(kind, name) for name in get_args(SelectionMetric)}
    return {name: value for name, value in values.items() if value is not None}


def _threshold(model: FCAM, config: TrainConfig) -> float:
    """Where F-CAM's map is best cut on `val`, or the usual threshold where `val` cannot tell."""
    if not any(has_truth_for(metric, config.data) for metric in ("max_box_acc", "pxap")):
        return DEFAULT_THRESHOLD
    card = _score_val(model, config, "fcam", config.stage2.batch_size)
    return card_threshold({"thresholds": card.thresholds()})


def _score_val(model: FCAM, config: TrainConfig, kind: str, batch_size: int) -> Scorecard:
    """Score one kind of map on `val`."""
    return evaluate_split(
        model,
        open_dataset(config.data, "val", transform=EvalTransform(config.crop), localization=True),
        kinds=(kind,),
        options=_map_options(config, batch_size=batch_size, precision=config.precision),
        title="validate",
    )


def _map_options(config: TrainConfig, **changes: Any) -> MapOptions:
    own = MapOptions(config.method, config.variant, workers=config.workers, seed=config.seed)
    return dataclasses.replace(own, **changes)


def _evaluate_and_save(model: FCAM, config: TrainConfig, run: Run, accelerator: Accelerator) -> None:
    """Write `metrics.json` for `test` (where there is one), and `model/` with the thresholds chosen on `val`."""
    model.metadata["training"] = config_to_dict(dataclasses.replace(config, out="", data="", resume=False))
    model.metadata["environment"] = environment(accelerator.device, config.precision)
    if accelerator.is_main_process:
        model.metadata["thresholds"] = checkpoint.remembered_thresholds(run.model, model.state_dict())
        run.keep_model(model)  # whatever befalls the evaluation, the model is there
    split = next((name for name in ("test", "val") if name in splits(config.data)), None)
    report = evaluate(model, config.data, split, config.crop, _map_options(config)) if split else None
    if accelerator.is_main_process:
        run.keep_model(model)
        if report is not None:
            files.write_json(run.metrics, report)
    accelerator.wait_for_everyone()


def _share_statistics(module: nn.Module, accelerator: Accelerator) -> None:
    """Give every process the batch statistics of the first, whose weights are saved: what is scored is what is kept."""
    if accelerator.num_processes > 1:
        for buffer in module.buffers():
            torch.distributed.broadcast(buffer, 0)


def _say_epoch(record: dict[str, Any], epochs: int) -> None:
    terms = "  ".join(f"{name} {value:.4f}" for name, value in record["terms"].items())
    val = "  ".join(f"{name} {value:.2f}" for name, value in record["val"].items())
    chosen = " *" if record["best"]["epoch"] == record["epoch"] else ""
    say(
        f"{record['stage']} {record['epoch']}/{epochs}  {terms}  val {val or '-'}{chosen}  {record['seconds']:.1f} s"
    )
