"""An approximate index over many vectors: built by LanceDB, tuned to a recall, measured against exact search."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gspool.files import write_atomic
from gspool.search.index.table import newest, reason_of, vectors_of, write_lock

if TYPE_CHECKING:
    from gspool.search.index import Hit, Index

APPROXIMATE_FROM = 100_000
KIND = "IVF_SQ"
# Inside the table's folder, so that it moves with the table.
MEASURED = "_gspool_recall.json"
# Neighbours with equal scores, of copies of one picture for example, are interchangeable.
TIE = 1e-6
SEED = 0
FEWEST_ROWS = 1_000
# One byte per number loses the order of near neighbours only among the next few.
REFINE = 2


class Approximation(NamedTuple):
    """An approximate index in use.

    ``recall`` is the mean share of the ``k`` exact neighbours that it finds, over ``queries`` vectors of the corpus,
    each searched among all others, that took no part in the choice of the settings. For queries unlike the corpus it is
    lower; `Index.recall` measures any. ``probes`` partitions are searched with vectors of one byte per number, and
    ``refine`` times ``k`` candidates are compared again in full precision.
    """

    kind: str
    rows: int
    probes: int
    refine: int
    recall: float
    k: int
    queries: int
    seconds: float

    @classmethod
    def read(cls, table: Any, path: Path) -> Approximation | None:
        """Read how the approximate index of a table was measured; None where it has none."""
        try:
            text = (path / MEASURED).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not any("vector" in index.columns for index in newest(table.list_indices)):
            return None
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            # Without its folders, which a server would tell to anybody.
            raise ValueError(
                f"{path.name}/{MEASURED} is damaged ({error}); delete it, and the index is built again"
            ) from error

    def __str__(self) -> str:
        return (
            f"{self.kind}, recall@{self.k} {self.recall:.3f} on {self.queries} vectors of this corpus "
            "(lower for queries unlike it: gspool search --check measures yours)"
        )

    def applied_to(self, request: Any, fixed: bool) -> Any:
        """Return a request of LanceDB with these settings.

        Where the number of partitions is not ``fixed``, more are searched until there are enough hits, as a condition
        may require; being ready for that costs a query half of its time.
        """
        probing = request.nprobes(self.probes) if fixed else request.minimum_nprobes(self.probes).maximum_nprobes(0)
        return probing.refine_factor(self.refine)


def build(index: Index, recall: float, k: int, queries: int, tell: Callable[[str], None]) -> Approximation:
    """Build an approximate index over all rows, choose the fastest settings that reach a recall, and measure them.

    Vectors of the corpus, drawn with a fixed seed, are the queries. ``queries`` of them choose the settings by their
    ``k`` neighbours (the most thorough, if none reaches the recall); the recall is measured on as many others, because
    the settings were chosen for the first. ``tell`` is called with a line about every step.

    Raises:
        ValueError: if an argument does not fit, another process writes to the table, or it cannot be written.
    """
    rows = len(index)
    if not 0 < recall <= 1:
        raise ValueError(f"recall is a share of the neighbours and must lie in (0, 1], got {recall}")
    if index.path.suffix != ".lance":
        raise ValueError(f"an approximate index is kept in a .lance table; embed to one instead of {index.path}")
    if rows < FEWEST_ROWS:
        raise ValueError(f"{index.path} has {rows} vectors; an approximate index needs {FEWEST_ROWS}")
    try:
        with write_lock(index.path):
            return _built(index, recall, k, queries, tell)
    except (RuntimeError, OSError) as error:
        index.approximation = Approximation.read(index.table, index.path)
        raise ValueError(
            f"no approximate index of {index.path} could be built ({reason_of(error)}); make its folder writable, or "
            "leave the search exact"
        ) from error


def _built(index: Index, recall: float, k: int, queries: int, tell: Callable[[str], None]) -> Approximation:
    from lancedb.index import IvfSq

    rows = len(index)
    # 250 for a million vectors. More took longer to build and gained nothing: neighbours then lie in more of them.
    partitions = max(4, round(rows**0.5 / 4))
    tell(f"building {KIND} over {rows:,} vectors in {partitions:,} partitions")
    # What was measured of the index before says nothing about the new one, also if this process ends before it is done.
    (index.path / MEASURED).unlink(missing_ok=True)
    began = time.perf_counter()
    index.table.create_index("vector", config=IvfSq(distance_type="cosine", num_partitions=partitions), replace=True)
    seconds = time.perf_counter() - began
    tell(f"built in {seconds:,.1f} s; measuring its recall against exact search on {queries} vectors of the corpus")
    own, vectors = sample(index, 2 * queries)

    def others(part: slice, exact: bool = False) -> list[list[Hit]]:
        """Search without the query itself, which is its own nearest neighbour."""
        found = index.search(vectors[part], k + 1, exact=exact)
        return [[hit for hit in hits if hit.row != row][:k] for row, hits in zip(own[part], found, strict=True)]

    truth = others(slice(None), exact=True)

    def measured(part: slice) -> float:
        return mean_recall(others(part), truth[part])

    half = len(own) // 2
    probes = 1
    while True:
        index.approximation = Approximation(KIND, rows, probes, REFINE, 0.0, k, len(own) - half, seconds)
        reached = measured(slice(half))
        tell(f"{probes} of {partitions:,} partitions: recall@{k} {reached:.3f}")
        if reached >= recall or probes >= partitions:
            break
        probes = min(2 * probes, partitions)
    chosen = index.approximation._replace(recall=measured(slice(half, None)))
    tell(f"recall@{k} {chosen.recall:.3f} on {chosen.queries} other vectors of the corpus")
    write_atomic(index.path / MEASURED, (json.dumps(chosen._asdict(), indent=1) + "\n").encode())
    return chosen


def sample(index: Index, count: int) -> tuple[list[int], np.ndarray]:
    """Draw rows of the corpus in random order; return their numbers and vectors."""

    def drawn() -> Any:
        rows = len(index)
        chosen = np.random.default_rng(SEED).choice(rows, size=min(count, rows), replace=False)
        return index.table.take_offsets(sorted(chosen.tolist())).select(["row", "vector"]).to_arrow()

    answer = newest(drawn)
    # Shuffled again: the first half of the rows of a corpus shows other things than the second.
    order = np.random.default_rng(SEED).permutation(answer.num_rows)
    return np.asarray(answer["row"])[order].tolist(), vectors_of(answer)[order]


def mean_recall(found: Sequence[Sequence[Hit]], truth: Sequence[Sequence[Hit]]) -> float:
    """Compute the mean share of exact neighbours that were found; equal scores count as equal."""
    shares = []
    for mine, exact in zip(found, truth, strict=True):
        rows, last = {hit.row for hit in exact}, min(hit.score for hit in exact)
        shares.append(sum(hit.row in rows or hit.score >= last - TIE for hit in mine) / len(exact))
    return min(1.0, float(np.mean(shares)))
