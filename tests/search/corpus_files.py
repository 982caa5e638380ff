"""Pictures for tests, the rows that were made of them, and a process that is killed while it makes some."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from gspool.search import open_index
from gspool.search.corpus import stream
from gspool.search.index.export import finish_store, open_store
from gspool.search.index.table import COLUMNS, ImageRecord, VectorSettings

KINDS = ("lance", "parquet", "npz")


def noise(seed: int, size=(48, 40)) -> Image.Image:
    """A picture of coloured noise; no two seeds are alike."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.NEAREST)


def draw_picture(path: Path, seed: int, size=(48, 40)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise(seed, size).save(path)


def rows_of(path: Path) -> list[dict]:
    """Read all rows of a file of vectors, in the order of their numbers."""
    return open_index(path).read(COLUMNS).sort_by("row").to_pylist()


def write_rows(path: Path, settings: VectorSettings, *parts: tuple[list[ImageRecord], np.ndarray]) -> Path:
    """Write a file of vectors in one append a part."""
    writer = open_store(path, settings)
    for records, vectors in parts:
        writer.append(records, vectors)
    finish_store(writer, path)
    return path


def interrupt_batches(monkeypatch, *numbers: int) -> None:
    """Press Ctrl-C in the embedding of these batches, counted over all calls from 1."""
    embed, calls = stream.embed_batch, itertools.count(1)

    def interrupted(*arguments):
        if next(calls) in numbers:
            raise KeyboardInterrupt
        return embed(*arguments)

    monkeypatch.setattr(stream, "embed_batch", interrupted)


PROGRAM = """
import os, sys, threading, time
from gspool.search import corpus as embed
from gspool.search.corpus import stream
embed.SECONDS_AT_ONCE = 0.0
embed_batch, batches = stream.embed_batch, threading.local()
def stuck(*arguments):
    batches.count = getattr(batches, "count", 0) + 1
    if batches.count == 3:
        os.write(1, b"stuck\\n")  # in one piece: several threads write
        time.sleep(600)
    return embed_batch(*arguments)
stream.embed_batch = stuck
model, *works = sys.argv[1:]
options = {"batch_size": 4, "device": "cpu"}
pairs = zip(works[::2], works[1::2])
threads = [threading.Thread(target=embed.embed_corpus, args=(model, *pair), kwargs=options) for pair in pairs]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@contextmanager
def stuck_in_the_third_batch(model: Path, works: list[tuple[Path, Path]]) -> Iterator[None]:
    """Embed (pictures, out) in batches of four, of which the third never ends; kill the process afterwards."""
    words = [sys.executable, "-c", PROGRAM, str(model), *(str(path) for work in works for path in work)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        try:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in works] == [b"stuck\n"] * len(works)
            yield
        finally:
            process.send_signal(signal.SIGKILL)
