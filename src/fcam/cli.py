"""`fcam VERB`: a thin layer that turns arguments into a configuration and errors into one sentence."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional

from fcam import __version__
from fcam.errors import FcamError
from fcam.quiet import quiet_decoders

Verb = Callable[[list[str]], int]

INCOMPLETE, MISTAKE, INTERRUPTED = 1, 2, 130
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
  --decoder-from RUN     go on with the decoder of an earlier run; with --stages decoder on its classifier too, and with
                         --stages decoder --stage2.epochs 0 --sharpen 3 it is only sharpened
  --classifier NAME --weights FILE
                         take your own: torchvision:NAME, timm:NAME or module.path:factory (docs/your-classifier.md)
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
    from fcam.settings import as_given

    name, *rest = arguments
    start = as_given(load_config(name)) if name.endswith((".yaml", ".yml")) else recipe(name)
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
        again = shlex.join([name, *(word for word in rest if word != "--resume"), "--resume"])
        print(f"\nstopped; finished epochs are kept, go on with: fcam train {again}", file=sys.stderr)
        return INTERRUPTED
    scored = (out / "metrics.json").exists()
    numbers = (
        f"numbers in {out / 'metrics.json'}"
        if scored
        else "no numbers: neither test nor val is there to score"
    )
    print(f"model in {out / 'model'}, {numbers}")
    return 0


def evaluate(arguments: list[str]) -> int:
    """score a run, a model or a folder of heat maps on a split"""
    from fcam.evaluate_command import EvaluateConfig, run_evaluate

    return run_evaluate(
        _parse(EvaluateConfig, "evaluate", arguments, "fcam evaluate runs/cub10 --split test")
    )


def sweep(arguments: list[str]) -> int:
    """train many runs, share their classifiers, collect one table"""
    from fcam.sweep.command import SweepCommand, run_sweep

    example = "fcam sweep cub10-lite0-cam --data data/cub10 --out sweeps/n --preset n-minus --vary seed=0,1,2"
    return run_sweep(_parse(SweepCommand, "sweep", arguments, example))


def report(arguments: list[str]) -> int:
    """one page about finished runs: tables, curves, failures, gallery"""
    from fcam.report.command import ReportConfig, run_report

    example = "fcam report runs/cub10-seed0 runs/cub10-seed1 --out report"
    print(f"report: {run_report(_parse(ReportConfig, 'report', arguments, example))}")
    return 0


def predict(arguments: list[str]) -> int:
    """write overlay, mask, heat map and boxes for photos"""
    from fcam.predict.command import PredictConfig, run_predict

    return run_predict(_parse(PredictConfig, "predict", arguments, "fcam predict photos/"))


def app(arguments: list[str]) -> int:
    """look at photos in the browser: CAM, F-CAM, mask and boxes"""
    from fcam.app.command import AppConfig, run_app

    return run_app(_parse(AppConfig, "app", arguments, "fcam app --photos photos/"))


def demo(arguments: list[str]) -> int:
    """the whole chain on a drawn data set, and a page with pictures"""
    from fcam.demo import DemoConfig, run_demo

    path = run_demo(_parse(DemoConfig, "demo", arguments, "fcam demo --out runs/demo"))
    print(f"report: {path}")
    return 0


def simulate(arguments: list[str]) -> int:
    """what a map's resolution costs at best: true masks made small and large again"""
    from fcam.simulate.command import SimulateConfig, run_simulate

    example = "fcam simulate --data data/OpenImages --split test --runs runs/openimages"
    run_simulate(_parse(SimulateConfig, "simulate", arguments, example))
    return 0


def benchmark(arguments: list[str]) -> int:
    """time maps, a training step or the CRF filter on this machine"""
    from fcam.benchmark.command import BenchmarkConfig, run_benchmark

    example = "fcam benchmark --backbones resnet50 --out benchmark"
    run_benchmark(_parse(BenchmarkConfig, "benchmark", arguments, example))
    return 0


def data(arguments: list[str]) -> int:
    """check a data set before training; prepare CUB, OpenImages, ILSVRC"""
    if arguments[:1] in ([], ["-h"], ["--help"]):
        print(
            "usage: fcam data check PATH [--metadata FOLDER]\n"
            "       fcam data prepare cub|openimages|ilsvrc ROOT [--metadata FOLDER] [--where]\n\n"
            "Example:  fcam data check data/cub10"
        )
        return 0 if arguments else MISTAKE
    if arguments[0] == "prepare":
        from fcam.data.prepare.command import PrepareConfig, run_prepare

        example = "fcam data prepare cub data/CUB_200_2011 --metadata wsolevaluation/metadata"
        return run_prepare(_parse(PrepareConfig, "data prepare", arguments[1:], example))
    if arguments[0] != "check":
        raise FcamError(
            f"fcam data knows check and prepare, got {arguments[0]!r}; for instance: fcam data check data/cub10"
        )
    from fcam.data.check import check
    from fcam.data.check_report import print_report

    config = _parse(DataCheck, "data check", arguments[1:], "fcam data check data/cub10")
    report = check(config.path, metadata=config.metadata)
    print_report(report)
    return 1 if report.problems else 0


