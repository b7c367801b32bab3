"""`fcam predict`: its arguments, and what it says when it is done."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from tyro.conf import OmitArgPrefixes, Positional

from fcam import shipped
from fcam.checkpoint import weights_digest
from fcam.data.find import find_images
from fcam.data.images import MAX_PIXELS
from fcam.errors import FcamError, one_line
from fcam.labels import LabelFormat, LabelOptions, check_folder, check_formats, export_labels
from fcam.predict.folder import FolderResult, predict_files
from fcam.predict.localizer import Localizer
from fcam.predict.output import FINAL, SUBFOLDERS, Outputs
from fcam.predict.prediction import BoxRule
from fcam.predict.ways import Ways
from fcam.progress import epoch_bar, say

SHOWN_FAILURES = 20
DTYPES = {"auto": None, "float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class PredictConfig:
    """Write overlay, mask and heat map of every photo at its own size, and predictions.json with the boxes.

    A photo that cannot be used is listed with its reason and skipped. Exit code: 0 when every photo was done,
    1 when some failed, 130 after Ctrl-C (what is done is kept; go on with --resume).
    """

    photos: Positional[tuple[str, ...]]
    """Photos, folders (searched recursively) and glob patterns."""
    model: str = shipped.DEFAULT
    """A run's folder, a model's folder, a Hugging Face repo id, or lite0, which comes with the package."""
    out: Path = Path("predictions")
    """Folder for the results."""
    threshold: float | None = None
    """Share of the map's maximum at which mask and boxes are cut; default: the model's (from val), or 0.5."""
    boxes: BoxRule = "largest"
    """One box per photo, or one per connected component of the mask."""
    size: int | None = None
    """Side of the square that the network sees; default: the size that the model was trained on."""
    keep_aspect: bool = False
    """Let the network see the photo's shape instead of a square."""
    ways: OmitArgPrefixes[Ways] = field(default_factory=Ways)
    """Better maps than one look gives; measured in docs/results.md."""
    overlays: bool = True
    """Write overlays/: heat, contour, box, label."""
    masks: bool = True
    """Write masks/: PNG, 0 and 255."""
    heatmaps: Literal[0, 8, 16] = 8
    """Write heatmaps/: grey PNG of so many bits; 0 writes none."""
    npy: bool = False
    """Write maps/: the map as float16 .npy."""
    with_cam: bool = False
    """Write panels/: photo, the classifier's own CAM, F-CAM, mask and box side by side."""
    export: tuple[LabelFormat, ...] = ()
    """Also write labels for a project: boxes as yolo or voc, outlines as yolo-seg or voc-seg, both as coco."""
    class_agnostic: bool = False
    """Labels: one class named `object` instead of the predicted class."""
    min_score: float = 0.0
    """Labels: leave out photos whose class is less probable than this."""
    min_size: int = 1
    """Labels: leave out boxes whose shorter side has fewer pixels than this."""
    batch_size: int | None = None
    """Photos per forward pass; default: 8 on a CPU, 32 on a GPU."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto takes bfloat16 where the device multiplies it natively."""
    device: str | None = None
    """cpu, cuda, cuda:1, ...; default: the GPU where there is one."""
    workers: int | None = None
    """Threads that decode, and as many that write; default: the number of cores, 8 at most."""
    classifier: str = ""
    """module.path:factory that builds the classifier, for a model made from your own code."""
    max_megapixels: float = MAX_PIXELS / 1e6
    """Larger photos are refused before they are decoded."""
    resume: bool = False
    """Keep what an interrupted run has finished in --out and do the rest."""


