"""The page in a real browser: no console error, the slider redraws mask and box, filters and orders work."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fcam.report.command import ReportConfig, run_report
from fcam.run import load_config

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = next(filter(None, map(shutil.which, NAMES)), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no browser is installed: chromium and chromedriver are looked for")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "disable-dev-shm-usage",
        "window-size=1200,900",
    ):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = webdriver.Chrome(options=options, service=Service(driver, env=dict(os.environ)))
    opened.set_script_timeout(30)
    yield opened
    opened.quit()


@pytest.fixture(scope="module")
def opened(browser: Any, tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The report of two groups of runs, scrolled to the gallery."""
    import yaml

    from fcam.run import config_to_dict

    folder = tmp_path_factory.mktemp("browser")
    other = folder / "other"
    shutil.copytree(tiny_run, other, ignore=shutil.ignore_patterns("state"))
    config = dataclasses.replace(load_config(tiny_run), method="layercam")
    (other / "config.yaml").write_text(yaml.safe_dump(config_to_dict(config)))
    page = run_report(
        ReportConfig(runs=(tiny_run, other), out=folder / "out", samples=1, failures=1, workers=0)
    )
    browser.get(page.as_uri())
    browser.execute_script("document.getElementById('gallery').scrollIntoView()")
    wait(browser, "[...document.querySelectorAll('.card')].some((c) => c.dataset.pixels !== undefined)")
    return browser


def wait(browser: Any, condition: str) -> None:
    """Until a JavaScript expression is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 30, poll_frequency=0.05).until(lambda b: b.execute_script(f"return {condition}"))


def choose(browser: Any, name: str, value: str) -> None:
    browser.execute_script(
        "const e = document.getElementById(arguments[0]); e.value = arguments[1];"
        "e.dispatchEvent(new Event('input')); e.dispatchEvent(new Event('change'));",
        name,
        value,
    )


def first_card(browser: Any) -> dict[str, str]:
    return browser.execute_script("return {...document.querySelector('.card').dataset}")


def pixels(browser: Any) -> str:
    return browser.execute_script("return document.querySelector('.card canvas').toDataURL()")


def drawn_at(browser: Any, step: int) -> None:
    """Until every card in sight shows the mask at this position of the slider."""
    wait(browser, f"document.querySelector('.card').dataset.drawn?.split(' ')[2] === '{step}'")
    browser.execute_async_script("const done = arguments[0]; setTimeout(done, 300)")


def test_the_slider_redraws_mask_and_box(opened: Any) -> None:
    choose(opened, "kind", "cam")  # spans 0 to 1 even where little was learned
    choose(opened, "order", "list")
    seen = []
    for step in (5, 60, 95):
        choose(opened, "threshold", str(step))
        drawn_at(opened, step)
        card = first_card(opened)
        seen.append((int(card["pixels"]), card["box"], pixels(opened)))
        assert f"threshold 0.{step:02d}" in opened.find_element("id", "summary").text
    (many, wide, one), (_, _, two), (few, narrow, three) = seen
    assert many > few
    assert wide != narrow
    assert len({one, two, three}) == 3
    opened.find_element("id", "reset").click()
    assert "(as chosen)" in opened.find_element("id", "summary").text


def test_the_box_is_that_of_the_largest_part(opened: Any) -> None:
    """What the page draws is what `fcam.boxes` finds in the same small map."""
    import base64
    import io
    import json

    import numpy as np
    from PIL import Image

    from fcam.boxes import from_map

    choose(opened, "kind", "cam")
    choose(opened, "order", "list")
    choose(opened, "threshold", "55")
    drawn_at(opened, 55)
    pictures = json.loads(opened.execute_script("return document.getElementById('gallery-0-0').textContent"))
    cards = opened.execute_script(
        "return [...document.querySelectorAll('.card')].map((c) => ({...c.dataset}))"
    )
    compared = 0
    for card in cards:
        if "box" not in card:
            continue
        data = pictures[int(card["place"])][2]
        levels = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("L"))
        cam = (levels / 255 + 1e-6).clip(0, 1)
        x0, y0, x1, y1 = from_map(cam, 0.55, convention="exact")[0].tolist()
        assert card["box"] == f"{x0} {y0} {x1 + 1} {y1 + 1}"
        compared += 1
    assert compared >= 4


def test_filter_order_and_map(opened: Any) -> None:
    def overlaps() -> list[float]:
        return [
            float(v)
            for v in opened.execute_script(
                "return [...document.querySelectorAll('.card')].map((c) => c.dataset.overlap)"
            )
        ]

    choose(opened, "kind", "fcam")
    choose(opened, "order", "low")
    assert overlaps() == sorted(overlaps())
    assert len(overlaps()) == 8
    choose(opened, "order", "high")
    assert overlaps() == sorted(overlaps(), reverse=True)
    choose(opened, "class", "1")
    assert len(overlaps()) == 4
    assert opened.find_element("id", "summary").text.startswith("4 images of the 8")
    choose(opened, "class", "")
    before = pixels(opened)
    choose(opened, "kind", "cam")
    wait(opened, "document.querySelector('.card').dataset.drawn?.split(' ')[1] === 'cam'")
    opened.execute_async_script("const done = arguments[0]; setTimeout(done, 300)")
    assert pixels(opened) != before
    choose(opened, "run", "1")
    assert "LayerCAM" in opened.execute_script(
        "return document.getElementById('run').selectedOptions[0].textContent"
    )
    assert len(overlaps()) == 8


def test_heat_map_and_other_colours(opened: Any) -> None:
    seen = {pixels(opened)}
    choose(opened, "view", "heat")
    opened.execute_async_script("const done = arguments[0]; setTimeout(done, 300)")
    seen.add(pixels(opened))
    choose(opened, "view", "cut")
    opened.find_element("id", "safe").click()
    opened.execute_async_script("const done = arguments[0]; setTimeout(done, 300)")
    seen.add(pixels(opened))
    assert len(seen) == 3


def test_no_console_error_and_no_request(opened: Any) -> None:
    """The last test of the module: what all the others did is in the log."""
    assert [entry["message"] for entry in opened.get_log("browser")] == []
    requests = opened.execute_script("return performance.getEntriesByType('resource').map((e) => e.name)")
    assert [name for name in requests if not name.startswith("data:")] == []


def test_a_phone_needs_no_sideways_scrolling(opened: Any) -> None:
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        assert opened.execute_script("return document.documentElement.scrollWidth") <= 390
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_an_image_without_truth_is_neither_best_nor_worst(opened: Any, tmp_path: Path) -> None:
    address = opened.current_url
    text = Path(address.removeprefix("file://")).read_text(encoding="utf-8")
    page = tmp_path / "index.html"
    page.write_text(text.replace('"counted":[true', '"counted":[false'), encoding="utf-8")
    opened.get(page.as_uri())
    try:
        for order in ("low", "high"):
            choose(opened, "order", order)
            shown = opened.execute_script(
                "return [...document.querySelectorAll('.card')].map((c) => c.dataset.overlap)"
            )
            assert shown.index("no truth") == 7, order
        assert "of the 7 with truth" in opened.find_element("id", "summary").text
    finally:
        opened.get(address)
