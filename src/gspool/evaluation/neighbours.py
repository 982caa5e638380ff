"""The nearest neighbours of embeddings, exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool.evaluation.checked_input import as_embeddings, check_integer
from gspool.evaluation.exact_search import search, working_memory
from gspool.evaluation.metric_space import Distance, MetricSpace

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

# Beyond one neighbour in so many gallery rows, most scores are closer to each other than float32 can tell; a float64
# product is then cheaper than measuring the pairs again.
_FLOAT64_SHARE = 64


class Neighbours(NamedTuple):
    """Gallery rows nearest to each query, nearest first, and how far away they are (l2, or 1 - cos)."""

    indices: Int[Tensor, "Q K"]
    distances: Float[Tensor, "Q K"]


@torch.no_grad()
def nearest_neighbours(
    queries: Any,
    gallery: Any = None,
    *,
    k: int = 10,
    distance: Distance = "l2",
    memory: int | None = None,
    device: torch.device | str | None = None,
) -> Neighbours:
    """Find the ``k`` nearest gallery rows of every query, exactly.

    Without a gallery the queries are searched among themselves and none is its own neighbour. Equal distances are
    ordered by gallery row. A ``k`` beyond the gallery returns the whole gallery.

    Args:
        queries: embeddings [Q, D], half to double precision.
        gallery: embeddings [G, D], or None to search the queries themselves.
        k: neighbours a query.
        distance: "l2" on the embeddings as given, or "cosine".
        memory: bytes of working memory beside inputs and result; None takes 1 GiB (on a GPU up to 8) and a copy of
            the gallery.
        device: where to compute; None stays where the queries are.

    Raises:
        ValueError: if the embeddings, ``k``, ``distance`` or ``memory`` cannot be used.

    Example:
        >>> nearest_neighbours(torch.tensor([[0.0], [1.0], [3.0]]), k=1).indices.flatten().tolist()
        [1, 0, 1]
    """
    check_integer(k, 1, "k is the number of neighbours and must be an integer of at least 1")
    queries = as_embeddings(queries, "queries", device)
    if gallery is not None:
        gallery = as_embeddings(gallery, "gallery", queries.device)
    space = open_space(queries, gallery, distance, k)
    if space.reachable == 0:
        raise ValueError("one embedding alone has no neighbour; pass at least two, or a gallery")
    rows = torch.arange(len(queries), device=queries.device)
    indices = search(space, rows, min(k, space.reachable), working_memory(space, memory))
    squared = space.squared_distances(rows.repeat_interleave(indices.shape[1]), indices.flatten())
    return Neighbours(indices, space.in_units_of_the_input(squared).view_as(indices))


def open_space(
    queries: Float[Tensor, "Q D"], gallery: Float[Tensor, "G D"] | None, distance: Distance, depth: int
) -> MetricSpace:
    """Make the space of a search that looks ``depth`` neighbours deep, in the precision that is cheapest for it.

    Raises:
        ValueError: if ``distance`` is unknown, the widths differ, or cosine meets a vector without direction.
    """
    if distance not in ("l2", "cosine"):
        raise ValueError(f"distance must be 'l2' or 'cosine', got {distance!r}")
    if gallery is not None and gallery.shape[1] != queries.shape[1]:
        raise ValueError(
            f"queries and gallery must come from one model, but queries have {queries.shape[1]} columns "
            f"and the gallery has {gallery.shape[1]}"
        )
    for name, vectors in (("queries", queries), ("gallery", gallery)):
        if distance == "cosine" and vectors is not None and not bool((vectors != 0).any(dim=1).all()):
            first = int((vectors != 0).any(dim=1).int().argmin())
            raise ValueError(
                f"row {first} of the {name} is zero and has no direction; leave it out or use distance='l2'"
            )
    size = len(queries if gallery is None else gallery)
    dtype = torch.float64 if depth * _FLOAT64_SHARE > size else torch.float32
    return MetricSpace(queries, gallery, distance, dtype)