def run_predict(config: PredictConfig) -> int:
    """Do what `fcam predict` was asked for; return its exit code.

    Raises `FcamError` when nothing could be started: no photo, no model, a folder that cannot be written to.
    """
    _check(config)
    photos, unusable = find_images(config.photos)
    photos = _without(photos, config.out)
    problems = [{"path": str(path), "reason": reason} for path, reason in unusable]
    if not photos:
        raise FcamError(_no_photo(problems))
    localizer = Localizer(
        config.model,
        config.threshold,
        config.size,
        config.batch_size,
        DTYPES[config.precision],
        config.device,
        boxes=config.boxes,
        keep_aspect=config.keep_aspect,
        **dataclasses.asdict(config.ways),
        with_cam=config.with_cam,
        max_pixels=round(config.max_megapixels * 1e6),
        classifier=config.classifier or None,
    )
    check_formats(config.export, classes=1 if config.class_agnostic else len(localizer.classes or ()))
    outputs = Outputs(config.overlays, config.masks, config.heatmaps, config.npy, config.with_cam)
    with epoch_bar("predict", len(photos)) as bar:
        result = predict_files(
            localizer,
            photos,
            config.out,
            outputs,
            unusable=problems,
            settings=settings_of(config, localizer),
            resume=config.resume,
            workers=config.workers,
            on_photo=lambda done: bar.advance(1),
        )
    if config.export and not result.interrupted:
        options = LabelOptions(config.class_agnostic, config.min_score, config.min_size)
        with epoch_bar("labels", len(result.rows) * len(config.export)) as bar:
            export_labels(
                result.rows,
                config.out,
                config.export,
                localizer.classes,
                options,
                on_photo=lambda done: bar.advance(1),
            )
    _report(result, config, len(photos) + len(problems) + result.others)
    if result.interrupted:
        return 128 + result.interrupted
    return 1 if result.failed else 0


def _check(config: PredictConfig) -> None:
    """Refuse bad numbers before the model is loaded."""
    if config.threshold is not None and not 0 <= config.threshold < 1:
        raise FcamError(f"--threshold is {config.threshold}, but a share of the maximum lies in [0, 1)")
    if not 0 <= config.min_score <= 1:
        raise FcamError(f"--min-score is {config.min_score}, but a score lies between 0 and 1")
    if not 0 < config.max_megapixels < math.inf:
        raise FcamError(f"--max-megapixels is {config.max_megapixels}; take a number above 0")
    if config.workers is not None and config.workers < 1:
        raise FcamError(f"--workers is {config.workers}; take 1 or more")
    check_formats(config.export, masks=config.masks)
    if config.out.exists() and not config.out.is_dir():
        raise FcamError(f"--out {config.out} is a file; name a folder")
    check_folder(config.out, config.export)


def _without(photos: Iterable[Path], out: Path) -> list[Path]:
    """Leave out pictures that a run before wrote: `fcam predict . --out out` may be repeated."""
    written = tuple(os.path.join(os.path.realpath(out / name), "") for name in SUBFOLDERS)
    return [photo for photo in photos if not os.path.realpath(photo).startswith(written)]


def _no_photo(problems: Sequence[Mapping[str, str]]) -> str:
    reasons = [f"{p['path']}: {p['reason']}" for p in problems[:SHOWN_FAILURES]]
    more = [f"and {len(problems) - SHOWN_FAILURES} more"] if len(problems) > SHOWN_FAILURES else []
    return "; ".join(reasons + more) or "no photo was named"


def settings_of(config: PredictConfig, localizer: Localizer) -> dict[str, Any]:
    """Return what the results depend on, for `predictions.json`."""
    shows_cam = config.with_cam or localizer.ways.of_class
    return {
        "model": config.model,
        "weights": weights_digest(localizer.model.state_dict())[:16],
        "threshold": localizer.threshold,
        "first_cut": localizer.first_cut,
        "boxes": localizer.box_rule,
        "box_convention": "x0, y0, x1, y1 in pixels of the upright photo; x1, y1 one past the last pixel",
        "size": localizer.size,
        "keep_aspect": localizer.keep_aspect,
        **dataclasses.asdict(localizer.ways),
        "precision": str(localizer.dtype).removeprefix("torch."),
        "overlays": config.overlays,
        "masks": config.masks,
        "heatmaps": config.heatmaps,
        "maps": config.npy,
        "panels": config.with_cam,
        **({"cam_method": localizer.cam_method} if shows_cam else {}),
    }


def _report(result: FolderResult, config: PredictConfig, asked: int) -> None:
    """Say what was done, what failed and why."""
    for row in result.failed[:SHOWN_FAILURES]:
        say(one_line(f"skipped {row['path']}: {row['reason']}"))
    if len(result.failed) > SHOWN_FAILURES:
        say(f"... and {len(result.failed) - SHOWN_FAILURES} more")
    kept = f" ({result.resumed} from the run before)" if result.resumed else ""
    failed = f", {len(result.failed)} failed" if result.failed else ""
    say(one_line(f"{len(result.rows)} of {asked} done{kept}{failed}: {config.out / FINAL}"))
    if result.interrupted:
        say("stopped early; the same command with --resume does the rest")
