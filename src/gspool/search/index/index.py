"""Search the vectors of a corpus: exactly while they are few, through an approximate index of LanceDB above that."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from gspool.search.index.approximate import APPROXIMATE_FROM, Approximation, build, mean_recall, read_approximation
from gspool.search.index.export import SUFFIXES, copy_to_lance
from gspool.search.index.rows import settings_of
from gspool.search.index.table import open_table
from gspool.search.model_source import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float

    from gspool.models import Embedder

# Queries answered in one call: memory grows with queries times neighbours.
QUERIES_AT_ONCE = 256
# How much a table may grow before its approximate index is built and measured again.
GROWN = 1.2


class Hit(NamedTuple):
    """One neighbour: its file, its cosine to the query, its row in the corpus, and its label where known."""

    path: str
    score: float
    row: int
    label: str | None


class Index:
    """The vectors of a corpus, ready to be searched; made by `open_index`.

    Attributes:
        path: the file.
        settings: the model that made the vectors, and its precision.
        approximation: the approximate index in use and its measured recall; None while search is exact.
    """

    def __init__(self, table: Any, path: Path) -> None:
        self.table = table
        self.path = path
        self.settings = settings_of(table.schema, path)
        self.approximation: Approximation | None = read_approximation(table, path)

    def __len__(self) -> int:
        """Count the vectors."""
        return int(self.table.count_rows())

    def __repr__(self) -> str:
        """Return the file, its size and the way it is searched."""
        kind = "exact" if self.approximation is None else str(self.approximation)
        return f"{self.path.name}: {len(self):,} vectors of length {self.settings.dim}, {kind}"

    def search(
        self,
        vectors: Float[torch.Tensor, "Q D"] | Float[np.ndarray, "Q D"],
        k: int = 10,
        where: str | None = None,
        exact: bool = False,
    ) -> list[list[Hit]]:
        """Find the ``k`` nearest neighbours of each query, best first.

        Args:
            vectors: one query per row; a single vector [D] is one query.
            k: how many neighbours; all of them, if there are fewer.
            where: an SQL condition on the columns row, path, label, width and height, ``label = 'ant'`` for example;
                `label_filter` writes it. Neighbours are the nearest among the rows that fulfil it.
            exact: do not use the approximate index, if there is one.

        Raises:
            ValueError: if the vectors do not have this index's length, are zero or not finite, ``k`` is not positive,
                or the condition is not valid.

        Example:
            >>> import tempfile
            >>> from gspool.search.index.rows import ImageRecord, VectorSettings
            >>> from gspool.search.index.table import LanceWriter
            >>> vectors = np.eye(3, 2, dtype=np.float32) + 0.1
            >>> images = [ImageRecord("a.jpg", "ant"), ImageRecord("b.jpg", "bee"), ImageRecord("c.jpg")]
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     LanceWriter(Path(folder) / "v.lance", VectorSettings("model", "0f", 2)).append(images, vectors)
            ...     index = open_index(Path(folder) / "v.lance")
            ...     [hit.path for hit in index.search(np.array([[0.0, 1.0]]), k=2)[0]]
            ...     [hit.path for hit in index.search(np.array([[0.0, 1.0]]), k=2, where=label_filter(["ant"]))[0]]
            ['b.jpg', 'c.jpg']
            ['a.jpg']
        """
        queries = self._checked(vectors)
        if k < 1:
            raise ValueError(f"k is the number of neighbours and must be at least 1, got {k}")
        approximation = None if exact else self.approximation
        found: list[list[Hit]] = []
        for first in range(0, len(queries), QUERIES_AT_ONCE):
            some = queries[first : first + QUERIES_AT_ONCE]
            hits = _nearest(self.table, some, k, where, approximation, fixed=where is None)
            if approximation is not None and where is None:
                # The few partitions that were searched may hold fewer rows than were asked for.
                for number, few in enumerate(hits):
                    if len(few) < min(k, len(self)):
                        hits[number] = _nearest(self.table, some[number, None], k, where, approximation, fixed=False)[0]
            found += hits
        return found

    def recall(self, vectors: Float[torch.Tensor, "Q D"] | Float[np.ndarray, "Q D"], k: int = 10) -> float:
        """Measure the recall of the approximate index against exact search on your own queries; 1 without an index."""
        return mean_recall(self.search(vectors, k), self.search(vectors, k, exact=True))

    def _checked(self, vectors: Any) -> np.ndarray:
        """Bring queries to float32 [Q, D]."""
        values = vectors.detach().cpu().float().numpy() if isinstance(vectors, torch.Tensor) else vectors
        queries = np.atleast_2d(np.asarray(values, dtype=np.float32))
        if queries.ndim != 2 or queries.shape[1] != self.settings.dim:
            raise ValueError(
                f"queries must be vectors of length {self.settings.dim}, as in {self.path}, got shape "
                f"{queries.shape}; embed them with the same model"
            )
        lengths = np.linalg.norm(queries, axis=1)
        bad = np.flatnonzero(~np.isfinite(lengths) | (lengths == 0))
        if len(bad):
            raise ValueError(f"query {bad[0]} is zero or not finite and has no direction to compare")
        return queries

    def labels(self) -> list[str]:
        """Return the labels of the corpus, sorted; empty where none is known."""
        found: set[str] = set()
        for batch in self.table.search().select(["label"]).to_batches():
            found.update(label for label in batch["label"].unique().to_pylist() if label is not None)
        return sorted(found)

    def check_model(self, model: Embedder) -> None:
        """Refuse a model that did not embed the corpus.

        Raises:
            ValueError: if the fingerprints differ.
        """
        here = fingerprint(model)
        if here != self.settings.fingerprint:
            raise ValueError(
                f"{self.path} was embedded by {self.settings.model!r} (fingerprint {self.settings.fingerprint}); this "
                f"model has the fingerprint {here}, and its vectors do not compare. Embed the corpus again with it, "
                "or search with the other one"
            )

    def build(
        self, recall: float = 0.98, k: int = 10, queries: int = 200, tell: Callable[[str], None] = lambda line: None
    ) -> Approximation:
        """Build an approximate index over all rows, and measure it against exact search: see `approximate.build`."""
        self.approximation = build(self, recall, k, queries, tell)
        return self.approximation


def open_index(path: str | Path) -> Index:
    """Open the vectors that ``gspool embed`` wrote.

    A .lance table is searched in place. A .parquet or .npz file is copied into a temporary table and searched exactly;
    write .lance for what is searched more than once.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it does not hold vectors of gspool.
    """
    place = Path(path).expanduser()
    if place.suffix not in SUFFIXES:
        raise ValueError(f"{place}: vectors are in a {', '.join(SUFFIXES)} file, as gspool embed writes it")
    if not place.exists():
        raise FileNotFoundError(f"there is no {place}; make it with: gspool embed MODEL IMAGES --out {place}")
    if place.suffix == ".lance":
        return Index(open_table(place), place)
    folder = tempfile.mkdtemp(prefix="gspool-")
    try:
        copy = Path(folder) / "vectors.lance"
        copy_to_lance(place, copy)
        index = Index(open_table(copy), place)
    except BaseException:
        shutil.rmtree(folder)
        raise
    # The copy lives as long as the index that searches it.
    weakref.finalize(index, shutil.rmtree, folder, ignore_errors=True)
    return index


def label_filter(labels: Iterable[str]) -> str:
    """Return the SQL condition that a label is one of these.

    Raises:
        ValueError: if there are none.

    Example:
        >>> label_filter(["ant", "o'bee"])
        "label IN ('ant', 'o''bee')"
    """
    quoted = ["'" + label.replace("'", "''") + "'" for label in labels]
    if not quoted:
        raise ValueError("give at least one label to look for, or leave out the filter")
    return f"label IN ({', '.join(quoted)})"


def needs_approximation(index: Index) -> bool:
    """Return whether exact search is slow on this corpus and there is no approximate index of about its size yet.

    Rows added after an index was built are still found. Once they are many, partitions and recall are no longer what
    was measured. A temporary copy of a .parquet or .npz file is not worth an index.
    """
    rows = len(index)
    if index.path.suffix != ".lance" or rows < APPROXIMATE_FROM:
        return False
    return index.approximation is None or rows > GROWN * index.approximation.rows


def _nearest(
    table: Any, queries: np.ndarray, k: int, where: str | None, approximation: Approximation | None, fixed: bool
) -> list[list[Hit]]:
    """Search a table; best first, equal scores in the order of the corpus.

    Raises:
        ValueError: if the condition is not valid.
    """
    # One query is passed as a vector, several as a matrix: LanceDB numbers the answers of a matrix only.
    request = table.search(queries if len(queries) > 1 else queries[0]).distance_type("cosine").limit(k)
    if approximation is None:
        request = request.bypass_vector_index()
    else:
        request = approximation.applied_to(request, fixed)
    if where is not None:
        request = request.where(where, prefilter=True)
    try:
        answer = _answered(request.select(["row", "path", "label", "_distance"]))
    except (ValueError, RuntimeError) as error:
        if where is None:
            raise
        raise ValueError(
            f"the condition {where!r} is not valid: {error}. It is SQL over row, path, label, width and height; "
            "text stands in single quotes: label = 'ant'"
        ) from error
    number = answer["query_index"].to_pylist() if len(queries) > 1 else [0] * answer.num_rows
    hits: list[list[Hit]] = [[] for _ in queries]
    columns = (answer[name].to_pylist() for name in ("path", "_distance", "row", "label"))
    for query, path, distance, row, label in zip(number, *columns, strict=True):
        hits[query].append(Hit(path, 1.0 - distance, row, label))
    for one in hits:
        one.sort(key=lambda hit: (-hit.score, hit.row))
    return hits


def _answered(request: Any) -> Any:
    try:
        return request.to_arrow()
    except RuntimeError as error:
        if "Not found" not in str(error):
            raise
        # Another process has just deleted the version that this search began with; a second one begins with the newest.
        return request.to_arrow()
