"""Minutes of abuse: kills, damaged pictures, thousands of requests. Run by `pytest -m slow`.

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

from search.drawn_picture import draw_picture
from search.served import Server, as_bytes, noise, png_bomb, write_corpus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]
KILLS, FUZZED, REQUESTS = 100, 10_000, 10_000


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
    from gspool.search.corpus import embed as module
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
        from gspool.search.corpus import embed as module
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
    from gspool.search.index.export import read_pieces
    from gspool.search.index.table import open_table

    for number in range(200):
        draw_picture(tmp_path / "pictures" / f"class {number % 5}" / f"{number:03d}.png", number)
        if number % 40 == 7:
            (tmp_path / "pictures" / f"class {number % 5}" / f"{number:03d}x.png").write_bytes(b"broken")
    work = tmp_path / "work"
    work.mkdir()
    began = time.monotonic()
    result = run_program(KILLER, model_folder, tmp_path / "pictures", work, KILLS)

    def rows(path: Path) -> list[dict]:
        table = open_table(path).to_arrow().to_pylist() if path.suffix == ".lance" else None
        found = table if table is not None else [row for piece in read_pieces(path) for row in piece.to_pylist()]
        return sorted(found, key=lambda row: row["row"])

    whole = rows(work / "whole.lance")
    assert len(whole) == 200
    for file in [work / "whole.parquet", work / "whole.npz", *map(Path, result["files"])]:
        assert rows(file) == whole, file
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


FUZZER = """
import io, json, random, resource, sys, time
import numpy as np
from PIL import Image
from gspool import Embedder
from gspool.data import BrokenImageError
from gspool.search.images import read_pixels

count = int(sys.argv[1])
chance = random.Random(0)
model = Embedder("resnet20", pooling="gap", dim=8)
noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 48, 3), dtype=np.uint8))
exif = Image.Exif()
exif[0x0112] = 6
seeds = []
for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP"):
    for mode in ("RGB", "L", "P", "RGBA", "CMYK", "I;16"):
        for more in ({}, {"exif": exif}, {"progressive": True}, {"save_all": True, "append_images": [noise] * 3}):
            buffer = io.BytesIO()
            try:
                picture = noise.convert("L").convert("I;16") if mode == "I;16" else noise.convert(mode)
                picture.save(buffer, kind, **more)
            except Exception:
                continue  # not every format has every mode
            seeds.append(buffer.getvalue())

def damaged(content):
    content = bytearray(content)
    for _ in range(chance.randint(1, 6)):
        place = chance.randrange(len(content))
        way = chance.randrange(6)
        if way == 0:
            content[place] ^= 1 << chance.randrange(8)
        elif way == 1:
            values = (b"\\xff" * 4, b"\\0" * 4, b"\\x7f\\xff\\xff\\xff", b"\\0\\1\\0\\0")
            content[place : place + 4] = chance.choice(values)
        elif way == 2:
            del content[place:]
            content += b"x"
        elif way == 3:
            del content[place : place + chance.randint(1, 40)]
            content += b"x"
        elif way == 4:
            content[place:place] = chance.randbytes(chance.randint(1, 40))
        else:
            other = chance.choice(seeds)
            content[place:] = other[min(place, len(other) - 1) :]
    return bytes(content)

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

for content in seeds:
    read_pixels(content, model)
before, read, refused, longest = peak(), 0, 0, 0.0
for _ in range(count):
    content = damaged(chance.choice(seeds))
    began = time.perf_counter()
    try:
        assert tuple(read_pixels(content, model)[0].shape) == (3, 32, 32)
        read += 1
    except BrokenImageError as problem:
        assert len(str(problem)) < 500, problem
        refused += 1
    longest = max(longest, time.perf_counter() - began)
print(json.dumps({"seeds": len(seeds), "read": read, "refused": refused, "longest_seconds": round(longest, 2),
                  "peak_growth_mb": round((peak() - before) / 2**20)}))
"""


def test_ten_thousand_damaged_pictures_are_read_or_refused() -> None:
    result = run_program(FUZZER, FUZZED)
    note("damaged_pictures", pictures=FUZZED, **result)
    assert result["read"] + result["refused"] == FUZZED
    assert result["refused"] > FUZZED / 10
    assert result["longest_seconds"] < 20
    # A picture of 80 million pixels, in all the modes it goes through, and nothing that stays.
    assert result["peak_growth_mb"] < 1500


def test_memory_is_flat_over_ten_thousand_requests(small_model, tmp_path) -> None:
    write_corpus(tmp_path, small_model)
    small_model.save_pretrained(tmp_path / "model")
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

    with Server(tmp_path) as server:
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
