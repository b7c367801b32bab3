"""How large a report over thousands of images is, and how soon it can be read; prints Markdown.

    python benchmarks/report_size.py --images 5000

Draws a data set, trains a small network for an epoch (maps that have hardly learned are the noisiest, and compress worst), puts
every test image into the gallery, and opens the page in headless Chromium: until the document is there, until everything in it
has run, and, scrolled to the gallery, until its first pictures are drawn. Needs chromium and chromedriver, as the tests do.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

from fcam.config import ModelConfig, StageConfig, TrainConfig
from fcam.data.synthetic import draw_set
from fcam.report.command import ReportConfig, run_report
from fcam.train import train

CLASSES = 10
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1200,900")


def make(folder: Path, images: int) -> Path:
    """Draw, train and report; returns the page."""
    data = draw_set(folder / "data", images_per_class=(8, 4, images // CLASSES), classes=CLASSES, size=224)
    stage = StageConfig(epochs=1, batch_size=16, select="pxap")
    config = TrainConfig(
        name="report-size",
        data=str(data),
        out=str(folder / "run"),
        model=ModelConfig(backbone="timm:test_resnet", pretrained=False, decoder_channels=(8, 8, 8, 8, 8)),
        stage1=stage,
        stage2=stage,
    )
    run = train(config)
    return run_report(ReportConfig(runs=(run,), out=folder / "report", images=images))


def open_page(page: Path) -> dict[str, float]:
    """Seconds from the request to each of three moments."""
    options = webdriver.ChromeOptions()
    options.binary_location = next(filter(None, map(shutil.which, PROGRAMS)), "")
    for argument in ARGUMENTS:
        options.add_argument(f"--{argument}")
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        driver.get("about:blank")
        began = time.perf_counter()
        driver.get(page.as_uri())
        whole = time.perf_counter() - began
        timing = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd / 1000"
        there = float(driver.execute_script(f"return {timing}"))
        began = time.perf_counter()
        driver.execute_script("document.getElementById('gallery').scrollIntoView()")
        drawn = "[...document.querySelectorAll('.card')].some((c) => c.dataset.pixels !== undefined)"
        WebDriverWait(driver, 60, poll_frequency=0.02).until(lambda d: d.execute_script(f"return {drawn}"))
        return {"document": there, "all of it": whole, "gallery": time.perf_counter() - began}
    finally:
        driver.quit()


def main() -> None:
    """One line of Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=5000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = make(Path(folder), arguments.images)
        seconds = open_page(page)
        size = page.stat().st_size / 1e6
    print(
        "| images | size | document | all of it | first pictures after scrolling to the gallery |\n|--:|--:|--:|--:|--:|"
    )
    print(
        f"| {arguments.images} | {size:.1f} MB | "
        + " | ".join(f"{value:.2f} s" for value in seconds.values())
        + " |"
    )


if __name__ == "__main__":
    main()
