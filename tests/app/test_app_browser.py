"""The app in a real browser: photos in, pictures out, the slider moves mask and boxes, nothing leaves this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image, ImageDraw

NAMES = ("chromium", "chromium-browser", "google-chrome")
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    program = next(filter(None, map(shutil.which, NAMES)), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no browser is installed: chromium and chromedriver are looked for")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = program
    arguments = (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "disable-dev-shm-usage",
        "window-size=1280,1000",
    )
    for argument in (*arguments, "no-proxy-server"):
        options.add_argument(f"--{argument}")
    downloads = tmp_path_factory.mktemp("downloads")
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = webdriver.Chrome(options=options, service=Service(driver, env=dict(os.environ)))
    opened.set_script_timeout(30)
    opened.downloads = downloads  # type: ignore[attr-defined]
    yield opened
    opened.quit()


def draw_photo(size: tuple[int, int], color: tuple[int, int, int]) -> Image.Image:
    """Blurred colours, and a disc."""
    colors = np.random.default_rng(5).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    photo = Image.fromarray(colors).resize(size)
    ImageDraw.Draw(photo).ellipse((60, 60, 170, 180), fill=color)
    return photo


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    draw_photo((320, 240), (240, 30, 20)).save(folder / "red.png")
    draw_photo((320, 240), (20, 40, 230)).save(folder / "blue.png")
    return folder


@pytest.fixture(scope="module")
def served(
    browser: Any, photos: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, subprocess.Popen[str], Path]]:
    """The app in a process of its own: its address, the process, where its temporary files are."""
    import torch

    from fcam.registry import create_model

    folder = tmp_path_factory.mktemp("served")
    for name, seed in (("one", 1), ("two", 2)):
        torch.manual_seed(seed)
        net = create_model("timm:test_resnet", 6, pretrained=False, classes=list("abcdef"))
        net.metadata["threshold"] = 0.4
        with torch.no_grad():  # random weights give a flat map; this one spans all values
            for parameter in list(net.decoder.parameters())[-2:]:
                parameter.mul_(3)
        net.save_pretrained(folder / name)
    (folder / "tmp").mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    models = ["--model", str(folder / "one"), "--model", str(folder / "two")]
    command = [sys.executable, "-m", "fcam", "app", *models, "--photos", str(photos), "--port", str(port)]
    environment = {**os.environ, "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if "http://127.0.0.1" not in line:
        process.kill()
        pytest.fail(line + process.stdout.read())
    yield f"http://127.0.0.1:{port}/", process, folder / "tmp"
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def page(browser: Any, served: tuple[str, Any, Path]) -> Any:
    browser.get(served[0])
    wait(browser, "document.querySelector('#label')?.textContent")
    return browser


def wait(browser: Any, condition: str, *values: Any) -> None:
    """Until a JavaScript expression is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    until: Callable[[Any], Any] = lambda b: b.execute_script(f"return {condition}", *values)  # noqa: E731
    WebDriverWait(browser, 20, poll_frequency=0.05).until(until, condition)


def text(browser: Any, selector: str) -> str:
    return browser.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", selector)


def sources(browser: Any) -> list[str]:
    return browser.execute_script(
        "return [0, 1, 2].map((i) => document.querySelector(`#picture-${i} img`)?.src ?? '')"
    )


def slide(browser: Any, value: float) -> None:
    """Move the slider as a hand does, and wait until the numbers have followed."""
    before = text(browser, ".fcam-details")
    browser.execute_script(
        "const e = document.querySelector('#threshold input[type=range]'); e.value = arguments[0];"
        "e.dispatchEvent(new Event('input', {bubbles: true})); e.dispatchEvent(new Event('change', {bubbles: true}));"
        "e.dispatchEvent(new Event('pointerup', {bubbles: true}))",
        str(value),
    )
    wait(browser, "document.querySelector('.fcam-details').textContent !== arguments[0]", before)


def choose(browser: Any, name: str, entry: str) -> None:
    """Open a dropdown and take the entry that begins so."""
    from selenium.webdriver.common.by import By

    browser.find_element(By.CSS_SELECTOR, f"#{name} input").click()
    found = "[...document.querySelectorAll('ul[role=listbox] li')].find((e) => e.textContent.includes(arguments[0]))"
    wait(browser, found, entry)
    browser.execute_script(
        f"const e = {found}; for (const kind of ['mousedown', 'mouseup', 'click'])"
        "e.dispatchEvent(new MouseEvent(kind, {bubbles: true}))",
        entry,
    )


