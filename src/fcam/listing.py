"""`fcam list`: what there is to choose from, a line each."""

from __future__ import annotations

from collections.abc import Callable

from fcam.config import TrainConfig


def recipes() -> list[str]:
    """Every recipe with its network, n⁻, λ and length of training."""
    from fcam.recipes import list_recipes, recipe

    return [f"{name:<34} {_one_line(recipe(name))}" for name in list_recipes()]


def _one_line(config: TrainConfig) -> str:
    stages = f"{config.stage1.epochs} + {config.stage2.epochs} epochs, batch {config.stage2.batch_size}"
    return f"{config.model.backbone}, n⁻ {config.seeds.n_minus}, λ {config.loss.crf:.2g}, {stages}"


def backbones() -> list[str]:
    """Every backbone that `--model.backbone` takes by name."""
    from fcam.registry import list_models

    own = [name for name in list_models() if not name.startswith("timm:")]
    return [
        *own,
        "timm:NAME  (any timm CNN with a feature pyramid; fcam.list_models() names the checked ones)",
    ]


def methods() -> list[str]:
    """Every CAM method with what it does and where it is from."""
    from fcam.cams import METHODS

    return [f"{m.name:<17} {m.summary} ({m.source})" for m in METHODS.values()]


KINDS: dict[str, Callable[[], list[str]]] = {"recipes": recipes, "backbones": backbones, "methods": methods}
"""What `fcam list` knows, and its lines."""
