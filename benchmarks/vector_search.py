r"""Measure how long an index over a million vectors takes to build and a query to answer, beside faiss at equal recall.

    python benchmarks/vector_search.py                        # 1,000,000 x 128 on the cores there are; about 15 minutes
    python benchmarks/vector_search.py --rows 20000 --out /tmp/small.json

The vectors are drawn from a mixture like those of a trained embedding: super-classes, classes of 100 images each, and a
spread that falls from the first dimension to the last; unit length. Queries are new draws. The nearest are computed in
float64 for some queries; faiss's flat index and our exact search must find the same, or nothing is timed. For each
recall, the fastest setting of either side that reaches it is measured: one query per call, the two sides in turns, and
all queries in one call. Our times include everything up to a list of hits with paths and labels, read from a table on
disk; faiss returns row numbers, from memory.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np
import torch

from gspool.provenance import write_result
from gspool.search.index import Index, open_index
from gspool.search.index.table import ImageRecord, LanceWriter, VectorSettings

if TYPE_CHECKING:
    from collections.abc import Callable

K = 10
IMAGES_A_CLASS, CLASSES_A_SUPER_CLASS = 100, 100
EFFORTS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


def main() -> None:
    options = parse()
    faiss.omp_set_num_threads(options.threads)
    torch.set_num_threads(options.threads)
    draw = Mixture(options.rows, options.dim, options.seed)
    vectors = np.concatenate([draw(count) for count in split(options.rows)])
    queries = draw(options.queries)
    flat, flat_seconds = timed(lambda: filled(faiss.IndexFlatIP(options.dim), vectors))
    truth = flat.search(queries, K)[1]
    check_truth(vectors, queries, truth)
    with TemporaryDirectory(dir=options.folder) as folder:
        index, building = our_index(Path(folder) / "vectors.lance", vectors)
        found = index.search(queries[:20], K, exact=True)
        if [[hit.row for hit in hits] for hits in found] != truth[:20].tolist():
            raise SystemExit("exact search differs from faiss's flat index; a wrong answer is not timed")
        hnsw, hnsw_seconds = timed(lambda: filled(graph(options), vectors))
        rows = compared(options, index, hnsw, flat, queries, truth)
        value = {
            "rows": options.rows,
            "dim": options.dim,
            "k": K,
            "queries": options.queries,
            "threads": options.threads,
            "build": [
                {"index": "gspool, table on disk", **building["write"], "megabytes": building["bytes"] / 1e6},
                {"index": "gspool, IVF_SQ on disk", **building["build"], "megabytes": building["index_bytes"] / 1e6},
                {"index": "faiss flat", **flat_seconds, "megabytes": vectors.nbytes / 1e6},
                {"index": f"faiss HNSW{options.links}", **hnsw_seconds, "megabytes": graph_bytes(hnsw) / 1e6},
            ],
            "build_and_measure": building["build_and_measure"],
            "measured_when_built": building["measured"],
            "latency": rows,
            "load_before": building["load"],
        }
    write_result(
        options.out,
        value,
        command=" ".join(["python", "benchmarks/vector_search.py", *sys.argv[1:]]),
        seeds=[options.seed],
        libraries=["lancedb", "pyarrow", "faiss-cpu", "numpy"],
    )
    for line in (*value["build"], *rows):
        print(line)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--queries", type=int, default=1_000)
    parser.add_argument("--recalls", type=float, nargs="+", default=[0.9, 0.95, 0.98, 0.99])
    parser.add_argument("--links", type=int, default=32, help="M of faiss's HNSW")
    parser.add_argument(
        "--construction", type=int, default=40, help="efConstruction of faiss's HNSW; 40 is its default"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--folder", default=None, help="where the table is written; the folder for temporary files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/vector_search.json"))
    return parser.parse_args()


class Mixture:
    """Unit vectors of classes within super-classes, less spread in later dimensions."""

    def __init__(self, rows: int, dim: int, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        classes = max(rows // IMAGES_A_CLASS, 1)
        supers = self.normal(max(classes // CLASSES_A_SUPER_CLASS, 1), dim)
        of_class = self.random.integers(len(supers), size=classes)
        self.centres = 0.6 * supers[of_class] + 0.8 * self.normal(classes, dim)
        self.spread = (1 + np.arange(dim, dtype=np.float32) / 16) ** -0.5

    def normal(self, rows: int, dim: int) -> np.ndarray:
        """Draw numbers of mean 0 and deviation 1."""
        return self.random.standard_normal((rows, dim), dtype=np.float32)

    def __call__(self, count: int) -> np.ndarray:
        """Draw vectors; two of one class have a cosine of about 0.55."""
        centres = self.centres[self.random.integers(len(self.centres), size=count)]
        vectors = (centres + 0.9 * self.normal(*centres.shape)) * self.spread
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def split(rows: int, at_once: int = 100_000) -> list[int]:
    return [min(at_once, rows - first) for first in range(0, rows, at_once)]


def check_truth(vectors: np.ndarray, queries: np.ndarray, truth: np.ndarray, checked: int = 20) -> None:
    scores = np.concatenate(
        [queries[:checked].astype(np.float64) @ part.astype(np.float64).T for part in np.array_split(vectors, 20)], 1
    )
    best = np.argsort(-scores, axis=1)[:, :K]
    if not np.array_equal(best, truth[:checked]):
        raise SystemExit("faiss's flat index is not the order of the float64 scores; a wrong answer is not timed")


def our_index(path: Path, vectors: np.ndarray) -> tuple[Index, dict[str, Any]]:
    load = os.getloadavg()[0]
    _, write = timed(lambda: write_table(path, vectors))
    table_bytes = folder_bytes(path)
    index = open_index(path)
    # The first line says that building begins, the second that it has ended.
    marks: list[float] = []

    def tell(line: str) -> None:
        marks.append(time.process_time())
        print(line, flush=True)

    measured, whole = timed(lambda: index.build(tell=tell))
    measures = {
        "write": write,
        "bytes": table_bytes,
        "build": {"seconds": measured.seconds, "processor_seconds": marks[1] - marks[0]},
        "build_and_measure": whole,
        "index_bytes": folder_bytes(path) - table_bytes,
        "measured": measured._asdict(),
        "load": load,
    }
    return index, measures


def write_table(path: Path, vectors: np.ndarray) -> None:
    writer = LanceWriter(path, VectorSettings("mixture", "0" * 16, vectors.shape[1]))
    for first in range(0, len(vectors), 4096):
        part = vectors[first : first + 4096]
        rows = range(first, first + len(part))
        records = [ImageRecord(f"/pictures/{row:07d}.jpg", f"class {row % 10_000}", 256, 256) for row in rows]
        writer.append(records, part)
    writer.finish()


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def graph(options: argparse.Namespace) -> Any:
    hnsw = faiss.IndexHNSWFlat(options.dim, options.links, faiss.METRIC_INNER_PRODUCT)
    hnsw.hnsw.efConstruction = options.construction
    return hnsw


def graph_bytes(hnsw: Any) -> int:
    """Count the vectors and the links of the graph, four bytes a number."""
    return hnsw.ntotal * hnsw.d * 4 + faiss.vector_to_array(hnsw.hnsw.neighbors).nbytes


def filled(index: Any, vectors: np.ndarray) -> Any:
    index.add(vectors)
    return index


def timed(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Return the wall time, and the processor time of all threads, which other work disturbs less."""
    wall, processor = time.perf_counter(), time.process_time()
    result = work()
    return result, {"seconds": time.perf_counter() - wall, "processor_seconds": time.process_time() - processor}