@dataclass(frozen=True)
class DataCheck:
    """Verify a data set: files, sizes, boxes, masks, classes, duplicates between splits."""

    path: Annotated[Path, Positional]
    """Folder of the data set."""
    metadata: Path | None = None
    """Folder of wsolevaluation's lists, where it is not PATH/metadata."""


def list_things(arguments: list[str]) -> int:
    """recipes, backbones or methods that exist"""
    from fcam.listing import KINDS

    if arguments in (["-h"], ["--help"]):
        print(f"usage: fcam list {'|'.join(KINDS)}\n\n{list_things.__doc__}\n\nExample:  fcam list recipes")
        return 0
    if len(arguments) != 1 or arguments[0] not in KINDS:
        raise FcamError(f"fcam list takes one of {', '.join(KINDS)}, got {' '.join(arguments) or 'nothing'}")
    print("\n".join(KINDS[arguments[0]]()))
    return 0


def convert(arguments: list[str]) -> int:
    """read a checkpoint of wsolevaluation or fcam-wsol into a model folder"""
    from fcam.convert_command import ConvertConfig, run_convert

    example = "fcam convert pretrained/CUB-resnet50-CAM --out models/cub"
    run_convert(_parse(ConvertConfig, "convert", arguments, example))
    return 0


def export(arguments: list[str]) -> int:
    """write a model as ONNX or torch.export file that runs without fcam"""
    from fcam.export.command import ExportConfig, run_export

    run_export(_parse(ExportConfig, "export", arguments, "fcam export runs/birds --out birds.onnx"))
    return 0


VERBS: dict[str, Verb] = {
    "demo": demo,
    "predict": predict,
    "app": app,
    "train": train,
    "sweep": sweep,
    "evaluate": evaluate,
    "report": report,
    "simulate": simulate,
    "benchmark": benchmark,
    "data": data,
    "convert": convert,
    "export": export,
    "list": list_things,
}


def usage() -> str:
    """The one screen of `fcam --help`."""
    rows = "\n".join(f"  {name:<10} {(verb.__doc__ or '').strip()}" for name, verb in VERBS.items())
    title = f"fcam {__version__}: full-resolution class activation maps"
    return f"{title}\n\nusage: fcam VERB ...\n\n{rows}\n\n`fcam VERB --help` explains a verb."


def _at_home(word: str) -> str:
    option, equals, value = word.partition("=")
    at_home = equals and option.startswith("--") and value.startswith("~")
    return f"{option}={os.path.expanduser(value)}" if at_home else word


def _refuse_empty(arguments: Sequence[str]) -> None:
    """An empty word is a variable that the shell did not know; as a path it would mean the current folder."""
    for before, word in zip(("fcam", *arguments), arguments, strict=False):
        if word == "" or (word.startswith("--") and word.endswith("=")):
            name = word[:-1] or before
            raise FcamError(
                f"the value after {name} is empty; give it one (is a variable of the shell not set?)"
            )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    # Shells expand the home folder at the beginning of a word, but not in --out=~/runs.
    arguments = [_at_home(word) for word in (sys.argv[1:] if argv is None else argv)]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else MISTAKE
    if arguments[0] in ("-V", "--version"):
        print(__version__)
        return 0
    try:
        if arguments[0] not in VERBS:
            raise FcamError(f"there is no verb {arguments[0]!r}; known are {', '.join(VERBS)}")
        _refuse_empty(arguments)
        quiet_decoders()
        return VERBS[arguments[0]](arguments[1:])
    except FcamError as error:
        print(f"fcam: {error}", file=sys.stderr)
        return MISTAKE
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INCOMPLETE
    except OSError as error:  # the system refuses: nothing that a traceback could explain
        what = f"{error.filename}: " if error.filename else ""
        print(f"fcam: {FcamError(f'{what}{error.strerror or error}')}; check the path", file=sys.stderr)
        return MISTAKE
    except KeyboardInterrupt:
        print("\nfcam: interrupted", file=sys.stderr)
        return INTERRUPTED
