"""Generalized sum pooling beside global max pooling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gspool.functional.results import Pooled
from gspool.pooling.embedding import LocalEmbedding
from gspool.pooling.gmp import token_maximum
from gspool.pooling.gsp import GSP
from gspool.pooling.layer import PoolingLayer, real_tokens

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from gspool.functional.pool import Backend, Precision, Role


class GMPGSP(PoolingLayer):
    """GMP+GSP: ``E max_j f_j + sum_j p_j E f_j``, the weights ``p`` by GSP on the embedded features ``E f`` (Sec. 5.2).

    One embedding serves both, as in the authors' reference implementation. ``weights`` and ``attributes`` are GSP's.

    Args:
        dim: number of channels.
        out_dim: length of the embedding ``E``; None leaves it out.
        prototypes: this and all that follow are those of `GSP`.
        mu: part of the mass to pool.
        epsilon: sharpness.
        learn_mu: whether mu is learned.
        learn_epsilon: whether epsilon is learned.
        role: ``foreground`` or ``background``.
        warm_start: number of vectors to see before the prototypes are set.
        backend: see `gspool.functional.gsp_pool`.
        precision: see `gspool.functional.gsp_pool`.

    Raises:
        ValueError: for values outside their range; on use, for features that do not fit.

    Example:
        >>> import torch
        >>> layer = GMPGSP(dim=64, out_dim=16, prototypes=8)
        >>> out = layer.pool(torch.rand(2, 64, 7, 7))
        >>> out.pooled.shape, out.weights.shape, out.attributes.shape
        (torch.Size([2, 16]), torch.Size([2, 49]), torch.Size([2, 8]))
    """

    embedding = "inside"

    def __init__(
        self,
        dim: int,
        out_dim: int | None = None,
        prototypes: int = 64,
        mu: float = 0.3,
        epsilon: float = 5.0,
        learn_mu: bool = False,
        learn_epsilon: bool = False,
        role: Role = "foreground",
        warm_start: int = 0,
        backend: Backend = "auto",
        precision: Precision = "exact",
    ) -> None:
        super().__init__(dim, out_dim)
        self.embed = None if out_dim is None else LocalEmbedding(dim, out_dim)
        how = (role, warm_start, backend, precision)
        self.gsp = GSP(self.out_dim, prototypes, mu, epsilon, learn_mu, learn_epsilon, *how)

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Add the embedded maximum of the real tokens to what GSP selects among the embedded ones."""
        tokens, token_mask = real_tokens(x, mask, self.dim)
        maximum = token_maximum(tokens, token_mask)
        if self.embed is not None:
            tokens, maximum = self.embed(tokens), self.embed(maximum)
        selected = self.gsp.pool(tokens, token_mask)
        return selected._replace(pooled=(selected.pooled + maximum).to(x.dtype))
