"""Minutes of abuse: kills and thousands of requests. Run by `pytest -m slow`.

With GSPOOL_FIGURES naming a file, what was counted is written there as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from search.corpus_files import draw_picture, noise, rows_of
from search.served import Server, as_bytes, png_bomb

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]
KILLS, REQUESTS = 100, 10_000


def note(name: str, **figures) -> None:
    """Keep what was counted, for whoever asks for it."""
    print(name, figures)
    file = os.environ.get("GSPOOL_FIGURES")
    if file:
        known = json.loads(Path(file).read_text()) if Path(file).exists() else {}
        Path(file).write_text(json.dumps({**known, name: figures}, indent=1) + "\n")


def run_program(program: str, *arguments: object) -> dict:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


# Kills children that it forks before LanceDB is imported, so that each starts in a second.
KILLER = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch, torchvision
from gspool import Embedder
from gspool.models import embedder
from gspool.models.pixels import Pixels

model, pictures, work, kills = *sys.argv[1:4], int(sys.argv[4])
torch.set_num_threads(1)

def embed(out):
    from gspool.search import corpus as module
    module.ROWS_AT_ONCE = 8
    return module.embed_corpus(model, pictures, out, batch_size=4, workers=2, device="cpu")

def start(out):
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        os.read(reading, 1)
        os.close(reading)
        return child
    os.close(reading)
    try:
        from gspool.search import corpus as module
        os.write(writing, b"x")
        embed(out)
        os._exit(0)
    except BaseException as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)

def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

chance = random.Random(0)
lengths, files, killed, finished = {}, [], 0, 0
for kind in ("lance", "parquet", "npz"):
    child, began = start(f"{work}/whole.{kind}"), time.monotonic()
    assert ended(child) == 0
    lengths[kind] = time.monotonic() - began
while killed < kills:
    kind = ("lance", "parquet", "npz")[len(files) % 3]
    out = f"{work}/killed-{len(files)}.{kind}"
    for _ in range(20):
        child = start(out)
        time.sleep(chance.uniform(0, lengths[kind]))
        os.kill(child, signal.SIGKILL)
        status = ended(child)
        assert status in (0, -signal.SIGKILL), status
        killed += status != 0
        finished += status == 0
        if status == 0 or killed == kills:
            break
    assert ended(start(out)) == 0
    files.append(out)
print(json.dumps({"kills": killed, "finished_before": finished, "files": files}))
"""


def test_every_row_is_the_same_after_a_hundred_kills(model_folder, tmp_path) -> None:
    for number in range(200):
        draw_picture(tmp_path / "pictures" / f"class {number % 5}" / f"{number:03d}.png", number)
        if number % 40 == 7:
            (tmp_path / "pictures" / f"class {number % 5}" / f"{number:03d}x.png").write_bytes(b"broken")
    work = tmp_path / "work"
    work.mkdir()
    began = time.monotonic()
    result = run_program(KILLER, model_folder, tmp_path / "pictures", work, KILLS)

    whole = rows_of(work / "whole.lance")
    assert len(whole) == 200
    for file in [work / "whole.parquet", work / "whole.npz", *map(Path, result["files"])]:
        assert rows_of(file) == whole, file
    assert not [entry.name for entry in work.iterdir() if entry.name.endswith((".parts", ".writing", ".lock"))]
    assert result["kills"] == KILLS
    note(
        "embedding_kills",
        kills=KILLS,
        files=len(result["files"]),
        rows_compared=200 * (len(result["files"]) + 2),
        rows_different=0,
        seconds=round(time.monotonic() - began),
    )


def test_memory_is_flat_over_ten_thousand_requests(served_folder) -> None:
    contents = [as_bytes(noise(seed), kind) for seed in range(40) for kind in ("PNG", "JPEG")]
    bad = [b"words", png_bomb(1, 500_000), png_bomb(9000, 9000), contents[0][:-40]]

    def one(number: int) -> int:
        content = contents[number % len(contents)]
        kind = number % 10
        if kind == 0:
            return server.ask("GET", f"/api/pictures/{number % 12}").status
        if kind == 1:
            return server.send("/api/search", bad[number // 10 % len(bad)]).status
        if kind == 2:
            return server.send("/gradio_api/upload", content, "files").status
        if kind == 3:
            return server.ask("GET", "/api/health").status
        return server.send(f"/api/{('search', 'embed', 'explain')[number % 3]}", content).status

    def asked(first: int, last: int) -> set[int]:
        with ThreadPoolExecutor(8) as people:
            return set(people.map(one, range(first, last)))

    with Server(served_folder) as server:
        began = time.monotonic()
        statuses = asked(0, REQUESTS // 5)
        early = server.memory()
        statuses |= asked(REQUESTS // 5, REQUESTS)
        late = server.memory()
        # The page's own way last: it keeps a session for every question.
        pages = [server.asked(server.send("/gradio_api/upload", contents[0], "files").json()[0]) for _ in range(20)]
        assert all('"success":true' in page for page in pages)
        note(
            "requests",
            requests=REQUESTS,
            seconds=round(time.monotonic() - began),
            memory_mb_after_a_fifth=round(early / 2**20),
            memory_mb_at_the_end=round(late / 2**20),
            peak_mb=round(server.memory("VmHWM") / 2**20),
        )
        assert statuses == {200, 413, 415, 422}
        assert late - early < 40 * 2**20
