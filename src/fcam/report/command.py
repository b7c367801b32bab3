"""`fcam report`: runs in, one page and its tables out."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from fcam import files
from fcam.errors import FcamError, cut
from fcam.progress import say
from fcam.report import gallery, gallery_data, page, tables
from fcam.report.collect import Group, expand, group, read_runs, repeated
from fcam.report.curves import deviation, open_run, survey
from fcam.run import config_to_dict
from fcam.tables import formats


@dataclass(frozen=True)
class ReportConfig:
    """Write one self-contained page about finished runs: what was run, tables, curves, samples, failures, a gallery.

    Runs that differ in the seed alone share a row, with mean and standard deviation. The maps are computed again from each
    run's model; where the model or the data is missing, the page says so and has the tables only. A run without numbers on the
    split is left out and named.
    """

    runs: Positional[tuple[Path, ...]]
    """Folders of runs, or of sweeps."""
    out: Path = Path("report")
    """Folder for index.html, tables.md, tables.tex, tables.csv, images.csv and report.json."""
    split: str = "test"
    """Split to report on: train, val or test."""
    data: str = ""
    """Data set, where it has moved since the run."""
    classifier: str = ""
    """module.path:factory that builds the classifier, for models made from your own code."""
    images: int = 60
    """Images in the gallery of each group, classes in turn."""
    gallery: bool = True
    """Compute maps again for curves, samples and the gallery; --no-gallery writes tables and training curves only."""
    samples: int = 6
    """Sample images of each group."""
    failures: int = 6
    """Worst images of each group."""
    batch_size: int = 32
    workers: int = 2


def run_report(config: ReportConfig, title: str = "", lead: str = "") -> Path:
    """Do what `fcam report` was asked for; returns the page.

    Args:
        title: of the page; by default the data sets' names.
        lead: a sentence that comes first.

    Raises:
        FcamError: a folder that is no run, or no run with numbers on the split.
    """
    for name in ("images", "samples", "failures"):
        if getattr(config, name) < 0:
            raise FcamError(f"--{name} must be 0 or more, got {getattr(config, name)}")
    notes: list[str] = []
    groups = group(read_runs(expand(config.runs), config.split, notes))
    notes += repeated(groups)
    files.check_writable(config.out / "index.html")
    looks = [_look(own, config, notes) for own in groups]
    for note in notes:
        say(note)
    made = [tables.localization(groups, config.split), tables.classifiers(groups)]
    means = tables.backbone_means(groups)
    made += [means] if means is not None else []
    written = {
        "tables.csv": formats.as_csv(made[0]),
        "tables.md": formats.as_markdown(made),
        "tables.tex": formats.as_latex(made),
        "images.csv": _images_csv(looks),
        "report.json": json.dumps(_as_json(groups, config.split), indent=1, allow_nan=False) + "\n",
    }
    written = {name: text for name, text in written.items() if text}
    index = page.fill(config.split, looks, made, written, notes, title, lead)
    for name, text in {**written, "index.html": index}.items():
        files.write_text(config.out / name, text)
    return config.out / "index.html"


def _look(own: Group, config: ReportConfig, notes: list[str]) -> page.Look:
    """Compute the maps of all runs of a group; the first one lends its pictures."""
    look = page.Look(own)
    if not config.gallery:
        return look
    for run in own.runs:
        try:
            model, dataset = open_run(run, config.data, config.split, config.classifier)
            wanted = gallery.spread(dataset, config.images) if run is own.first else []
            collector = gallery_data.Collector(wanted)
            seen = survey(run, model, dataset, collector, config.batch_size, config.workers)
            look.seen.append((run, seen))
            doubt = model.doubt_about(dataset.classes, config.data or run.config.data)
            notes += [f"{run.name}: {doubt}"] if doubt else []
            notes += filter(None, [deviation(run, seen)])
            if run is own.first:
                look.index, look.chunks = collector.gallery(own.label, seen)
                look.samples = page.picture_rows(run, model, seen, gallery.spread(dataset, config.samples))
                worst = seen.worst(config.failures) if "fcam" in seen.maps else []
                look.failures = page.picture_rows(run, model, seen, worst)
        except (FcamError, OSError) as error:
            notes.append(f"{run.name}: no curves and no gallery, since {cut(str(error), 400)}")
    return look


def _as_json(groups: Sequence[Group], split: str) -> dict[str, Any]:
    """Everything the tables are made of, with full precision."""
    return {
        "split": split,
        "groups": [
            {
                "label": own.label,
                "changed": own.changed,
                "runs": [
                    {"run": run.name, "config": config_to_dict(run.config), "metrics": run.report}
                    | {"seconds": run.seconds, "log": run.records}
                    for run in own.runs
                ],
            }
            for own in groups
        ],
    }


def _images_csv(looks: Sequence[page.Look]) -> str:
    """Class, prediction and overlaps of every image of the split, one row per image and run."""
    if not any(look.seen for look in looks):
        return ""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["run", "image", "class", "predicted", "measure", "map", "threshold", "overlap"])
    for look in looks:
        for run, seen in look.seen:
            data = seen.dataset
            for kind in seen.maps:
                overlap = seen.iou(kind)
                for i, image in enumerate(data.image_ids):
                    names = [
                        run.name,
                        image,
                        data.classes[data.labels[i]],
                        data.classes[seen.predicted[i]],
                    ]
                    value = f"{overlap[i]:.3f}" if seen.counted[i] else ""
                    row = [
                        *map(formats.plain, names),
                        seen.measure,
                        kind,
                        f"{seen.thresholds[kind]:.3f}",
                        value,
                    ]
                    writer.writerow(row)
    return stream.getvalue()
