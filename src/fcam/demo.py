"""`fcam demo`: the whole chain on a drawn data set, without network or photo, and a page that shows the point."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from fcam import files
from fcam.config import TrainConfig
from fcam.data import EvalTransform, open_dataset
from fcam.data.synthetic import draw_set
from fcam.evaluate_command import print_table
from fcam.model import FCAM
from fcam.panels import panel
from fcam.progress import say
from fcam.recipes import recipe
from fcam.report import gallery
from fcam.report.command import ReportConfig, run_report
from fcam.report.curves import chosen_threshold
from fcam.run import Run
from fcam.split_maps import KINDS
from fcam.train import train

SAMPLES = 6
LEAD = (
    "A classifier was trained on image labels alone. Its CAM lights up the part that decides the class; the F-CAM decoder "
    "learned from that CAM, without masks or boxes, to show the whole object at full resolution."
)


@dataclass(frozen=True)
class DemoConfig:
    """Draw a data set, train a classifier and its F-CAM decoder, evaluate, and write a page with pictures.

    The class of each drawn creature shows in the pattern of its head alone, so the classifier's CAM lights up the head;
    F-CAM learns the whole body from that CAM, without a mask or a box.
    """

    out: Path = Path("runs/demo")
    """Folder of the run."""
    method: str = "cam"
    """CAM that F-CAM learns from."""
    seed: int = 0
    workers: int = 2


def run_demo(config: DemoConfig) -> Path:
    """Run the demo, or go on with an interrupted one; returns the page."""
    data = config.out / "data"
    say(f"drawing a data set into {data}")
    draw_set(data, seed=config.seed)
    settings = dataclasses.replace(
        recipe(f"synthetic-lite0-{config.method}"),
        data=str(data),
        out=str(config.out),
        seed=config.seed,
        workers=config.workers,
        resume=True,
    )
    train(settings)
    report = Run(config.out).report()
    assert report is not None  # the drawn set has a test split
    print_table(report)
    return _write_page(config, settings, report)


def _write_page(config: DemoConfig, settings: TrainConfig, report: dict) -> Path:
    """The report of the run, and the panel of its first samples as a picture of its own."""
    folder = config.out / "report"
    model = FCAM.from_pretrained(config.out)
    test = open_dataset(
        config.out / "data", "test", transform=EvalTransform(settings.crop), localization=True
    )
    thresholds = {kind: chosen_threshold(report["maps"][kind], "mask") for kind in KINDS}
    rows = gallery.sample_rows(model, test, gallery.spread(test, SAMPLES), settings, thresholds, "mask")
    files.write_image(folder / "panel.png", panel(rows, titles=gallery.TITLES, height=200))
    page = ReportConfig(runs=(config.out,), out=folder, samples=SAMPLES, workers=config.workers)
    return run_report(page, "F-CAM beside the CAM it learned from", LEAD)
