"""An approximate index over many vectors: built by LanceDB, tuned to a recall, measured against exact search."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gspool.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gspool.search.index import Index
    from gspool.search.nearest import Hit

APPROXIMATE_FROM = 100_000
KIND = "IVF_SQ"
# Inside the table's folder, so that it moves with the table.
MEASURED = "_gspool_recall.json"
# Neighbours with equal scores, of copies of one picture for example, are interchangeable.
TIE = 1e-6
SEED = 0
FEWEST_ROWS = 1_000
# A byte a number loses the order of near neighbours only among the next few.
REFINE = 2


class Approximation(NamedTuple):
    """An approximate index in use.

    ``recall`` is the share of the ``k`` exact neighbours that it finds, on average over ``queries`` vectors of the
    corpus, each searched among all others. ``probes`` partitions are looked into, by vectors of a byte a number, and
    ``refine`` times ``k`` candidates are compared again by their full vectors.
    """

    kind: str
    rows: int
    probes: int
    refine: int
    recall: float
    k: int
    queries: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.kind}, recall@{self.k} {self.recall:.3f} against exact search ({self.queries} queries)"

    def applied_to(self, request: Any, at_most_these: bool) -> Any:
        """Give a request of LanceDB these settings; further partitions may be looked into where hits are too few.

        To be ready for that costs a query half of its time, so it is left out where no condition can thin out the hits.
        """
        probing = request.nprobes(self.probes) if at_most_these else request.minimum_nprobes(self.probes)
        return (probing if at_most_these else probing.maximum_nprobes(0)).refine_factor(self.refine)


def build(
    index: Index, recall: float, k: int, queries: int, tell: Callable[[str], None] = lambda line: None
) -> Approximation:
    """Build an approximate index over all rows and choose the fastest settings that reach a recall.

    Vectors of the corpus are the queries, drawn by a fixed seed; exact search says what they should find.

    Args:
        index: what to build it for; a .lance table.
        recall: the share of exact neighbours to reach. Where nothing reaches it, the most thorough settings are taken.
        k: how many neighbours are compared.
        queries: on how many vectors it is measured.
        tell: is told what is going on, line by line.

    Raises:
        ValueError: if the recall is no share, there are too few rows, or the index is a temporary copy.
    """
    rows = len(index)
    check_recall(recall)
    if index.path.suffix != ".lance":
        raise ValueError(f"an approximate index is kept in a .lance table; embed to one instead of {index.path}")
    if rows < FEWEST_ROWS:
        raise ValueError(f"{index.path} has {rows} vectors; below {FEWEST_ROWS} there is nothing to approximate")
    from lancedb.index import IvfSq

    partitions = partition_count(rows)
    tell(f"building {KIND} over {rows:,} vectors in {partitions:,} partitions")
    began = time.perf_counter()
    index.table.create_index("vector", config=IvfSq(distance_type="cosine", num_partitions=partitions), replace=True)
    seconds = time.perf_counter() - began
    tell(f"built in {seconds:,.1f} s; measuring its recall against exact search on {queries} queries")
    own, vectors = sample(index, queries)
    truth = [without(hits, row, k) for row, hits in zip(own, index.search(vectors, k + 1, exact=True), strict=True)]
    probes = 1
    while True:
        tried = Approximation(KIND, rows, probes, REFINE, 0.0, k, len(own), seconds)
        index.approximation = tried
        found = [without(hits, row, k) for row, hits in zip(own, index.search(vectors, k + 1), strict=True)]
        tried = tried._replace(recall=mean_recall(found, truth))
        tell(f"{probes} of {partitions:,} partitions: recall@{k} {tried.recall:.3f}")
        if tried.recall >= recall or probes >= partitions:
            break
        probes = min(2 * probes, partitions)
    write_atomic(index.path / MEASURED, (json.dumps(tried._asdict(), indent=1) + "\n").encode())
    return tried


def check_recall(recall: float) -> None:
    """Refuse what is no share.

    Raises:
        ValueError: if it does not lie in (0, 1].
    """
    if not 0 < recall <= 1:
        raise ValueError(f"recall is a share of the neighbours and must lie in (0, 1], got {recall}")


def partition_count(rows: int) -> int:
    """Give the number of partitions: 250 for a million vectors, and as the square root of their number.

    Twice as many partitions are half as large, but neighbours then lie in more of them; more than these cost building
    time and gained nothing.

    Example:
        >>> partition_count(1_000_000), partition_count(100_000)
        (250, 79)
    """
    return max(4, round(rows**0.5 / 4))


def sample(index: Index, count: int, seed: int = SEED) -> tuple[list[int], np.ndarray]:
    """Draw rows of the corpus and give them with their vectors."""
    rows = len(index)
    chosen = np.random.default_rng(seed).choice(rows, size=min(count, rows), replace=False)
    answer = index.table.take_offsets(sorted(chosen.tolist())).select(["row", "vector"]).to_arrow()
    vectors = np.asarray(answer["vector"].combine_chunks().flatten(), dtype=np.float32)
    return answer["row"].to_pylist(), vectors.reshape(answer.num_rows, -1)


def without(hits: Sequence[Hit], row: int, k: int) -> list[Hit]:
    """Leave out the query itself, which is its own nearest neighbour."""
    return [hit for hit in hits if hit.row != row][:k]


def mean_recall(found: Sequence[Sequence[Hit]], truth: Sequence[Sequence[Hit]]) -> float:
    """Give the share of exact neighbours that were found, on average over queries; equal scores count as equal.

    Example:
        >>> from gspool.search.nearest import Hit
        >>> a, b, c = Hit("a", 0.9, 0, None), Hit("b", 0.8, 1, None), Hit("c", 0.7, 2, None)
        >>> mean_recall([[a, c]], [[a, b]])
        0.5
    """
    shares = []
    for mine, exact in zip(found, truth, strict=True):
        rows, last = {hit.row for hit in exact}, min(hit.score for hit in exact)
        shares.append(sum(hit.row in rows or hit.score >= last - TIE for hit in mine) / len(exact))
    return min(1.0, float(np.mean(shares)))


def read_approximation(table: Any, path: Path) -> Approximation | None:
    """Read how the approximate index of a table was measured; None where it has none.

    Raises:
        ValueError: if the file is damaged.
    """
    file = path / MEASURED
    if not file.is_file() or not any("vector" in index.columns for index in table.list_indices()):
        return None
    try:
        return Approximation(**json.loads(file.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file} is damaged ({error}); delete it, and the index is built again") from error