def upload(browser: Any, path: Path) -> None:
    from selenium.webdriver.common.by import By

    for button in browser.find_elements(
        By.CSS_SELECTOR, "#upload button[aria-label='Clear'], #upload button[aria-label='Remove this file']"
    ):
        button.click()
    wait(browser, "document.querySelector('#upload input[type=file]')")
    browser.find_element(By.CSS_SELECTOR, "#upload input[type=file]").send_keys(str(path))


def share(browser: Any, key: str = "fcam") -> float:
    return float(text(browser, f"#{key}-share").split()[0])


def test_the_first_photo_of_the_folder_is_there(page: Any) -> None:
    assert "blue.png, 320×240 pixels" in text(page, "#headline")
    wait(page, "[0, 1, 2].every((i) => document.querySelector(`#picture-${i} img`)?.naturalWidth === 320)")
    assert len(set(sources(page))) == 3
    assert text(page, "#score").endswith("%")


def test_a_photo_is_uploaded_and_shown(page: Any, tmp_path: Path) -> None:
    draw_photo((200, 300), (30, 200, 40)).save(tmp_path / "mine.jpg", quality=95)
    before = sources(page)
    upload(page, tmp_path / "mine.jpg")
    wait(page, "document.querySelector('#headline').textContent.includes('mine.jpg, 200×300')")
    wait(page, "document.querySelector('#picture-0 img')?.naturalWidth === 200")
    assert not set(before) & set(sources(page))


def test_the_slider_moves_mask_and_boxes(page: Any) -> None:
    seen = []
    for value in (0.05, 0.5, 0.95):
        slide(page, value)
        wait(
            page,
            "![...document.querySelectorAll('#pictures img')].some((e) => e.src === arguments[0])",
            seen[-1][2] if seen else "",
        )
        seen.append((share(page), text(page, "#fcam-cut table"), sources(page)[0]))
    (many, wide, _), _, (few, narrow, _) = seen
    assert many > few
    assert wide != narrow
    page.find_element("id", "reset").click()
    wait(page, "document.querySelector('#threshold input[type=number]').value === '0.4'")
    wait(page, "document.querySelector('#fcam-cut').textContent !== arguments[0]", narrow)
    assert many > share(page) > few


def test_all_boxes(page: Any) -> None:
    slide(page, 0.6)
    one = int(page.execute_script("return document.querySelector('#cam-cut').dataset.boxes"))
    assert one == 1
    page.execute_script("document.querySelectorAll('#rule input')[1].click()")
    wait(
        page,
        "+document.querySelector('#fcam-cut').dataset.boxes + +document.querySelector('#cam-cut').dataset.boxes > 2",
    )


def test_better_maps_are_a_click_away(page: Any) -> None:
    share = "document.querySelector('#fcam-share').textContent"
    before = page.execute_script(f"return {share}")
    page.execute_script("document.querySelectorAll('#ways input')[0].click()")
    wait(page, f"{share} !== '{before}'")
    page.execute_script("document.querySelectorAll('#ways input')[0].click()")
    wait(page, f"{share} === '{before}'")


def test_another_method_and_class_change_the_cam(page: Any) -> None:
    first = sources(page)
    choose(page, "method", "LayerCAM")
    wait(page, "document.querySelector('#cam-cut h3').textContent.startsWith('LayerCAM')")
    wait(page, "document.querySelector('#picture-1 img').src !== arguments[0]", first[1])
    second, title = sources(page), text(page, "#cam-cut h3")
    assert second[2] == first[2], "F-CAM does not depend on the method"
    last = page.execute_script("return [...document.querySelectorAll('#ranking th')].at(-1).textContent")
    choose(page, "class", f"{last}, ")
    wait(page, "document.querySelector('#cam-cut h3').textContent !== arguments[0]", title)
    wait(page, "document.querySelector('#picture-1 img').src !== arguments[0]", second[1])


