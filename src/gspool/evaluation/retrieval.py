"""P@1, P@R, MAP@R and R@K of an embedding: how often the nearest neighbours are of the same class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gspool.evaluation.checked_input import as_embeddings, as_labels, as_ranks
from gspool.evaluation.exact_search import Classes, search, working_memory
from gspool.evaluation.neighbours import open_space

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jaxtyping import Float, Int
    from torch import Tensor

    from gspool.evaluation.metric_space import Distance

# Bytes a ranked neighbour takes while it is judged: its row, its label, hits, their running count, precisions.
_BYTES_A_RANK = 48


@dataclass(frozen=True, eq=False, repr=False)
class RetrievalMetrics(Mapping[str, float]):
    """Metrics by name, each in [0, 1], and what they were taken over.

    It reads like a dictionary (``metrics["map@r"]``). ``queries`` counts the queries behind the averages,
    ``lone_queries`` those left out because nothing of their class can be found, ``gallery`` the rows searched.
    ``by_query`` has the same metrics of every query, a column each; those of lone queries are NaN.
    """

    values_by_name: Mapping[str, float]
    queries: int
    lone_queries: int
    gallery: int
    by_query: Float[Tensor, "Q S"]

    def of_queries(self, name: str) -> Float[Tensor, " Q"]:
        """Return one metric of every query, on the CPU."""
        return self.by_query[:, list(self).index(name)].cpu()

    def __getitem__(self, name: str) -> float:
        if name not in self.values_by_name:
            raise KeyError(f"{name!r} was not measured; there are {', '.join(self.values_by_name)}")
        return self.values_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)

    def as_dict(self) -> dict[str, float | int]:
        """Return everything as plain numbers, for JSON."""
        counts = {"queries": self.queries, "lone_queries": self.lone_queries, "gallery": self.gallery}
        return {**self.values_by_name, **counts}

    def __repr__(self) -> str:
        metrics = "  ".join(f"{name} {value:.4f}" for name, value in self.items())
        lone = f", {self.lone_queries} lone left out" if self.lone_queries else ""
        return f"{metrics}  ({self.queries} queries{lone}, gallery of {self.gallery})"


@torch.no_grad()
def retrieval_metrics(
    embeddings: Any,
    labels: Any,
    gallery: Any = None,
    gallery_labels: Any = None,
    *,
    ks: Sequence[int] = (1, 2, 4, 8),
    distance: Distance = "l2",
    memory: int | None = None,
    device: torch.device | str | None = None,
) -> RetrievalMetrics:
    """Measure how well nearest neighbours share the class of the query.

    With ``R`` gallery rows of a query's class, and ``h_i = 1`` where its i-th neighbour is one of them, else 0
    (Supp. 1.6.3, where P(i) means the precision at rank i):

        P@1 = h_1                               P@R = (h_1 + … + h_R) / R
        R@K = max(h_1, …, h_K)                MAP@R = sum_i<=R h_i (h_1 + … + h_i) / i / R

    averaged over the queries. Without a gallery every embedding is searched among all others, and is never its own
    neighbour; with one, nothing is left out of the gallery. A query without any relevant row (R = 0) is left out and
    counted in ``lone_queries``. The search is exact, and equal distances are ordered by gallery row, so the result
    depends on neither device nor memory. R@K with K beyond the gallery looks at the whole gallery.

    Args:
        embeddings: query embeddings [Q, D], half to double precision.
        labels: their classes, integers [Q].
        gallery: embeddings to search [G, D], or None to search among the queries.
        gallery_labels: the classes of the gallery, integers [G].
        ks: the ranks K of R@K.
        distance: "l2" on the embeddings as given, or "cosine".
        memory: bytes of working memory beside the embeddings; None takes 1 GiB (on a GPU up to 8) and a copy of
            the gallery.
        device: where to compute; None stays where the embeddings are.

    Raises:
        ValueError: if shapes, types or ranges are wrong, embeddings are not finite, or no query has a relevant row.

    Example:
        >>> points = torch.tensor([[0.0], [0.1], [1.0], [1.1], [9.0]])
        >>> metrics = retrieval_metrics(points, torch.tensor([0, 0, 1, 1, 2]), ks=(1, 2))
        >>> metrics
        p@1 1.0000  p@r 1.0000  map@r 1.0000  r@1 1.0000  r@2 1.0000  (4 queries, 1 lone left out, gallery of 5)
        >>> metrics["map@r"]
        1.0
    """
    ks = as_ranks(ks)
    if (gallery is None) != (gallery_labels is None):
        missing = "gallery_labels" if gallery_labels is None else "gallery"
        raise ValueError(f"a gallery is embeddings and labels together, but {missing} is missing")
    queries = as_embeddings(embeddings, "embeddings", device)
    classes = as_labels(labels, "labels", len(queries), queries.device)
    found_classes = classes
    if gallery is not None:
        gallery = as_embeddings(gallery, "gallery", queries.device)
        found_classes = as_labels(gallery_labels, "gallery_labels", len(gallery), queries.device)
    relevant = count_relevant(classes, found_classes, itself=gallery is None)
    rows = relevant.nonzero().flatten()
    if not len(rows):
        raise ValueError(
            f"none of the {len(queries)} queries has a gallery row of its class, so there is nothing to measure; "
            "evaluation needs classes of at least two images, or a gallery with the classes of the queries"
        )
    # From the largest class down: queries that need equally many neighbours are searched together.
    rows = rows[relevant[rows].argsort(descending=True, stable=True)]
    depths = relevant[rows].clamp(min=max(ks, default=1))
    space = open_space(queries, gallery, distance, int(depths.double().mean()))
    memory = working_memory(space, memory)
    # The search leaves one eighth of its memory to the judging of what it found.
    ranks_at_once = (memory - space.bytes_held) // 8 // _BYTES_A_RANK
    both, tables, start = Classes(classes, found_classes), [], 0
    while start < len(rows):
        depth = min(int(depths[start]), space.reachable)
        part = rows[start : start + max(1, ranks_at_once // depth)]
        nearest = search(space, part, depth, memory, both)
        tables.append(_scores_by_query(both.hits(part, nearest), relevant[part], ks))
        start += len(part)
    # Back in the order of the queries, so that the sum rounds alike however the work was divided.
    order = rows.argsort()
    scores = torch.cat(tables)[order]
    by_query = scores.new_full((len(queries), scores.shape[1]), torch.nan).index_copy(0, rows[order], scores)
    names = ["p@1", "p@r", "map@r", *(f"r@{k}" for k in ks)]
    means = dict(zip(names, scores.mean(dim=0).tolist(), strict=True))
    return RetrievalMetrics(means, len(rows), len(queries) - len(rows), len(space.gallery), by_query)


def count_relevant(classes: Int[Tensor, " Q"], found_classes: Int[Tensor, " G"], itself: bool) -> Int[Tensor, " Q"]:
    """Count the gallery rows of the class of every query, without the query where it is in the gallery ``itself``."""
    names, counts = found_classes.unique(return_counts=True)
    places = torch.searchsorted(names, classes).clamp(max=len(names) - 1)
    return torch.where(names[places] == classes, counts[places], 0) - int(itself)


def _scores_by_query(hits: Tensor, relevant: Int[Tensor, " B"], ks: Sequence[int]) -> Float[Tensor, "B S"]:
    """Compute each query's P@1, P@R, MAP@R and R@K in float64, from its hits in order of distance."""
    ranks = torch.arange(1, hits.shape[1] + 1, device=hits.device)
    counted = hits & (ranks <= relevant[:, None])
    precision = counted.cumsum(dim=1).double() / ranks
    share = relevant.double()
    columns = [
        hits[:, 0].double(),
        counted.sum(dim=1).double() / share,
        (precision * counted).sum(dim=1) / share,
        *(hits[:, :k].any(dim=1).double() for k in ks),
    ]
    return torch.stack(columns, dim=1)
