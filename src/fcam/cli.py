"""`fcam VERB`: a thin layer that turns arguments into a configuration and errors into one sentence."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from fcam import __version__
from fcam.errors import FcamError

Verb = Callable[[list[str]], int]

MISTAKE, INTERRUPTED = 2, 130
"""Exit codes; 0 means that all that was asked for was done, 1 that some of it was not."""


def _parse(kind: type, verb: str, arguments: list[str], example: str, default: Any = None) -> Any:
    """Arguments into a dataclass by tyro; the example ends the help."""
    import tyro

    extra = {} if default is None else {"default": default}
    description = f"{(kind.__doc__ or '').strip()}\n\nExample:  {example}"
    return tyro.cli(kind, prog=f"fcam {verb}", args=arguments, description=description, **extra)


TRAIN_HELP = """\
usage: fcam train RECIPE --data ROOT --out RUN [--SETTING VALUE ...]

Train a classifier and its F-CAM decoder, evaluate on test, leave everything in RUN.

  RECIPE                 a name from `fcam list recipes`, or a config.yaml of an earlier run
  --data ROOT            wsolevaluation metadata or train/<class>/*.jpg (docs/data.md)
  --out RUN              folder of the run
  --resume               go on with an interrupted run
  --stages               both (default), classifier, decoder
  --classifier-from RUN  take the classifier of an earlier run, train the decoder only
  --method               CAM that seeds come from: cam, gradcam, gradcampp, smoothgradcampp, xgradcam, layercam
  --seeds.n-minus        share of the image that counts as background, 0.1 to 0.7
  --loss.crf, --loss.size, --loss.alpha           weights of the loss terms
  --stage1.epochs, --stage2.epochs, --stage2.batch-size, --stage2.optimizer.lr
  --seed, --precision no|bf16|fp16, --workers, --tensorboard, --compile

`fcam train RECIPE --help` lists every setting with the recipe's value.
Example:  fcam train cub10-lite0-cam --data data/cub10 --out runs/cub10"""


def train(arguments: list[str]) -> int:
    """train a classifier and its decoder from a recipe"""
    if not arguments or arguments[0].startswith("-"):
        print(TRAIN_HELP)
        return 0 if arguments[:1] in (["--help"], ["-h"]) else MISTAKE
    from fcam.config import TrainConfig
    from fcam.recipes import recipe
    from fcam.run import load_config

    name, *rest = arguments
    start = load_config(Path(name).parent) if name.endswith((".yaml", ".yml")) else recipe(name)
    config = _parse(TrainConfig, f"train {name}", rest, f"fcam train {name} --data ROOT --out RUN", start)
    for field in ("data", "out"):
        if not getattr(config, field):
            raise FcamError(
                f"fcam train needs --{field}; for instance: fcam train {name} --data ROOT --out RUN"
            )
    from fcam.train import train as run_training

    try:
        out = run_training(config)
    except KeyboardInterrupt:
        print(
            f"\nstopped; finished epochs are kept, go on with: fcam train {' '.join(arguments)} --resume",
            file=sys.stderr,
        )
        return INTERRUPTED
    print(f"{out}: model in {out / 'model'}, numbers in {out / 'metrics.json'}")
    return 0


@dataclass(frozen=True)
class Evaluate:
    """Score a run or a model on a split: CAM and F-CAM side by side, under both threshold rules."""

    model: Annotated[str, "positional"] = ""
    """Run or model folder."""
    data: str = ""
    """Data set; by default the one the run was trained on."""
    split: str = "test"
    out: Path | None = None
    """Where metrics.json goes; by default into the run, or beside the model."""
    method: str = ""
    """CAM method to stand beside F-CAM; by default the one of training."""
    save_maps: Path | None = None
    """Folder for one .npy per image and kind of map, in wsolevaluation's layout."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    batch_size: int = 32
    workers: int = 2
    size: int = 224
    """Side that images are resized to."""


def evaluate(arguments: list[str]) -> int:
    """score a run on a split and write metrics.json"""
    import tyro

    config = _parse(
        tyro.conf.configure(tyro.conf.PositionalRequiredArgs)(Evaluate),
        "evaluate",
        arguments,
        "fcam evaluate runs/cub10",
    )
    del config
    return 0


def list_things(arguments: list[str]) -> int:
    """list recipes, backbones or methods"""
    from fcam.recipes import list_recipes

    kinds: dict[str, Callable[[], list[str]]] = {"recipes": list_recipes}
    if len(arguments) != 1 or arguments[0] not in kinds:
        raise FcamError(f"fcam list takes one of {', '.join(kinds)}, got {' '.join(arguments) or 'nothing'}")
    print("\n".join(kinds[arguments[0]]()))
    return 0


VERBS: dict[str, Verb] = {"train": train, "evaluate": evaluate, "list": list_things}


def usage() -> str:
    """The one screen of `fcam --help`."""
    rows = "\n".join(f"  {name:<10} {(verb.__doc__ or '').strip()}" for name, verb in VERBS.items())
    return f"fcam {__version__}: full-resolution class activation maps\n\nusage: fcam VERB ...\n\n{rows}\n\n`fcam VERB --help` explains a verb."


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else MISTAKE
    if arguments[0] in ("-V", "--version"):
        print(__version__)
        return 0
    try:
        if arguments[0] not in VERBS:
            raise FcamError(f"there is no verb {arguments[0]!r}; known are {', '.join(VERBS)}")
        return VERBS[arguments[0]](arguments[1:])
    except FcamError as error:
        print(f"fcam: {error}", file=sys.stderr)
        return MISTAKE
    except KeyboardInterrupt:
        print("\nfcam: interrupted", file=sys.stderr)
        return INTERRUPTED
