"""Search the vectors of a corpus: exactly while they are few, through an approximate index of LanceDB above that."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from gspool.data.decode import printable
from gspool.search.index.approximate import (
    APPROXIMATE_FROM,
    MEASURED,
    TIE,
    Approximation,
    build,
    mean_recall,
    sample,
)
from gspool.search.index.export import SUFFIXES, copy_to_lance
from gspool.search.index.rerank import CANDIDATES, Rerank, Whitening, expand_query, learn_whitening, unit
from gspool.search.index.table import VectorSettings, file_stamp, is_missing, newest, open_table, vectors_of
from gspool.search.model import fingerprint

if TYPE_CHECKING:
    import pyarrow as pa
    from jaxtyping import Float, Float32

    from gspool.models import Embedder

# Queries answered in one call: memory grows with queries times neighbours.
QUERIES_AT_ONCE = 256
# How much a table may grow before its approximate index is built and measured again.
GROWN = 1.2
# Rows that are compared with all others at once, in the search for duplicates.
ROWS_COMPARED = 256
# Rows from which whitening is learned: many more than the numbers in a vector.
ROWS_TO_WHITEN = 100_000


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
    """

    def __init__(self, table: Any, path: Path) -> None:
        self.table = table
        self.path = path
        self.settings = VectorSettings.of(table.schema, path)
        self._approximation: Approximation | None = None
        self._measured_at: object = ()
        # Read now, so that a damaged file is reported here.
        _ = self.approximation
        self._whitenings: dict[int, Whitening] = {}

    def __len__(self) -> int:
        """Count the vectors."""
        return int(newest(self.table.count_rows))

    def __repr__(self) -> str:
        """Return the file, its size and the way it is searched."""
        kind = "exact" if self.approximation is None else str(self.approximation)
        return f"{self.path.name}: {len(self):,} vectors of length {self.settings.dim}, {kind}"

    @property
    def version(self) -> int:
        """The number of the newest version of the table: every change of it makes another."""
        return int(self.table.version)

    @property
    def approximation(self) -> Approximation | None:
        """The approximate index in use and its measured recall; None while search is exact.

        Another process may build one while this index is open.
        """
        measured_at = file_stamp(str(self.path / MEASURED))
        if measured_at != self._measured_at:
            self.approximation = Approximation.read(self.table, self.path)
            self._measured_at = measured_at
        return self._approximation

    @approximation.setter
    def approximation(self, chosen: Approximation | None) -> None:
        self._approximation = chosen
        self._measured_at = file_stamp(str(self.path / MEASURED))

    def search(
        self,
        vectors: Float[torch.Tensor, "Q D"] | Float[np.ndarray, "Q D"],
        k: int = 10,
        where: str | None = None,
        exact: bool = False,
        rerank: Rerank | None = None,
    ) -> list[list[Hit]]:
        """Find the ``k`` nearest neighbours of each query, best first.

        Args:
            vectors: one query per row; a single vector [D] is one query.
            k: how many neighbours; all of them, if there are fewer.
            where: an SQL condition on the columns row, path, label, width and height, ``label = 'ant'`` for example;
                `label_filter` writes it. Neighbours are the nearest among the rows that fulfil it.
            exact: do not use the approximate index, if there is one.
            rerank: query expansion and whitening; scores are then cosines to the expanded query, or after whitening.

        Raises:
            ValueError: if the vectors do not have this index's length, are zero or not finite, ``k`` is not positive,
                or the condition is not valid.

        Example:
            >>> import tempfile
            >>> from gspool.search.index.table import ImageRecord, LanceWriter, VectorSettings
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
        rerank = (rerank or Rerank()).check(self.settings.dim)
        found: list[list[Hit]] = []
        for first in range(0, len(queries), QUERIES_AT_ONCE):
            some = queries[first : first + QUERIES_AT_ONCE]
            if rerank.expand:
                some = self._expanded(some, rerank, exact)
            if rerank.whiten:
                candidates = self._nearest(some, max(k, CANDIDATES), where, exact)
                found += [hits[:k] for hits in self._whitened(some, candidates, rerank.whiten)]
            else:
                found += self._nearest(some, k, where, exact)
        return found

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

    def _nearest(
        self, queries: np.ndarray, k: int, where: str | None, exact: bool, widened: bool = False
    ) -> list[list[Hit]]:
        """Search the table; best first, equal scores in the order of the corpus.

        ``widened`` searches more partitions until there are enough hits, as conditions do.
        """
        k = min(k, len(self))
        if k == 0:
            return [[] for _ in queries]
        # One query is passed as a vector, several as a matrix: LanceDB numbers the answers of a matrix only.
        request = self.table.search(queries if len(queries) > 1 else queries[0]).distance_type("cosine").limit(k)
        approximation = None if exact else self.approximation
        fixed = where is None and not widened
        if approximation is None:
            request = request.bypass_vector_index()
        else:
            request = approximation.applied_to(request, fixed)
        if where is not None:
            request = request.where(where, prefilter=True)
        request = request.select(["row", "path", "label", "_distance"])
        try:
            answer = newest(request.to_arrow)
        except (ValueError, RuntimeError) as error:
            if where is None:
                raise
            raise ValueError(
                f"the condition {where!r} is not valid: {error}. It is SQL over row, path, label, width and height; "
                "text stands in single quotes: label = 'ant'"
            ) from error
        hits: list[list[Hit]] = [[] for _ in queries]
        for each in answer.to_pylist():
            hit = Hit(each["path"], 1.0 - each["_distance"], each["row"], each["label"])
            hits[each.get("query_index", 0)].append(hit)
        for number, found in enumerate(hits):
            # The few partitions that were searched may hold fewer rows than were asked for.
            if approximation is not None and fixed and len(found) < k:
                (hits[number],) = self._nearest(queries[number, None], k, where, exact, widened=True)
            hits[number].sort(key=lambda hit: (-hit.score, hit.row))
        return hits

    def _expanded(self, queries: np.ndarray, rerank: Rerank, exact: bool) -> np.ndarray:
        nearest = self._nearest(queries, rerank.expand, None, exact)
        known = self.vectors({hit.row for hits in nearest for hit in hits})
        # A row may have been removed since it was found.
        near = [[known[hit.row] for hit in hits if hit.row in known] for hits in nearest]
        return np.stack(
            [
                expand_query(query, np.stack(vectors), rerank.alpha) if vectors else query
                for query, vectors in zip(queries, near, strict=True)
            ]
        )

    def _whitened(self, queries: np.ndarray, candidates: list[list[Hit]], directions: int) -> list[list[Hit]]:
        """Order candidates by their cosines after whitening."""
        if not any(candidates):
            return candidates
        if directions not in self._whitenings:
            self._whitenings[directions] = learn_whitening(sample(self, ROWS_TO_WHITEN)[1], directions)
        whiten = self._whitenings[directions]
        known = self.vectors({hit.row for hits in candidates for hit in hits})
        white = dict(zip(known, whiten(np.array([*known.values()]).reshape(-1, self.settings.dim)), strict=True))
        scored = [
            [hit._replace(score=float(query @ white[hit.row])) for hit in hits if hit.row in white]
            for query, hits in zip(whiten(queries), candidates, strict=True)
        ]
        return [sorted(hits, key=lambda hit: (-hit.score, hit.row)) for hits in scored]

    def read(self, columns: Sequence[str], where: str | None = None) -> pa.Table:
        """Return columns of the rows that fulfil an SQL condition; of all rows without one."""
        request = self.table.search().select([*columns])
        return newest((request if where is None else request.where(where)).to_arrow)

    def vectors(self, rows: Iterable[int]) -> dict[int, Float32[np.ndarray, " D"]]:
        """Return the vectors of rows by their numbers; a number that does not exist is left out."""
        numbers = ", ".join(str(int(row)) for row in rows)
        if not numbers:
            return {}
        found = self.read(["row", "vector"], f"row IN ({numbers})")
        return dict(zip(found["row"].to_pylist(), vectors_of(found), strict=True))

    def stored(self, paths: Iterable[str]) -> dict[str, tuple[Float32[np.ndarray, " D"], str | None]]:
        """Return vectors and labels of the pictures whose files are unchanged since they were embedded, by path."""
        known = [path for path in paths if printable(path) == path]
        if not known or "modified" not in self.table.schema.names:
            return {}
        found = self.read(["path", "label", "size", "modified", "vector"], _is_one_of("path", known))
        columns = (found[name].to_pylist() for name in ("path", "label", "size", "modified"))
        return {
            path: (vector, label)
            for path, label, size, modified, vector in zip(*columns, vectors_of(found), strict=True)
            if size is not None and file_stamp(path) == (size, modified)
        }

    def labels(self) -> list[str]:
        """Return the labels of the corpus, sorted; empty where none is known."""
        return sorted(label for label in self.read(["label"])["label"].unique().to_pylist() if label is not None)

    def duplicates(self, similarity: float = 0.95) -> list[list[Hit]]:
        """Return groups of near-identical pictures, the largest first; scores are cosines to the first of a group.

        Two pictures are in one group if their cosine is at least ``similarity``, or pictures between them are: a group
        can be a chain. All pairs are compared, so that the time grows with the square of the number of rows.

        Raises:
            ValueError: if the similarity is not a cosine above 0.
        """
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        if not 0 < similarity <= 1:
            raise ValueError(f"similarity is a cosine and must lie in (0, 1], got {similarity}")
        columns = self.read(["row", "path", "label", "vector"]).sort_by("row")
        rows, paths, labels = (columns[name].to_pylist() for name in ("row", "path", "label"))
        vectors = torch.from_numpy(unit(vectors_of(columns)))
        # Of each picture the first one of its group so far: all pairs of a large group would not fit into memory.
        first_of = np.arange(len(rows))
        for first in range(0, len(vectors), ROWS_COMPARED):
            cosines = vectors[first : first + ROWS_COMPARED] @ vectors[first:].T
            apart = first_of[first : first + ROWS_COMPARED, None] != first_of[first:]
            # Rounding must not part a picture from its copy.
            near = np.stack(((cosines >= similarity - TIE).numpy() & apart).nonzero()) + first
            if near.size:
                links = np.hstack([near, [np.arange(len(rows)), first_of]])
                graph = coo_array((np.ones(links.shape[1]), links), (len(rows), len(rows)))
                _, number_of = connected_components(graph, directed=False)
                first_of = np.unique(number_of, return_index=True)[1][number_of]
        groups: dict[int, list[int]] = {}
        for number, group in enumerate(first_of.tolist()):
            groups.setdefault(group, []).append(number)

        def hit(each: int, first: int) -> Hit:
            return Hit(paths[each], min(float(vectors[each] @ vectors[first]), 1.0), rows[each], labels[each])

        largest_first = sorted(groups.values(), key=lambda group: (-len(group), group))
        return [[hit(each, group[0]) for each in group] for group in largest_first if len(group) > 1]

    def recall(self, vectors: Float[torch.Tensor, "Q D"] | Float[np.ndarray, "Q D"], k: int = 10) -> float:
        """Measure the recall of the approximate index against exact search on your own queries; 1 without an index."""
        return mean_recall(self.search(vectors, k), self.search(vectors, k, exact=True))

    @property
    def needs_approximation(self) -> bool:
        """Whether exact search is slow on this corpus and there is no approximate index of about its size yet.

        Rows added after an index was built are still found. Once they are many, partitions and recall are no longer
        what was measured. A temporary copy of a .parquet or .npz file is not worth an index.
        """
        rows = len(self)
        if self.path.suffix != ".lance" or rows < APPROXIMATE_FROM:
            return False
        return self.approximation is None or rows > GROWN * self.approximation.rows

    def build(
        self, recall: float = 0.98, k: int = 10, queries: int = 200, tell: Callable[[str], None] = lambda line: None
    ) -> Approximation:
        """Build an approximate index over all rows, and measure it against exact search: see `approximate.build`."""
        self.approximation = build(self, recall, k, queries, tell)
        return self.approximation

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
    if is_missing(place):
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
    given = [*labels]
    if not given:
        raise ValueError("give at least one label to look for, or leave out the filter")
    return _is_one_of("label", given)


def _is_one_of(column: str, texts: Iterable[str]) -> str:
    quoted = ["'" + text.replace("'", "''") + "'" for text in texts]
    return f"{column} IN ({', '.join(quoted)})"
