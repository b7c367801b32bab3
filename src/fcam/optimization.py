"""What moves a stage's weights, epoch by epoch: the network as accelerate runs it, optimizer, moving average and photos."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader

from fcam.averaging import WeightAverage
from fcam.config import OptimizerConfig, TrainConfig
from fcam.data import EpochSampler, TrainTransform, collate, open_dataset
from fcam.data.dataset import NoBatchOfOne
from fcam.errors import FcamError
from fcam.progress import epoch_bar
from fcam.quiet import quiet_decoders
from fcam.stages import Stage

SEEDS = 2**32
"""So many seeds numpy knows."""
CHECK_EVERY = 20
"""Steps between looks at the loss; each look makes an accelerator wait."""


class Optimization:
    """One stage being trained; everything random is a function of (seed, epoch, step, process).

    Args:
        stage: what is trained, on the accelerator's device.
        config: settings of the run.
        accelerator: takes over the stage, its optimizer and its loader.
        resume_point: file that holds the epoch before, which a loss that is not finite refers to.

    Attributes:
        average: moving average of the trained weights.
    """

    def __init__(
        self, stage: Stage, config: TrainConfig, accelerator: Accelerator, resume_point: Path
    ) -> None:
        self._stage, self._config, self._accelerator = stage, config, accelerator
        self._resume_point = resume_point
        settings = stage.settings
        optimizer = sgd(stage.parameter_groups(settings.optimizer), settings.optimizer)
        self._base_rates = [group["lr"] for group in optimizer.param_groups]
        # The decoder normalises maps, for which a batch of one will do; several processes fill the last batch up.
        join = stage.name == "classifier" and accelerator.num_processes == 1
        loader = _train_loader(config, settings.batch_size, join)
        accelerator.gradient_accumulation_steps = settings.accumulate
        module: Any = torch.compile(stage) if config.compile else stage
        self._module, self._optimizer, self._loader = accelerator.prepare(module, optimizer, loader)
        self.average = WeightAverage(stage.trained, settings.average)

    def state_dict(self) -> dict[str, Any]:
        """What the next epoch depends on, as it goes into the resume point."""
        scaler = self._accelerator.scaler
        return {
            "weights": copy_of(self._stage.trained),
            "optimizer": self._optimizer.state_dict(),
            "average": self.average.state_dict(),
            "scaler": scaler.state_dict() if scaler is not None else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a resume point; raises whatever torch does when it does not fit."""
        self._stage.trained.load_state_dict(state["weights"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.average.load_state_dict(state.get("average"))
        if self._accelerator.scaler is not None and state.get("scaler"):
            self._accelerator.scaler.load_state_dict(state["scaler"])

    def set_rates(self, epoch: int) -> list[float]:
        """Set the learning rates of `epoch` (from 1) and return them, one per group of parameters."""
        settings = self._stage.settings
        rates = [learning_rate(rate, epoch, settings.epochs, settings.optimizer) for rate in self._base_rates]
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        return rates

    def run_epoch(self, epoch: int) -> dict[str, float]:
        """One pass over the training split; mean of each weighted loss term.

        Raises `FcamError` soon after a term is NaN or infinite.
        """
        stage, accelerator, loader = self._stage, self._accelerator, self._loader
        # Dropout draws from the global generators; everything else from the step's own.
        set_seed((self._config.seed * 1_000_003 + epoch) % SEEDS)
        loader.set_epoch(epoch)
        self._module.train()
        generator = torch.Generator(device=accelerator.device)
        sums: dict[str, Tensor] = {}
        images_seen, pending = 0, []
        title = f"{stage.name} {epoch}/{stage.settings.epochs}"
        with epoch_bar(title, len(loader), accelerator.is_main_process) as bar:
            for step, batch in enumerate(loader, start=1):
                generator.manual_seed(
                    hash((self._config.seed, epoch, step, accelerator.process_index)) & 0x7FFF_FFFF_FFFF
                )
                terms = self._step(batch, epoch, generator, self._share_of_group(step))
                count = len(batch["image"])
                images_seen += count
                for name, value in terms.items():
                    sums[name] = sums.get(name, torch.zeros((), device=value.device)) + value * count
                pending.append((step, terms))
                if step % CHECK_EVERY == 0 or step == len(loader):
                    self._stop_if_not_finite(pending, epoch)
                    pending.clear()
                bar.advance(count)
        return {name: (value / images_seen).item() for name, value in sums.items()}

    def _share_of_group(self, step: int) -> float:
        """Factor on the gradients of a step (from 1), which accelerate divides by `accumulate` however short the group is."""
        group, steps = self._stage.settings.accumulate, len(self._loader)
        rest = steps % group
        return group / rest if rest and step > steps - rest else 1.0

    def _step(
        self, batch: dict[str, Any], epoch: int, generator: torch.Generator, share: float = 1.0
    ) -> dict[str, Tensor]:
        """Move the weights by one batch, or add up its gradients times `share`; returns the weighted loss terms, detached."""
        accelerator, clip_norm = self._accelerator, self._stage.settings.optimizer.clip_norm
        with accelerator.accumulate(self._module):
            images = batch["image"].to(memory_format=torch.channels_last).float().div_(255)
            terms = self._forward(images, batch["label"], epoch, generator)
            loss = sum(terms.values())
            accelerator.backward(loss if share == 1 else loss * share)
            if clip_norm > 0 and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(self._module.parameters(), clip_norm)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        if accelerator.sync_gradients:
            self.average.update()
        return {name: value.detach() for name, value in terms.items()}

    def _forward(
        self, images: Tensor, labels: Tensor, epoch: int, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """The stage's loss terms; raises `FcamError` for a single image where the network needs several to normalise."""
        try:
            return self._module(images, labels, epoch, generator)
        except ValueError as error:
            if len(images) > 1 or "more than 1 value per channel" not in str(error):
                raise
            number = 1 if self._stage.name == "classifier" else 2
            raise FcamError(
                "this network normalises pooled features over a batch and cannot be trained on one image at a time; give "
                f"--stage{number}.batch-size 2 or more, and two images to train on at least"
            ) from error

    def _stop_if_not_finite(self, pending: list[tuple[int, dict[str, Tensor]]], epoch: int) -> None:
        """Raise `FcamError` that names the first bad step and term, and the resume point before it."""
        for step, terms in pending:
            for name, value in terms.items():
                number = float(value)
                if not math.isfinite(number):
                    good = (
                        f"{self._resume_point} holds epoch {epoch - 1}"
                        if epoch > 1
                        else "no epoch was finished"
                    )
                    raise FcamError(
                        f"the {name} term became {number} in step {step} of epoch {epoch} of the {self._stage.name} stage; "
                        f"{good}; lower the learning rate or use --precision no"
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


def learning_rate(base: float, epoch: int, epochs: int, settings: OptimizerConfig) -> float:
    """Rate of `epoch` (from 1); `step` drops after every `step_epochs` epochs, as the authors' code does."""
    if settings.schedule == "step":
        base *= settings.gamma ** ((epoch - 1) // settings.step_epochs)
    elif settings.schedule == "cosine":
        base *= 0.5 * (1 + math.cos(math.pi * (epoch - 1) / epochs))
    return max(base, settings.min_lr)


def copy_of(module: nn.Module) -> dict[str, Tensor]:
    """Weights on the CPU, cut loose from the module."""
    return {name: value.detach().to("cpu", copy=True) for name, value in module.state_dict().items()}


def _train_loader(config: TrainConfig, batch_size: int, join: bool) -> DataLoader[Any]:
    dataset = open_dataset(
        config.data, "train", transform=TrainTransform(config.resize, config.crop), seed=config.seed
    )
    sampler = EpochSampler(dataset, seed=config.seed)
    batches = NoBatchOfOne(sampler, batch_size) if join else BatchSampler(sampler, batch_size, False)
    return DataLoader(
        dataset,  # type: ignore[arg-type]
        batch_sampler=batches,
        collate_fn=collate,
        num_workers=config.workers,
        persistent_workers=config.workers > 0,
        # Of its own, so that starting workers costs no number of the generator that dropout draws from.
        generator=torch.Generator().manual_seed(config.seed),
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=quiet_decoders,
    )
