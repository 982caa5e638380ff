"""The page in a real browser: a picture is dropped, and what is near it appears, with the reasons."""

from __future__ import annotations

import base64
import io
import json
import shutil

import numpy as np
import pytest
from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from search.corpus_files import noise
from search.served import HOSTILE, Server, png_bomb

pytestmark = pytest.mark.browser
SECONDS = 60  # to wait for what takes two on a quiet machine


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1300,1100"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver") or "chromedriver"))
    yield driver
    driver.quit()


def wait(browser, condition):
    return WebDriverWait(browser, SECONDS, poll_frequency=0.1).until(condition)


def all_of(browser, selector: str):
    return browser.find_elements(By.CSS_SELECTOR, selector)


def drop(browser, server: Server, path, cards: int = 12) -> None:
    """Open the page anew, give it a picture, and wait for so many neighbours."""
    browser.get(server.address)
    wait(browser, lambda page: all_of(page, "#picture input[type=file]"))
    browser.find_element(By.CSS_SELECTOR, "#picture input[type=file]").send_keys(str(path))
    wait(browser, lambda page: len(all_of(page, "#found .card img")) == cards)


def shown(browser, selector: str) -> list[np.ndarray]:
    """The pixels of pictures that the browser has really decoded and laid out."""
    pictures = []
    for image in all_of(browser, selector):
        assert browser.execute_script("return arguments[0].complete && arguments[0].naturalWidth > 0", image)
        assert image.size["width"] > 50
        data = image.get_attribute("src").partition("base64,")[2]
        with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
            pictures.append(np.asarray(picture.convert("RGB")))
    return pictures


@pytest.fixture
def query(tmp_path):
    noise(1).save(tmp_path / "query.png")
    return tmp_path / "query.png"


def test_a_dropped_picture_finds_its_neighbours(browser, server, query) -> None:
    drop(browser, server, query)
    pictures = shown(browser, "#found .card img")
    assert np.array_equal(pictures[0], np.asarray(noise(1)))
    captions = [caption.text for caption in all_of(browser, "#found .card figcaption")]
    assert captions[0].startswith("1.000 ant")
    assert "0-1.png" in captions[0]
    scores = [float(caption.split()[0]) for caption in captions]
    assert scores == sorted(scores, reverse=True)
    weights = shown(browser, "#why .panel img")
    titles = [title.text for title in all_of(browser, "#why .panel figcaption")]
    assert [title.split(",")[0] for title in titles] == ["as the model sees it", "weights", "prototypes"]
    # Different pictures, and the prototypes in colour.
    assert len({picture.tobytes() for picture in weights}) == 3
    assert np.ptp(weights[2].astype(int), axis=-1).max() > 20
    assert len(all_of(browser, "#why .bar")) == 8

    for choice, different in (("weights", True), ("prototypes", True), ("pictures", False)):
        before = all_of(browser, "#found .card img")[0].get_attribute("src")
        all_of(browser, f"#view input[value={choice}]")[0].click()
        wait(browser, lambda page, old=before: all_of(page, "#found .card img")[0].get_attribute("src") != old)
        first = shown(browser, "#found .card img")[0]
        assert (not np.array_equal(first, np.asarray(noise(1)))) == different
        assert ("shared 100%" in all_of(browser, "#found .card figcaption")[0].text) == different

    field = all_of(browser, "#labels input")[0]
    field.send_keys("bee\n")
    wait(browser, lambda page: len(all_of(page, "#found .card")) == 4)
    assert all(" bee" in caption.text for caption in all_of(browser, "#found .card figcaption"))

    threshold = all_of(browser, "#threshold input[type=range]")[0]
    browser.execute_script(
        "arguments[0].value = 1; arguments[0].dispatchEvent(new Event('input', {bubbles: true}));"
        "arguments[0].dispatchEvent(new Event('pointerup', {bubbles: true}));",
        threshold,
    )
    wait(browser, lambda page: "Nothing found" in page.find_element(By.ID, "found").text)


def test_a_neighbour_is_searched_from_by_a_click(browser, server, query) -> None:
    drop(browser, server, query)
    second = all_of(browser, "#found .card")[1]
    name = second.find_element(By.CSS_SELECTOR, "figcaption").text.split()[-1]
    second.click()
    wait(browser, lambda page: f"Nearest pictures to {name}" in page.find_element(By.ID, "found").text)
    captions = [caption.text for caption in all_of(browser, "#found .card figcaption")]
    assert len(captions) == 11
    assert not any(name in caption for caption in captions)
    assert any("0-1.png" in caption for caption in captions)
    # Settings now act on this neighbour, Enter goes on to another, and a new picture starts anew.
    all_of(browser, "#view input[value=weights]")[0].click()
    wait(browser, lambda page: "shared" in page.find_element(By.ID, "found").text)
    assert f"Nearest pictures to {name}" in browser.find_element(By.ID, "found").text
    first = all_of(browser, "#found .card")[0]
    third = first.find_element(By.CSS_SELECTOR, "figcaption").text.split()[-1]
    first.send_keys("\n")
    wait(browser, lambda page: f"Nearest pictures to {third}" in page.find_element(By.ID, "found").text)


def test_on_a_phone_results_come_before_settings(browser, server, query) -> None:
    size = browser.get_window_size()
    # A headless window has a least width; the device's own metrics do not.
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    )
    try:
        drop(browser, server, query)
        tops = [browser.find_element(By.ID, name).rect["y"] for name in ("picture", "found", "why", "settings")]
        assert tops == sorted(tops)
        widths = [browser.find_element(By.ID, name).rect["width"] for name in ("picture", "found", "settings")]
        assert all(300 < width <= 390 for width in widths)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.set_window_size(size["width"], size["height"])


def test_nothing_leaves_this_machine_and_no_script_fails(browser, server, query) -> None:
    browser.get_log("browser")
    browser.get_log("performance")
    drop(browser, server, query)
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    assert len(asked) > 10
    strangers = [url for url in asked if not url.startswith((server.address, "data:", "blob:"))]
    assert strangers == []
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_a_label_is_text_whatever_it_says(browser, server, tmp_path) -> None:
    noise(200).save(tmp_path / "hostile.png")
    drop(browser, server, tmp_path / "hostile.png")
    assert HOSTILE in all_of(browser, "#found .card figcaption")[0].text
    assert all_of(browser, "#found img[src=x]") == []


def test_a_bomb_is_refused_on_the_page(browser, server, tmp_path) -> None:
    (tmp_path / "bomb.png").write_bytes(png_bomb(5001, 5000))
    drop(browser, server, tmp_path / "bomb.png", cards=0)
    wait(browser, lambda page: "5001 x 5000 pixels, at most 25,000,000" in page.find_element(By.TAG_NAME, "body").text)
    assert all_of(browser, "#found .card") == []


def test_the_description_of_the_interface_is_readable(browser, server) -> None:
    browser.get(f"{server.address}/docs")
    assert "HTTP interface" in browser.find_element(By.TAG_NAME, "h1").text
    assert len(all_of(browser, "section")) == 7
    assert "curl -F image=@picture.jpg" in browser.find_element(By.TAG_NAME, "body").text
