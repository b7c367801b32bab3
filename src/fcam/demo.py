"""`fcam demo`: the whole chain on a drawn data set, without network or photo, and a page that shows the point."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from fcam import draw, files, scores
from fcam.data import EvalTransform, open_dataset
from fcam.data.synthetic import draw_set
from fcam.evaluate_command import print_table, read_report
from fcam.model import FCAM
from fcam.progress import say
from fcam.recipes import recipe
from fcam.report import gallery, page
from fcam.train import train

SAMPLES = 6


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
    report = read_report(config.out / "metrics.json")
    print_table(report)
    return _write_page(config, settings.crop, report)


def _write_page(config: DemoConfig, size: int, report: dict) -> Path:
    model = FCAM.from_pretrained(config.out)
    test = open_dataset(config.out / "data", "test", transform=EvalTransform(size), localization=True)
    found = model.metadata["thresholds"]
    thresholds = {kind: found[kind]["piou"] for kind in found}
    rows = gallery.sample_rows(model, test, gallery.spread(test, SAMPLES), config.method, thresholds)
    panel = draw.panel(rows, titles=gallery.TITLES, height=200)
    path = config.out / "report" / "index.html"
    files.write_image(path.with_name("panel.png"), panel)
    parts = [
        page.text(
            "A classifier was trained on image labels alone. Its CAM lights up the part that decides the class; the F-CAM "
            "decoder learned from that CAM, without masks or boxes, to show the whole object at full resolution."
        ),
        page.table(scores.table(report)),
        page.text(
            f"Split: test, {report['images']} images never seen in training. Seed {config.seed}. box@d, MaxBoxAcc: share of "
            "images whose box reaches an overlap of d at the split's best threshold; carried over: at the threshold that "
            "was best on val. PxAP: area under the precision-recall curve of all pixels."
        ),
        page.heading("The first test images of each class"),
        page.picture(
            panel,
            "Red: found and true. Green: true but missed. Blue: found but false. Boxes: red predicted, green true. "
            "Thresholds were chosen on val.",
        ),
    ]
    page.write_page(path, "F-CAM beside the CAM it learned from", parts)
    return path
