"""Train a head on more tokens than the machine has memory: step time and memory, from disk against in memory.

    python benchmarks/out_of_core.py --gigabytes 28 --out results/out_of_core.json      # 2 cores, 10 minutes
    python benchmarks/out_of_core.py --gigabytes 0.2 --out /tmp/out_of_core.json         # shows that it runs

A store of random tokens with a pattern for every class is written to ``--folder`` and deleted afterwards. Anonymous
memory is what the process holds; pages of files beside it are a cache that the system takes back when it needs memory.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from gspool.data import ArrayImages, ImageSet
from gspool.data.image_source import SelectedImages
from gspool.features.store import Location, TokenLayout, TokenStore
from gspool.features.tokens import TokenSet
from gspool.provenance import write_result
from gspool.training.config import DataConfig, LossConfig, OptimiserConfig, TrainConfig, TrainerConfig
from gspool.training.gpu_data import TensorSet
from gspool.training.heads import HeadConfig, build_head, start_from
from gspool.training.loop import run_loop
from gspool.training.metric_learning import MetricLearning, build_loss
from gspool.training.processes import make_fabric

LAYOUT = TokenLayout(views=1, prefix=0, class_token=False, tokens=49, channels=512, grid=(7, 7), precision="bf16")
CLASSES, SHARD = 500, 5_000


def write_store(folder: Path, pictures: int) -> TokenSet:
    """Write tokens of so many pictures, shard after shard, and return them as a set."""
    store = TokenStore(folder, LAYOUT)
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(CLASSES, LAYOUT.channels, generator=generator).bfloat16()
    noise = torch.randn(SHARD, *LAYOUT.shape, generator=generator).bfloat16()
    labels, locations = [], []
    for first in range(0, pictures, SHARD):
        own = torch.arange(first, min(first + SHARD, pictures))
        noise[: len(own), 0, first // SHARD % LAYOUT.tokens] = patterns[own % CLASSES]
        names = [f"{picture:024d}" for picture in own.tolist()]
        store.write(names, noise[: len(own)])
        labels.append(own % CLASSES)
        locations += [Location(names[0], row) for row in range(len(own))]
    blank = SelectedImages(ArrayImages(torch.zeros(1, 3, 1, 1, dtype=torch.uint8)), torch.zeros(pictures).long())
    images = ImageSet(blank, torch.cat(labels), [str(label) for label in range(CLASSES)], name="generated")
    return TokenSet(images, store, locations)


@contextmanager
def watched_memory() -> Iterator[dict[str, float]]:
    """Record the largest anonymous memory and the largest mapped part of files, in megabytes."""
    peaks = {"RssAnon": 0.0, "RssFile": 0.0}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            lines = Path("/proc/self/status").read_text().splitlines()
            for line in lines:
                name, _, value = line.partition(":")
                if name in peaks:
                    peaks[name] = max(peaks[name], int(value.split()[0]) / 1024)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()


def measure(tokens: TokenSet, pooling: str, device: str, steps: int) -> dict[str, Any]:
    """Train a head and return milliseconds a step and the largest memory."""
    gpu = device.startswith("cuda")
    config = TrainConfig(
        data=DataConfig(classes_per_batch=32, images_per_class=4),
        loss=LossConfig("pnca"),
        optimiser=OptimiserConfig(lr=3e-4),
        trainer=TrainerConfig(max_steps=steps, evaluate_every=steps, progress=False, monitor_split="none"),
    )
    config.trainer.accelerator, config.trainer.log_every = "gpu" if gpu else "cpu", steps
    options = {"mu": 0.1, "epsilon": 10.0} if pooling == "gsp" else {}
    fabric = make_fabric(config.trainer)
    train = TensorSet.of(tokens.entries(), tokens.labels)
    model = build_head(pooling, LAYOUT, 128, options, HeadConfig(), 0)
    start_from(model, train, fabric.device, 0)
    loss = build_loss(config.loss, CLASSES, model.out_dim, config.data.batch_size, 0).to(fabric.device)
    task = MetricLearning(model, loss, config, train, fabric=fabric)
    with watched_memory() as peaks:
        began = time.process_time()
        seconds = run_loop(task, fabric, config.trainer, config.schedule).training_seconds
        busy = time.process_time() - began
    return {
        "pooling": pooling,
        "tokens": "memory" if tokens.memory is not None else "disk",
        "pictures": len(tokens),
        "gigabytes": round(len(tokens) * LAYOUT.picture_bytes / 2**30, 2),
        "milliseconds": round(1000 * seconds / steps, 1),
        "processor_milliseconds": round(1000 * busy / steps, 1),
        "anonymous_megabytes": round(peaks["RssAnon"]),
        "mapped_megabytes": round(peaks["RssFile"]),
    }


def main() -> None:
    """Write a store, train on all of it and on a part in memory, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gigabytes", type=float, default=28.0)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "gspool_out_of_core")
    chosen = parser.parse_args()
    pictures = max(8 * CLASSES, int(chosen.gigabytes * 2**30 / LAYOUT.picture_bytes))
    try:
        started = time.perf_counter()
        tokens = write_store(chosen.folder, pictures)
        writing = pictures * LAYOUT.picture_bytes / 2**20 / (time.perf_counter() - started)
        part = min(pictures // 4, 20_000)
        small = TokenSet(tokens.images.subset(range(part)), tokens.store, tokens.locations[:part])
        rows = []
        for pooling in ("gap", "gsp"):
            rows.append(measure(tokens, pooling, chosen.device, chosen.steps))
            rows.append(measure(small, pooling, chosen.device, chosen.steps))
            rows.append(measure(small.load(chosen.device), pooling, chosen.device, chosen.steps))
            small.memory = None
            print(*rows[-3:], sep="\n", flush=True)
    finally:
        shutil.rmtree(chosen.folder, ignore_errors=True)
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    value = {
        "memory_gigabytes": round(int(total.split()[1]) / 2**20, 1),
        "batch": 128,
        "tokens": LAYOUT.tokens,
        "channels": LAYOUT.channels,
        "written_megabytes_per_second": round(writing),
        "rows": rows,
    }
    command = shlex.join(["python", "benchmarks/out_of_core.py", *sys.argv[1:]])
    write_result(chosen.out, value, command=command, seeds=[0], device=chosen.device)


if __name__ == "__main__":
    main()