def test_another_model_sees_the_same_photo(page: Any) -> None:
    before = sources(page)
    choose(page, "model", "two")
    wait(page, "document.querySelector('#headline').textContent.includes('two')")
    wait(page, "document.querySelector('#picture-2 img').src !== arguments[0]", before[2])
    assert "mine.jpg" in text(page, "#headline")
    wait(page, "document.querySelector('#threshold input[type=number]').value === '0.4'")


def test_a_text_file_is_answered_with_a_sentence_and_the_app_goes_on(page: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.jpg").write_text("no picture at all")
    upload(page, tmp_path / "notes.jpg")
    wait(page, "document.querySelector('#problem')")
    assert (
        text(page, "#problem")
        == "notes.jpg cannot be shown: it is not an image of a known format. Choose another photo."
    )
    wait(page, "!document.querySelector('#picture-0')?.offsetParent")
    page.find_element("id", "on").click()
    wait(page, "document.querySelector('#label') && !document.querySelector('#problem')")
    page.find_element("id", "on").click()
    wait(page, "document.querySelector('#headline').textContent.includes('red.png')")
    wait(page, "document.querySelector('#picture-0 img')?.naturalWidth === 320")


def test_what_is_seen_is_saved(page: Any, tmp_path: Path) -> None:
    slide(page, 0.7)
    page.find_element("id", "save").click()
    from selenium.webdriver.support.ui import WebDriverWait

    target = page.downloads / "red-fcam.zip"
    WebDriverWait(page, 20, poll_frequency=0.05).until(lambda _: target.exists())
    with zipfile.ZipFile(target) as packed:
        names = packed.namelist()
        whole = json.loads(packed.read("predictions.json"))
        mask = np.asarray(Image.open(packed.open("masks/red.png")))
    assert sorted(names) == [
        "heatmaps/red.png",
        "masks/red.png",
        "overlays/red.jpg",
        "panels/red.jpg",
        "predictions.json",
    ]
    (row,) = whole["predictions"]
    assert row["threshold"] == 0.7
    assert row["mask_share"] == pytest.approx((mask > 0).mean(), abs=1e-6)
    assert 100 * row["mask_share"] == pytest.approx(share(page), abs=0.051)
    assert row["label"] == text(page, "#label")


def test_two_tabs_know_nothing_of_each_other(page: Any, served: tuple[str, Any, Path]) -> None:
    first, before = page.current_window_handle, text(page, ".fcam-details")
    page.switch_to.new_window("tab")
    page.get(served[0])
    wait(page, "document.querySelector('#label')?.textContent")
    assert "blue.png" in text(page, "#headline")
    slide(page, 0.2)
    page.close()
    page.switch_to.window(first)
    assert text(page, ".fcam-details") == before
    page.execute_script("document.querySelectorAll('#rule input')[0].click()")
    wait(page, "document.querySelector('.fcam-details').textContent !== arguments[0]", before)
    assert "red.png" in text(page, "#headline")


def test_a_phone_needs_no_sideways_scrolling(page: Any) -> None:
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    try:
        assert page.execute_script("return document.documentElement.scrollWidth") <= 390
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_no_console_error_and_no_request_to_another_host(page: Any) -> None:
    """After all the others: what they did is in the logs."""
    log = page.get_log("browser")
    assert [entry["message"] for entry in log if entry["level"] == "SEVERE"] == []
    asked = []
    for entry in page.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked.append(message["params"]["request"]["url"])
    assert len(asked) > 20
    assert {urlsplit(url).hostname for url in asked if not url.startswith(("data:", "blob:"))} == {
        "127.0.0.1"
    }


def test_another_name_for_this_machine_is_refused(served: tuple[str, Any, Path]) -> None:
    import httpx

    with httpx.Client(trust_env=False) as client:
        assert client.get(served[0]).status_code == 200
        assert client.get(served[0], headers={"host": "evil.example"}).status_code == 400


def test_ctrl_c_ends_it_with_130_and_leaves_no_temporary_file(served: tuple[str, Any, Path]) -> None:
    _, process, temporary = served
    assert list(temporary.glob("fcam-app-*")), "temporary files were in their own folder"
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    output = process.stdout.read()
    assert "Traceback" not in output
    assert "fcam: interrupted" in output
    assert not list(temporary.glob("fcam-app-*"))
