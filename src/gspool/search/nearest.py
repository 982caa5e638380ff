"""One request to LanceDB: queries in, neighbours out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

    from gspool.search.approximate import Approximation


class Hit(NamedTuple):
    """One neighbour: its file, its cosine to the query, its row in the corpus, and its label where that is known."""

    path: str
    score: float
    row: int
    label: str | None


def nearest(
    table: Any,
    queries: Float[np.ndarray, "Q D"],
    k: int,
    where: str | None,
    approximation: Approximation | None,
    at_most_these: bool,
) -> list[list[Hit]]:
    """Search a table, exactly without an approximation; best first, equal scores in the order of the corpus.

    Raises:
        ValueError: if the condition cannot be understood.
    """
    # A lone query is given as a vector, several as a matrix: LanceDB numbers the answers of a matrix alone.
    request = table.search(queries if len(queries) > 1 else queries[0]).distance_type("cosine").limit(k)
    if approximation is None:
        request = request.bypass_vector_index()
    else:
        request = approximation.applied_to(request, at_most_these)
    if where is not None:
        request = request.where(where, prefilter=True)
    try:
        answer = _answered(request.select(["row", "path", "label", "_distance"]))
    except (ValueError, RuntimeError) as error:
        if where is None:
            raise
        raise ValueError(
            f"the condition {where!r} was not understood: {error}. It is SQL over row, path, label, width and "
            "height; words stand in single quotes: label = 'ant'"
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
