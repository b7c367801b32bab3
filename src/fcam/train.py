"""Training: one loop for both stages, read from top to bottom.

Everything random is a function of (seed, epoch, step, process), so a run that was killed and resumed ends with the
same weights as one that was not.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import time
from pathlib import Path
from typing import Any, get_args

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import set_seed
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fcam import files
from fcam.averaging import WeightAverage
from fcam.config import OptimizerConfig, SelectionMetric, TrainConfig
from fcam.data import EpochSampler, EvalTransform, TrainTransform, collate, open_dataset, splits
from fcam.environment import environment
from fcam.errors import FcamError
from fcam.evaluate import MapOptions, evaluate, evaluate_split, has_truth_for
from fcam.memory import keep_freed_memory
from fcam.model import FCAM
from fcam.precision import resolve
from fcam.processes import process_state
from fcam.progress import epoch_bar, say
from fcam.quiet import quiet_decoders
from fcam.run import Run, config_to_dict
from fcam.stages import ClassifierStage, DecoderStage, SeedMaps
from fcam.start import build, check_classes, introduce, settle, trains_classifier

Stage = ClassifierStage | DecoderStage
IMAGENET_CLASSES = 1000
"""With so many classes a pretrained backbone brings its own head."""
SEEDS = 2**32
"""So many seeds numpy knows."""
CHECK_EVERY = 20
"""Steps between looks at the loss; each look makes an accelerator wait."""


def train(config: TrainConfig, seed_maps: SeedMaps | None = None) -> Path:
    """Run both stages (or one), evaluate the selected model on `test`, and leave everything in `config.out`.

    Args:
        config: every setting of the run.
        seed_maps: maps to sample seeds in, instead of the CAM of `config.method`: a function of images (B, 3, H, W),
            their features f1..fD and labels (B,), which returns (B, H, W) in [0, 1]. It is not part of the run's
            folder, so resuming needs it again.

    Returns:
        the run's folder.

    Raises:
        FcamError: settings, data or a loss that went wrong, in one sentence.
    """
    if config.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise FcamError(
            '--tensorboard needs a package that is not installed; pip install "fcam[tensorboard]"'
        )
    AcceleratorState._reset_state()  # it remembers the precision of an earlier run in this process, and refuses another
    accelerator = Accelerator(
        mixed_precision=resolve(config.precision, process_state().device or torch.device("cpu")),
        log_with="tensorboard" if config.tensorboard else None,
        project_dir=config.out,
    )
    if accelerator.device.type == "cpu":
        keep_freed_memory()
    config = settle(config)
    photos = open_dataset(config.data, "train").split  # a wrong path ends here, before anything is written
    classes = photos.classes
    if trains_classifier(config):
        check_classes(photos)
    given = config.classifier_from or config.classifier
    if config.stages == "decoder" and not given and len(classes) != IMAGENET_CLASSES:
        raise FcamError(
            f"--stages decoder needs a trained classifier of the {len(classes)} classes of {config.data}; "
            "name its run with --classifier-from, or your own with --classifier, or train both stages"
        )
    set_seed(config.seed)
    model = build(config, classes).to(accelerator.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    run = Run(config.out)
    if accelerator.is_main_process:
        run.open(config)
        if config.classifier and not config.classifier_from:
            say(introduce(model, config))
    accelerator.wait_for_everyone()
    if config.tensorboard:
        accelerator.init_trackers("tensorboard")
    stages = [ClassifierStage(model, config)] if trains_classifier(config) else []
    stages += [DecoderStage(model, config, seed_maps)] if config.stages != "classifier" else []
    for stage in stages:
        train_stage(stage, model, config, run, accelerator)
    model.metadata["decoder_trained"] = config.stages != "classifier"
    model.metadata["method"], model.metadata["variant"] = config.method, config.variant
    _evaluate_and_save(model, config, run, accelerator)
    accelerator.end_training()
    return run.root


def train_stage(stage: Stage, model: FCAM, config: TrainConfig, run: Run, accelerator: Accelerator) -> None:
    """Train one stage, or go on with it, and leave its selected weights in the model."""
    settings = stage.settings
    optimizer = sgd(stage.parameter_groups(settings.optimizer), settings.optimizer)
    base_rates = [group["lr"] for group in optimizer.param_groups]
    loader = _train_loader(config, settings.batch_size)
    accelerator.gradient_accumulation_steps = settings.accumulate
    trained, module = stage.trained, (torch.compile(stage) if config.compile else stage)
    module, optimizer, loader = accelerator.prepare(module, optimizer, loader)
    average = WeightAverage(trained, settings.average)
    # Without boxes or masks in `val` nothing can be selected, and the last epoch stands.
    selecting = has_truth_for(settings.select, config.data)
    if not selecting and accelerator.is_main_process and has_truth_for("pxap", config.data):
        say(
            f"val has masks but no boxes, so {settings.select} chooses no epoch and the last one stands; "
            f"let the masks choose with --{'stage1' if stage.name == 'classifier' else 'stage2'}.select pxap"
        )

    state = run.load_state(stage.name) or {"epoch": 0, "best": None, "best_weights": None}
    if state["epoch"]:
        try:
            trained.load_state_dict(state["best_weights"])  # found here to fit, not after hours of training
            trained.load_state_dict(state["weights"])
            optimizer.load_state_dict(state["optimizer"])
            average.load_state_dict(state.get("average"))
            if accelerator.scaler is not None and state.get("scaler"):
                accelerator.scaler.load_state_dict(state["scaler"])
        except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise run.damaged(stage.name, error) from error
    if accelerator.is_main_process:
        run.trim_log(stage.name, state["epoch"])

    for epoch in range(state["epoch"] + 1, settings.epochs + 1):
        started = time.perf_counter()
        rates = [_learning_rate(rate, epoch, settings.epochs, settings.optimizer) for rate in base_rates]
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        terms = _train_epoch(stage, module, optimizer, average, loader, epoch, config, accelerator, run)
        seconds = time.perf_counter() - started
        with average.in_place():
            _share_statistics(trained, accelerator)
            scores = _validate(model, stage, config, accelerator) if selecting else {}
            value = scores.get(settings.select)
            if state["best"] is None or value is None or value > state["best"]["value"]:
                state["best"] = {"epoch": epoch, "value": value}
                state["best_weights"] = _copy(trained)
        state |= {"epoch": epoch, "weights": _copy(trained), "optimizer": optimizer.state_dict()}
        state["average"] = average.state_dict()
        state["scaler"] = accelerator.scaler.state_dict() if accelerator.scaler is not None else None
        record = {
            "stage": stage.name,
            "epoch": epoch,
            "lr": rates,
            "loss": sum(terms.values()),
            "terms": terms,
        }
        record |= {"val": scores, "best": state["best"], "seconds": round(seconds, 3)}
        if accelerator.is_main_process:
            # In this order: a line without its state is cut off on resuming, an epoch without its line would stay lost.
            run.log(record)
            run.save_state(stage.name, state)
        accelerator.log({f"{stage.name}/{k}": v for k, v in {**terms, **scores}.items()}, step=epoch)
        _say_epoch(record, settings.epochs, settings.select, accelerator)
    trained.load_state_dict(state["best_weights"])
    accelerator.free_memory()


def _train_epoch(
    stage: Stage,
    module: nn.Module,
    optimizer: Any,
    average: WeightAverage,
    loader: Any,
    epoch: int,
    config: TrainConfig,
    accelerator: Accelerator,
    run: Run,
) -> dict[str, float]:
    """One pass over the training split; mean of each weighted loss term."""
    # Dropout draws from the global generators; everything else from the step's own.
    set_seed((config.seed * 1_000_003 + epoch) % SEEDS)
    loader.set_epoch(epoch)
    module.train()
    generator = torch.Generator(device=accelerator.device)
    sums: dict[str, Tensor] = {}
    images_seen, pending = 0, []
    with epoch_bar(
        f"{stage.name} {epoch}/{stage.settings.epochs}", len(loader), accelerator.is_main_process
    ) as bar:
        for step, batch in enumerate(loader, start=1):
            generator.manual_seed(
                hash((config.seed, epoch, step, accelerator.process_index)) & 0x7FFF_FFFF_FFFF
            )
            with accelerator.accumulate(module):
                images = batch["image"].to(memory_format=torch.channels_last).float().div_(255)
                terms = module(images, batch["label"], epoch, generator)
                accelerator.backward(sum(terms.values()))
                if stage.settings.optimizer.clip_norm > 0 and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(module.parameters(), stage.settings.optimizer.clip_norm)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            if accelerator.sync_gradients:
                average.update()
            count = len(images)
            images_seen += count
            for name, value in terms.items():
                sums[name] = sums.get(name, torch.zeros((), device=value.device)) + value.detach() * count
            pending.append((step, {name: value.detach() for name, value in terms.items()}))
            if step % CHECK_EVERY == 0 or step == len(loader):
                _stop_if_not_finite(pending, stage, epoch, run)
                pending.clear()
            bar.advance(count)
    return {name: (value / images_seen).item() for name, value in sums.items()}


def _stop_if_not_finite(
    pending: list[tuple[int, dict[str, Tensor]]], stage: Stage, epoch: int, run: Run
) -> None:
    """Raise `FcamError` that names the first bad step and term, and the checkpoint before it."""
    for step, terms in pending:
        for name, value in terms.items():
            number = float(value)
            if not math.isfinite(number):
                good = (
                    f"{run.state_path(stage.name)} holds epoch {epoch - 1}"
                    if epoch > 1
                    else "no epoch was finished"
                )
                raise FcamError(
                    f"the {name} term became {number} in step {step} of epoch {epoch} of the {stage.name} stage; {good}; "
                    "lower the learning rate or use --precision no"
                )


def sgd(groups: list[dict[str, Any]], settings: OptimizerConfig) -> torch.optim.SGD:
    """SGD as the paper uses it; the fused kernel computes the same update in one pass over the weights."""
    return torch.optim.SGD(
        groups,
        lr=settings.lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov and settings.momentum > 0,
        weight_decay=settings.weight_decay,
        fused=True,
    )


def _learning_rate(base: float, epoch: int, epochs: int, settings: OptimizerConfig) -> float:
    """Rate of `epoch` (from 1); `step` drops after every `step_epochs` epochs, as the authors' code does."""
    if settings.schedule == "step":
        base *= settings.gamma ** ((epoch - 1) // settings.step_epochs)
    elif settings.schedule == "cosine":
        base *= 0.5 * (1 + math.cos(math.pi * (epoch - 1) / epochs))
    return max(base, settings.min_lr)


def _train_loader(config: TrainConfig, batch_size: int) -> DataLoader[Any]:
    dataset = open_dataset(
        config.data, "train", transform=TrainTransform(config.resize, config.crop), seed=config.seed
    )
    return DataLoader(
        dataset,  # type: ignore[arg-type]
        batch_size=batch_size,
        sampler=EpochSampler(dataset, seed=config.seed),
        collate_fn=collate,
        num_workers=config.workers,
        persistent_workers=config.workers > 0,
        # Of its own, so that starting workers costs no number of the generator that dropout draws from.
        generator=torch.Generator().manual_seed(config.seed),
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=quiet_decoders,
    )


def _validate(model: FCAM, stage: Stage, config: TrainConfig, accelerator: Accelerator) -> dict[str, float]:
    """Scores on `val` of the map that the stage shapes: the CAM in stage 1, F-CAM in stage 2."""
    kind = "cam" if stage.name == "classifier" else "fcam"
    card = evaluate_split(
        model,
        open_dataset(config.data, "val", transform=EvalTransform(config.crop), localization=True),
        kinds=(kind,),
        options=_map_options(config, batch_size=stage.settings.batch_size, precision=config.precision),
        title="validate",
    )
    values = {name: card.value(kind, name) for name in get_args(SelectionMetric)}
    return {name: value for name, value in values.items() if value is not None}


def _map_options(config: TrainConfig, **changes: Any) -> MapOptions:
    own = MapOptions(config.method, config.variant, workers=config.workers, seed=config.seed)
    return dataclasses.replace(own, **changes)


def _evaluate_and_save(model: FCAM, config: TrainConfig, run: Run, accelerator: Accelerator) -> None:
    """Write `metrics.json` for `test` (where there is one), and `model/` with the thresholds chosen on `val`."""
    model.metadata["training"] = config_to_dict(dataclasses.replace(config, out="", data="", resume=False))
    model.metadata["environment"] = environment(accelerator.device, config.precision)
    if accelerator.is_main_process:
        model.save_pretrained(run.model)  # whatever befalls the evaluation, the model is there
    split = next((name for name in ("test", "val") if name in splits(config.data)), None)
    report = evaluate(model, config.data, split, config.crop, _map_options(config)) if split else None
    if accelerator.is_main_process:
        model.save_pretrained(run.model)
        if report is not None:
            files.write_json(run.metrics, report)
    accelerator.wait_for_everyone()


def _share_statistics(module: nn.Module, accelerator: Accelerator) -> None:
    """Give every process the batch statistics of the first, whose weights are saved: what is scored is what is kept."""
    if accelerator.num_processes > 1:
        for buffer in module.buffers():
            torch.distributed.broadcast(buffer, 0)


def _copy(module: nn.Module) -> dict[str, Tensor]:
    """Weights on the CPU, cut loose from the module."""
    return {name: value.detach().to("cpu", copy=True) for name, value in module.state_dict().items()}


def _say_epoch(record: dict[str, Any], epochs: int, select: str, accelerator: Accelerator) -> None:
    if not accelerator.is_main_process:
        return
    terms = "  ".join(f"{name} {value:.4f}" for name, value in record["terms"].items())
    val = "  ".join(f"{name} {value:.2f}" for name, value in record["val"].items())
    chosen = " *" if record["best"]["epoch"] == record["epoch"] else ""
    say(
        f"{record['stage']} {record['epoch']}/{epochs}  {terms}  val {val or '-'}{chosen}  {record['seconds']:.1f} s"
    )
