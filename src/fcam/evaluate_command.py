"""`fcam evaluate`: a run, a model, or a folder of maps made elsewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table
from tyro.conf import OmitArgPrefixes, Positional

from fcam import files, scores
from fcam.checkpoint import remember_thresholds, resolve
from fcam.config import Precision
from fcam.data import open_dataset
from fcam.errors import FcamError
from fcam.evaluate import evaluate, has_truth_for
from fcam.map_files import MapType, evaluate_map_files
from fcam.model import FCAM
from fcam.model_card import DEFAULT_SIZE, card_seed, card_size, card_threshold
from fcam.predict.ways import Ways
from fcam.processes import process_state
from fcam.progress import say, wide_console
from fcam.run import load_config
from fcam.split_maps import MapOptions

WIDTH = 120


@dataclass(frozen=True)
class EvaluateConfig:
    """Score a run or a model on a split, CAM and F-CAM side by side, or a folder of heat maps from any project.

    Numbers follow the WSOL benchmark and are shown under two rules: at the split's own best threshold, and at the threshold
    that was best on val. What a run did not train with is kept apart from its own metrics.json.
    """

    model: Positional[str] = ""
    """Folder of a run or of a model."""
    data: str = ""
    """Data set; default: the one that the run was trained on."""
    split: str = "test"
    """train, val or test; it must have boxes or masks."""
    out: Path | None = None
    """File for the numbers, or a folder for it; default: in the folder of the run, or the current one, metrics.json for the
    run's own data, method and size on test, and otherwise a file named by what is different, such as metrics-val.json or
    metrics-test-DATA.json."""
    method: str = ""
    """CAM method that stands beside F-CAM; default: the one of training."""
    save_maps: Path | None = None
    """Folder for one .npy per image and kind of map, in wsolevaluation's layout."""
    maps: Path | None = None
    """Folder of .npy heat maps, one per image id, to score instead of a model."""
    metadata: Path | None = None
    """With --maps: folder that holds val/ and test/ lists of wsolevaluation."""
    precision: Precision = "no"
    """Number format of the network; float32 by default."""
    batch_size: int = 32
    workers: int = 2
    size: int | None = None
    """Side that images are resized to; default: the one of training, or 224."""
    ways: OmitArgPrefixes[Ways] = field(default_factory=Ways)
    """Score F-CAM looked at in other ways as well, at the true class. A run evaluated on its own data remembers where val cuts
    these maps best, and `fcam predict` cuts them there."""
    classifier: str = ""
    """module.path:factory that builds the classifier, for a model made from your own code."""
    map_type: MapType = "float16"
    """Number format of --save-maps; float32 is scored exactly as the model is, at twice the size."""


def run_evaluate(config: EvaluateConfig) -> int:
    """Do what `fcam evaluate` was asked for; 0, since it either scores every image of the split or raises `FcamError`."""
    if config.maps is not None and config.ways.on:
        raise FcamError(
            f"--{config.ways.on[0]} is for models, and --maps {config.maps} are made already; leave it out"
        )
    if (config.maps is None) == (config.model == ""):
        raise FcamError(
            "name either a run or model folder, or a folder of heat maps with --maps; see fcam evaluate --help"
        )
    for name, least in (("batch_size", 1), ("workers", 0)):
        if getattr(config, name) < least:
            raise FcamError(f"--{name.replace('_', '-')} is {getattr(config, name)}; take {least} or more")
    if config.maps is not None:
        out = _file(config, "metrics.json")
        report = evaluate_map_files(config.maps, config.metadata, config.split, config.data)
    else:
        report, out = _evaluate_model(config)
    if process_state().is_main_process:
        print_table(report)  # first: numbers of hours must not be lost because the disk is full now
        files.write_json(out, report)
        if empty := scores.no_object(report):
            say(empty)
        elif all(row["max_box_acc"] is None and row["pxap"] is None for row in report["maps"].values()):
            say(
                f"the {config.split} split has neither boxes nor masks, so only the classification could be scored"
            )
        say(f"numbers in {out}")
    return 0


def _file(config: EvaluateConfig, name: str, run: Path | None = None) -> Path:
    """The file for the numbers, once it is known that it can be written: `name` in the folder of the run or in the current one,
    unless `--out` names another file or folder.
    """
    if not (config.out or run) and Path("config.yaml").is_file() and Path("metrics.json").is_file():
        raise FcamError(
            f"the current folder is a run's, whose metrics.json is its own; say with --out FILE where the numbers of "
            f"{config.maps or config.model} go"
        )
    out = config.out or run or Path()
    out = out / name if out.is_dir() else out
    if process_state().is_main_process:
        files.check_writable(out)
    return out


def _run_of(model: str) -> Path:
    """The folder of a run where `model` is what the run holds under that name, and otherwise `model` itself."""
    folder = Path(os.path.abspath(model))
    inside = folder.name == "model" and (folder.parent / "config.yaml").is_file()
    return Path(os.path.relpath(folder.parent)) if inside else Path(model)


