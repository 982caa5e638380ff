r"""Measure time and memory of retrieval metrics, compared with pytorch-metric-learning.

    python benchmarks/retrieval_metrics.py      # 60,000 x 128 on the CPU, classes of 5, 60 and 600; 3 minutes
    python benchmarks/retrieval_metrics.py --rows 60502 --dim 512 --classes 11316 --against none \
        --out results/retrieval_metrics_memory.json
    python benchmarks/retrieval_metrics.py --device cuda --rows 1000000 --classes 100000 5000 --against none \
        --out results/retrieval_metrics_gpu.json

The embeddings are unit vectors around random class centres. Both sides compute P@1, P@R and MAP@R and take turns;
nothing is reported unless their results agree to 1e-5. pytorch-metric-learning uses faiss, its default, if installed
(``pip install faiss-cpu``), and its own CustomKNN.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from gspool.evaluation import retrieval_metrics
from gspool.provenance import write_result

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

# Their float32 distances misorder a few neighbours, each of which changes a metric by one part in R x rows.
AGREEMENT = 1e-5
THEIR_NAMES = {"p@1": "precision_at_1", "p@r": "r_precision", "map@r": "mean_average_precision_at_r"}


def main() -> None:
    options = parse()
    knns = {"none": [], "custom": ["custom"], "faiss": ["faiss"], "all": ["custom"]}[options.against]
    if options.against == "all" and importlib.util.find_spec("faiss") is not None:
        knns = ["faiss", "custom"]
    cases = [measure(options, classes, knns) for classes in options.classes]
    write_result(
        options.out,
        cases,
        command=" ".join(["python", "benchmarks/retrieval_metrics.py", *sys.argv[1:]]),
        seeds=[options.seed],
        libraries=["pytorch-metric-learning"] * bool(knns) + ["faiss-cpu"] * ("faiss" in knns),
        device=options.device,
    )
    for case in cases:
        print(case)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--classes", type=int, nargs="+", default=[11_316, 1_000, 100])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--against", choices=["all", "faiss", "custom", "none"], default="all")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--memory", type=int, default=None, help="bytes; the library's default if left out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/retrieval_metrics_cpu.json"))
    return parser.parse_args()


def measure(options: argparse.Namespace, classes: int, knns: list[str]) -> dict[str, object]:
    embeddings, labels = clusters(options.rows, options.dim, classes, options.seed, options.device)
    # The first call on a device loads its libraries and is not timed.
    retrieval_metrics(embeddings[:2048], torch.arange(2048, device=embeddings.device) % 64)
    rivals = {f"pytorch-metric-learning, {knn}": their_metrics(knn, options.device) for knn in knns}
    seconds: dict[str, list[Seconds]] = {"gspool": [], **{name: [] for name in rivals}}
    for _ in range(options.repeats):
        extra = ExtraMemory(options.device)
        with extra:
            ours = timed(lambda: retrieval_metrics(embeddings, labels, memory=options.memory), seconds["gspool"])
        for name, rival in rivals.items():
            theirs = timed(lambda rival=rival: rival(embeddings, labels), seconds[name])
            difference = max(abs(ours[key] - theirs[THEIR_NAMES[key]]) for key in THEIR_NAMES)
            if difference > AGREEMENT:
                raise SystemExit(
                    f"{name} differs by {difference}: {theirs} against {ours}; a wrong answer is not timed"
                )
    return {
        "rows": options.rows,
        "dim": options.dim,
        "classes": classes,
        "seconds": {name: [one.wall for one in values] for name, values in seconds.items()},
        "processor_seconds": {name: [one.processor for one in values] for name, values in seconds.items()},
        "extra_bytes": extra.peak,
        "metrics": ours.as_dict(),
    }


def clusters(rows: int, dim: int, classes: int, seed: int, device: str) -> tuple[Tensor, Tensor]:
    draws = torch.Generator(device).manual_seed(seed)
    labels = torch.arange(rows, device=device) % classes
    centres = torch.randn(classes, dim, generator=draws, device=device)
    vectors = 0.3 * centres[labels] + 0.5 * torch.randn(rows, dim, generator=draws, device=device)
    return torch.nn.functional.normalize(vectors), labels


def their_metrics(knn: str, device: str) -> Callable[[Tensor, Tensor], dict[str, float]]:
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    from pytorch_metric_learning.utils.inference import CustomKNN, FaissKNN

    custom = CustomKNN(LpDistance(normalize_embeddings=False), batch_size=512)
    calculator = AccuracyCalculator(
        include=tuple(THEIR_NAMES.values()),
        k="max_bin_count",
        device=torch.device(device),
        knn_func=FaissKNN() if knn == "faiss" else custom,
        # Clustering is not measured, and its default needs faiss to be installed.
        kmeans_func=lambda *_: None,
    )
    return calculator.get_accuracy


class Seconds(NamedTuple):
    """Wall-clock time, and CPU time of all threads, which other work on the machine disturbs less."""

    wall: float
    processor: float


def timed(work: Callable[[], Mapping], seconds: list[Seconds]) -> Mapping:
    wall, processor = time.perf_counter(), time.process_time()
    # Every result here is plain numbers, so a GPU has finished when it returns.
    result = work()
    seconds.append(Seconds(round(time.perf_counter() - wall, 3), round(time.process_time() - processor, 3)))
    return result


class ExtraMemory:
    """Peak memory inside a ``with`` block beyond the memory in use before it, in bytes."""

    def __init__(self, device: str) -> None:
        self.cuda, self.peak = torch.device(device).type == "cuda", 0

    def __enter__(self) -> None:
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
            return
        self.before, self.done = resident_bytes(), threading.Event()
        self.watcher = threading.Thread(target=self.watch)
        self.watcher.start()

    def __exit__(self, *_: object) -> None:
        if self.cuda:
            self.peak = torch.cuda.max_memory_allocated() - self.before
            return
        self.done.set()
        self.watcher.join()

    def watch(self) -> None:
        """Record the largest resident set until the block ends."""
        while not self.done.wait(0.005):
            self.peak = max(self.peak, resident_bytes() - self.before)


def resident_bytes() -> int:
    """Read the resident set of this process (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