def compared(
    options: argparse.Namespace, index: Index, hnsw: Any, flat: Any, queries: np.ndarray, truth: np.ndarray
) -> list[dict[str, Any]]:
    """Return the latencies of both sides for each recall, measured in turns."""

    def ours(asked: np.ndarray) -> list[list[int]]:
        return [[hit.row for hit in hits] for hits in index.search(asked, K)]

    def graphs(asked: np.ndarray) -> list[list[int]]:
        return hnsw.search(asked, K)[1].tolist()

    def flats(asked: np.ndarray) -> list[list[int]]:
        return flat.search(asked, K)[1].tolist()

    def exact(asked: np.ndarray) -> list[list[int]]:
        return [[hit.row for hit in hits] for hits in index.search(asked, K, exact=True)]

    def probe(probes: int) -> None:
        index.approximation = index.approximation._replace(probes=probes)

    def effort(value: int) -> None:
        hnsw.hnsw.efSearch = value

    few = queries[: max(len(queries) // 10, 10)]
    rows = [
        {"wanted_recall": 1.0, "search": "gspool, exact", "setting": "", **latency(exact, few[:50], truth)},
        {"wanted_recall": 1.0, "search": "faiss flat", "setting": "", **latency(flats, few, truth)},
    ]
    steps = sorted({round(2 ** (power / 2)) for power in range(17)})
    for wanted in options.recalls:
        sides = []
        for name, search, settings, apply, word in (
            ("gspool, IVF_SQ", ours, steps, probe, "partitions"),
            ("faiss HNSW", graphs, EFFORTS, effort, "efSearch"),
        ):
            for setting in settings:
                apply(setting)
                if recall(search, queries, truth) >= wanted:
                    sides.append((name, search, apply, setting, word))
                    break
            else:
                print(f"{name} does not reach a recall of {wanted}")
        parts = {name: [] for name, *_ in sides}
        for part in np.array_split(np.arange(len(queries)), 5):
            for name, search, apply, setting, _ in sides:
                apply(setting)
                parts[name] += durations(search, queries[part])
        for name, search, apply, setting, word in sides:
            apply(setting)
            figures = {
                "recall": recall(search, queries, truth),
                **milliseconds(parts[name]),
                "bulk_per_second": per_second(search, queries),
            }
            rows.append({"wanted_recall": wanted, "search": name, "setting": f"{setting} {word}", **figures})
    return rows


def latency(search: Callable, queries: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    times = milliseconds(durations(search, queries))
    return {"recall": recall(search, queries, truth), **times, "bulk_per_second": per_second(search, queries)}


def recall(search: Callable, queries: np.ndarray, truth: np.ndarray) -> float:
    found = search(queries)
    return float(np.mean([len({*mine} & {*right}) / K for mine, right in zip(found, truth.tolist(), strict=False)]))


def per_second(search: Callable, queries: np.ndarray) -> float:
    """Search for all queries in one call."""
    return len(queries) / timed(lambda: search(queries))[1]["seconds"]


def durations(search: Callable, queries: np.ndarray) -> list[float]:
    times = []
    for query in queries:
        began = time.perf_counter()
        search(query[None])
        times.append(time.perf_counter() - began)
    return times


def milliseconds(times: list[float]) -> dict[str, float]:
    return {"p50_ms": 1000 * float(np.median(times)), "p95_ms": 1000 * float(np.quantile(times, 0.95))}


if __name__ == "__main__":
    main()
