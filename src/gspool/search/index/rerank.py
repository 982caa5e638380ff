"""Re-rank neighbours: query expansion before a search, PCA whitening of its candidates after it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float32

# Candidates that are compared again in the whitened space.
CANDIDATES = 200


class Rerank(NamedTuple):
    """How neighbours are found and ordered; the default is the plain cosine.

    Attributes:
        expand: replace each query by the mean of it and of as many nearest vectors, and search again.
        alpha: weigh each of those vectors by its cosine to this power; 0 is average query expansion.
        whiten: order candidates by the cosine after PCA whitening of this many leading directions, learned from the
            vectors of the index; 0 does not. Whitening many directions of few vectors raises noise.

    Example:
        >>> Rerank(expand=5).check()
        Rerank(expand=5, alpha=3.0, whiten=0)
    """

    expand: int = 0
    alpha: float = 3.0
    whiten: int = 0

    def check(self, dim: int | None = None) -> Rerank:
        """Return the same options.

        Args:
            dim: the length of the vectors that they are for, if it is known.

        Raises:
            ValueError: if a number is negative or not finite, or there are not as many directions to whiten.
        """
        for name, value in zip(self._fields, self, strict=True):
            # Written so that a NaN is refused as well.
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be a finite number of at least 0, got {value}")
        if dim is not None and self.whiten > dim:
            raise ValueError(f"vectors of length {dim} have no {self.whiten} directions to whiten")
        return self


class Whitening(NamedTuple):
    """The linear map after which the vectors of a corpus have mean 0 and variance 1 in their leading directions."""

    mean: Float32[np.ndarray, " D"]
    scale: Float32[np.ndarray, "D W"]

    def __call__(self, vectors: Float32[np.ndarray, "N D"]) -> Float32[np.ndarray, "N W"]:
        """Return the whitened vectors, at unit length."""
        return unit((vectors - self.mean) @ self.scale)


def learn_whitening(vectors: Float32[np.ndarray, "N D"], directions: int) -> Whitening:
    """Learn PCA whitening of the leading directions from the vectors of a corpus (Jegou and Chum, 2012)."""
    mean = vectors.mean(axis=0, dtype=np.float64)
    centred = vectors - mean
    variances, axes = np.linalg.eigh(centred.T @ centred / len(vectors))
    # From the smallest on; a corpus of few vectors has none in some.
    leading = np.maximum(variances[-directions:], np.finfo(np.float32).tiny)
    return Whitening(mean.astype(np.float32), (axes[:, -directions:] / np.sqrt(leading)).astype(np.float32))


def expand_query(
    query: Float32[np.ndarray, " D"], neighbours: Float32[np.ndarray, "K D"], alpha: float
) -> Float32[np.ndarray, " D"]:
    """Return the unit vector of a query plus its neighbours, each weighted by its cosine to the power ``alpha``.

    Average query expansion is ``alpha`` 0 (Chum et al., 2007), alpha query expansion the others (Radenovic et al.,
    2018).
    """
    query, neighbours = unit(query), unit(neighbours)
    return unit(query + np.maximum(neighbours @ query, 0) ** alpha @ neighbours)


def unit(vectors: Float32[np.ndarray, "*N D"]) -> Float32[np.ndarray, "*N D"]:
    """Return vectors at length 1."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
