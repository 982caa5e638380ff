"""The space of one search: exact float64 distances, and fast scores whose error is bounded."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from gspool.evaluation.top_k import GROUP_SIZES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Float, Int
    from torch import Tensor

Distance = Literal["l2", "cosine"]

# Scores of vectors in the unit ball lie in [-1.5, 0.5]: padding lies below all of them, and stays finite.
_BELOW_EVERY_SCORE = -4.0
# Temporaries of a pass over the vectors: about a cache on a CPU, enough to fill a GPU.
_CHUNK_BYTES = {"cpu": 2**20, "cuda": 2**25}
# Relative error of one input of a float32 product, by the setting torch multiplies with (TF32 may truncate).
_INPUT_ERROR = {"none": 2.0**-24, "ieee": 2.0**-24, "tf32": 2.0**-10, "bf16": 2.0**-7}


class Scored(NamedTuple):
    """Scores of queries against the padded gallery, larger is nearer, and the squared norms of the queries."""

    scores: Float[Tensor, "B G"]
    squared_norms: Float[Tensor, " B"]


class MetricSpace:
    """Queries and a gallery, in which the score ``s = q . g - |g|^2 / 2`` orders like the distance.

    The vectors are moved by the mean of the gallery and scaled into the unit ball, both in float64, which changes no
    order and keeps the rounding error of ``s`` small where embeddings are nearly alike. Cosine is the l2 distance of
    the unit vectors. ``doubt`` bounds the error of ``|q|^2 - 2 s`` against the squared distance: inputs rounded
    once, and a product of D terms summed in any order (relative error at most D u, u the unit roundoff).

    With ``gallery=None`` the queries are their own gallery, and none of them is its own neighbour.
    """

    def __init__(
        self,
        queries: Float[Tensor, "Q D"],
        gallery: Float[Tensor, "G D"] | None = None,
        distance: Distance = "l2",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.own_gallery, self.unit, self.dtype = gallery is None, distance == "cosine", dtype
        self.dim, self.device = queries.shape[1], queries.device
        self._chunk = max(1, _CHUNK_BYTES.get(self.device.type, 2**24) // (self.dim * 8))
        largest = max(_largest(source) for source in (queries, gallery) if source is not None)
        # Squares of such numbers leave the range of float64; a power of two brings them back without rounding.
        self._prescale = 1.0 if 1e-100 < largest < 1e100 else _scale_to_one(largest)
        if self._prescale != 1.0:
            queries, gallery = queries * self._prescale, None if gallery is None else gallery * self._prescale
        self.queries, self.gallery = queries, queries if gallery is None else gallery
        self.reachable = len(self.gallery) - int(self.own_gallery)
        sources = [self.gallery] if self.own_gallery else [self.gallery, queries]
        total = sum(rows.sum(0) for rows in self._chunks(self.gallery))
        self._centre = total / len(self.gallery)
        radius = max(float((rows - self._centre).norm(dim=1).max()) for s in sources for rows in self._chunks(s))
        self._scale = _scale_to_one(radius)
        # A dead network makes all vectors one and the same; then every distance ties.
        first, last = self.gallery[0], self.gallery[-1]
        self.one_point = torch.equal(first, last) and bool((self.gallery == first).all())
        # |q . g| and |g|^2 / 2 are at most these, with room for the rounding of the radius; twice their error is doubt.
        largest_terms = 1.5 * (radius * self._scale) ** 2 * 1.001
        relative_error = 2.0 * self._input_error() + (self.dim + 8) * torch.finfo(dtype).eps / 2
        self.doubt = 2.0 * largest_terms * relative_error + 1e-15
        # Padded, so that columns of scores fall into groups without a rest.
        padded = -(-len(self.gallery) // GROUP_SIZES[0]) * GROUP_SIZES[0]
        self.columns = torch.zeros(padded, self.dim, dtype=dtype, device=self.device)
        self.bias = torch.full((padded,), _BELOW_EVERY_SCORE, dtype=dtype, device=self.device)
        start = 0
        for rows in self._chunks(self.gallery):
            moved = (rows - self._centre) * self._scale
            self.columns[start : start + len(rows)] = moved
            self.bias[start : start + len(rows)] = -0.5 * moved.square().sum(1)
            start += len(rows)

    @property
    def bytes_held(self) -> int:
        """The memory this space holds beside the embeddings themselves."""
        return (self.columns.numel() + self.bias.numel()) * self.columns.element_size()

    def scores(self, rows: Int[Tensor, " B"], out: Float[Tensor, "B G"]) -> Scored:
        """Score the queries ``rows`` against every gallery row, into ``out``; a query is far from itself."""
        queries = (self._vectors(self.queries[rows]) - self._centre) * self._scale
        # Into ``out``, also because autocast would otherwise multiply in half precision.
        torch.addmm(self.bias, queries.to(self.dtype), self.columns.T, out=out)
        if self.own_gallery:
            out[torch.arange(len(rows), device=self.device), rows] = -math.inf
        return Scored(out, queries.square().sum(1))

    def squared_distances(self, rows: Int[Tensor, " P"], columns: Int[Tensor, " P"]) -> Float[Tensor, " P"]:
        """Compute squared distances of pairs, difference by difference in float64; equal vectors give equal numbers."""
        result = torch.empty(len(rows), dtype=torch.float64, device=self.device)
        for start in range(0, len(rows), self._chunk):
            pairs = slice(start, start + self._chunk)
            difference = self._vectors(self.queries.index_select(0, rows[pairs]))
            difference -= self._vectors(self.gallery.index_select(0, columns[pairs]))
            result[pairs] = difference.square_().sum(1)
        return result.mul_(self._scale**2)

    def in_units_of_the_input(self, squared: Float[Tensor, "*N"]) -> Float[Tensor, "*N"]:
        """Turn squared distances of this space into l2 distances, or into 1 - cos."""
        squared = squared / self._scale**2
        return squared / 2 if self.unit else squared.sqrt() / self._prescale

    def _vectors(self, rows: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        if not self.unit:
            return rows.to(torch.float64, copy=True)
        # Divided by the largest entry first: the square of a number near 1e-200 would vanish from the norm.
        rows = rows.double()
        rows = rows / rows.abs().amax(dim=1, keepdim=True)
        return rows / rows.norm(dim=1, keepdim=True)

    def _chunks(self, source: Float[Tensor, "N D"]) -> Iterator[Float[Tensor, "B D"]]:
        for rows in source.split(self._chunk):
            yield self._vectors(rows)

    def _input_error(self) -> float:
        if self.dtype == torch.float64:
            return 2.0**-53
        backend = torch.backends.cuda if self.device.type == "cuda" else torch.backends.mkldnn
        return _INPUT_ERROR[backend.matmul.fp32_precision]


def _largest(vectors: Float[Tensor, "N D"]) -> float:
    extremes = vectors.aminmax()
    return max(-float(extremes.min), float(extremes.max))


def _scale_to_one(size: float) -> float:
    """Return the power of two that brings ``size`` into [1/2, 1), as far as its square stays in range; 1 for zero."""
    return 1.0 if size == 0.0 else math.ldexp(1.0, max(-500, min(500, -math.frexp(size)[1])))
