"""Run the tutorial as it is written, and take its pictures on the way.

    python docs/make_screenshots.py                      # everything, in a temporary folder: minutes
    python docs/make_screenshots.py --work FOLDER        # in your folder; a finished run is not repeated

Needs gspool[serve], selenium and Chromium with its driver. Writes docs/images/tutorial_*.png, the answer of the server
in docs/tutorial.md and, if everything was run, results/tutorial.json with the time of each command.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

DOCS = Path(__file__).parent
TUTORIAL = DOCS / "tutorial.md"
IMAGES = DOCS / "images"
ADDRESS = "http://127.0.0.1:7860"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
QUERY = "pictures/latin-capital-letter-b/3.png"


def main() -> None:
    """Run every block of the tutorial in order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=None, help="where to run it; a temporary folder unless given")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tutorial-") as temporary:
        work = given.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        seconds = run_tutorial(work)
        if seconds is not None:
            write_timings(work, seconds)


def run_tutorial(work: Path) -> dict[str, float] | None:
    """Run the blocks; return the seconds of each command, or None if the training was finished before."""
    seconds: dict[str, float] = {}
    trained_before = (work / "runs/letters/result.json").exists()
    with ExitStack() as server:
        for language, code in BLOCK.findall(TUTORIAL.read_text(encoding="utf-8")):
            if language == "python":
                (work / "make_pictures.py").write_text(code, encoding="utf-8")
            if language != "bash" or code.startswith("pip ") or ("gspool train" in code and trained_before):
                continue
            print(f"$ {code.strip()}", flush=True)
            if code.startswith("gspool serve"):
                server.enter_context(serving(work, code))
                photograph_page(work)
                continue
            began = time.perf_counter()
            said = subprocess.run(
                code, shell=True, cwd=work, env=environment(), check=True, stdout=subprocess.PIPE, text=True
            ).stdout
            if code.startswith("curl"):
                put_answer(said)
            else:
                print(said, flush=True)
                step = "pictures" if code.startswith("python") else code.split()[1]
                seconds[step] = seconds.get(step, 0.0) + time.perf_counter() - began
    keep(Image.open(work / "found.png"), "found")
    keep(Image.open(work / "why.png"), "why")
    with browser() as driver:
        driver.set_window_size(1180, 900)
        driver.get((work / "prototypes.html").resolve().as_uri())
        keep(screenshot(driver), "prototypes")
    return None if trained_before else seconds


def environment() -> dict[str, str]:
    """Return an environment in which commands are those of the Python that runs this."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@contextmanager
def serving(work: Path, code: str) -> Iterator[None]:
    """Run the server, and end it by Ctrl-C."""
    process = subprocess.Popen(shlex.split(code), cwd=work, env=environment())
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{ADDRESS}/api/health").close()
                break
            except OSError:
                time.sleep(0.2)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


@contextmanager
def browser() -> Iterator[Any]:
    """Open a headless browser of a laptop's size."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--window-size=1280,900",
        "--hide-scrollbars",
    ):
        options.add_argument(word)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver") or "chromedriver"))
    try:
        yield driver
    finally:
        driver.quit()


def photograph_page(work: Path) -> None:
    """Drop the picture of the tutorial on the page, and take pictures of the answer in two views."""
    with browser() as driver:
        wait = WebDriverWait(driver, 60)
        driver.get(ADDRESS)
        wait.until(lambda page: page.find_elements(By.CSS_SELECTOR, "#picture input[type=file]"))
        driver.find_element(By.CSS_SELECTOR, "#picture input[type=file]").send_keys(str((work / QUERY).resolve()))
        wait.until(lambda page: page.find_elements(By.CSS_SELECTOR, "#found .card img"))
        time.sleep(2)  # until what Gradio fades in is there
        keep(screenshot(driver), "page")
        driver.find_element(By.CSS_SELECTOR, "#view input[value=prototypes]").click()
        wait.until(lambda page: "shared" in page.find_element(By.ID, "found").text)
        time.sleep(2)
        driver.set_window_size(1280, 1480)
        time.sleep(1)
        keep(screenshot(driver), "page_prototypes")


def screenshot(driver: Any) -> Image.Image:
    """Take what the window shows."""
    return Image.open(io.BytesIO(driver.get_screenshot_as_png()))


def keep(picture: Image.Image, name: str) -> None:
    """Write a picture of the tutorial in 256 colours, among them rare ones such as those of prototypes."""
    path = IMAGES / f"tutorial_{name}.png"
    few = picture.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB", flush=True)


def put_answer(answer: str) -> None:
    """Put the answer of the server into the tutorial."""
    neighbours = [json.dumps(each, ensure_ascii=False) for each in json.loads(answer)["neighbours"]]
    text = '{"neighbours": [\n  ' + ",\n  ".join(neighbours) + "\n]}\n"
    page = TUTORIAL.read_text(encoding="utf-8")
    TUTORIAL.write_text(re.sub(r"(```json\n).*?(```)", lambda m: m[1] + text + m[2], page, flags=re.DOTALL), "utf-8")


def write_timings(work: Path, seconds: dict[str, float]) -> None:
    """Write how long it took, and the result."""
    from gspool.provenance import write_result

    result = json.loads((work / "runs/letters/result.json").read_text(encoding="utf-8"))
    value = {
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "minutes": round(sum(seconds.values()) / 60, 1),
        "test": result["metrics"],
    }
    command = "python docs/make_screenshots.py"
    libraries = ["gradio", "lancedb", "selenium"]
    write_result(DOCS.parent / "results" / "tutorial.json", value, command=command, seeds=[0], libraries=libraries)


if __name__ == "__main__":
    main()