def _evaluate_model(config: EvaluateConfig) -> tuple[dict[str, Any], Path]:
    folder = _run_of(config.model)
    is_run = (folder / "config.yaml").is_file()
    data = config.data or (load_config(folder).data if is_run else "")
    if not data:
        raise FcamError(f"{config.model} does not say which data set to score; add --data ROOT")
    if not config.data and not Path(data).exists():
        raise FcamError(
            f"{config.model} was trained on {data}, which is not there; say where its data set lies with --data ROOT"
        )
    model = _load(config, folder, data)
    changed = differences(config, model.metadata, folder)
    out = _file(config, file_name(config, changed), folder if is_run else None)
    report = evaluate(
        model,
        data,
        config.split,
        config.size or card_size(model.metadata, config.model),
        MapOptions(
            config.method or str(model.metadata.get("method", "cam")),
            str(model.metadata.get("variant", "published")),
            config.batch_size,
            config.precision,
            config.workers,
            card_seed(model.metadata),
        ),
        save_maps=config.save_maps,
        map_type=config.map_type,
        ways=config.ways,
    )
    if is_run and config.ways.on and not changed and _has_truth(data):
        _remember(resolve(config.model), model.metadata, config.ways)
    return report, out


def _load(config: EvaluateConfig, folder: Path, data: str) -> FCAM:
    """The model, which has the maps that are asked for and knows the classes of `data`; raises `FcamError` where not."""
    model = FCAM.from_pretrained(resolve(config.model), config.classifier or None).to(process_state().device)
    start = folder / "config.yaml" if (folder / "config.yaml").is_file() else "RECIPE"
    if config.ways.on and model.metadata.get("decoder_trained") is False:
        raise FcamError(
            f"the decoder of {config.model} was never trained, so there is no F-CAM to look at with --{config.ways.on[0]}; "
            f"train one on its classifier: fcam train {start} --stages decoder --classifier-from {config.model} "
            f"--data {data} --out ANOTHER"
        )
    classes = open_dataset(data, config.split).classes
    known, wanted = model.classifier.num_classes, len(classes)
    if known != wanted:
        raise FcamError(
            f"{config.model} knows {known} classes and {data} has {wanted}, so its labels mean other classes; "
            f"evaluate a model of these classes: fcam train folder-lite0-cam --data {data} makes one"
        )
    if doubt := model.doubt_about(classes, data):
        say(doubt)
    return model


def file_name(config: EvaluateConfig, changed: Sequence[str]) -> str:
    """Name of the file for the numbers; `metrics.json`, a run's own, is for nothing but its data, method and size."""
    named = [config.split, *changed, *config.ways.on]
    return "metrics.json" if named == ["test"] else f"metrics-{'-'.join(named)}.json"


def differences(config: EvaluateConfig, metadata: Mapping[str, Any], folder: Path) -> list[str]:
    """What of data, method, size and precision is not as in training."""
    training = metadata.get("training")
    own_size = training.get("crop", DEFAULT_SIZE) if isinstance(training, dict) else DEFAULT_SIZE
    changed = (
        "" if _is_its_data(folder, config.data) else Path(os.path.abspath(config.data)).name or "data",
        config.method if config.method != metadata.get("method", "cam") else "",
        str(config.size) if config.size not in (None, own_size) else "",
        config.precision if config.precision != "no" else "",
    )
    return [name for name in changed if name]


def _has_truth(data: str) -> bool:
    """Whether `val` has boxes or masks that say where maps are cut best."""
    return has_truth_for("max_box_acc", data) or has_truth_for("pxap", data)


def _remember(folder: Path, metadata: Mapping[str, Any], ways: Ways) -> None:
    """Keep in the model's card where `val`, which has boxes or masks, cuts maps of these ways best."""
    if not process_state().is_main_process:
        return
    known, options = metadata["thresholds"], " --".join(ways.on)
    found = {kind: known[kind] for kind in (ways.base, ways.kind) if kind in known}
    if not found:  # no mask shows an object
        return
    try:
        remember_thresholds(folder, found)
    except FcamError as error:  # a run of somebody else's, say; its numbers must not be lost for that
        say(f"fcam predict --{options} cuts the maps of this run where it did before: {error}")
        return
    cut = card_threshold(dict(metadata), ways.kind)
    say(f"fcam predict --{options} cuts the maps of this run at {cut:.2f} from now on, best on val")


def _is_its_data(folder: Path, data: str) -> bool:
    """Whether a model was trained on this data set, as far as can be told: a set that has moved keeps its name."""
    if not data or not (folder / "config.yaml").is_file():
        return True
    own = load_config(folder).data
    if os.path.exists(own):
        return os.path.samefile(own, data)
    return Path(own).name == Path(os.path.abspath(data)).name


def print_table(report: dict[str, Any]) -> None:
    """Show the report of an evaluation on the terminal, without wrapping numbers."""
    head, *rows = scores.table(report)
    top1 = report["classification"]["top1"]
    accuracy = "" if top1 is None else f"; classification top-1 {top1:.1f}"
    shown = Table(
        title=f"{report['split']}, {scores.images_scored(report)}, percent{accuracy}",
        caption="box@d: MaxBoxAcc at overlap d; V2: MaxBoxAccV2; top-1, top-5: localization with the right class",
    )
    for place, name in enumerate(head):
        shown.add_column(name, justify="left" if place < 2 else "right", no_wrap=True)
    for row in rows:
        shown.add_row(*row, style="bold" if row[0] == scores.TITLES["fcam"] else "")
    wide_console(WIDTH).print(shown)
