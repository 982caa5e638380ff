"""Generalized sum pooling with a generalized mean in the place of the sum."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch import nn

from gspool.functional.results import Pooled
from gspool.pooling.embedding import LocalEmbedding
from gspool.pooling.gemean import generalized_mean, starting_power
from gspool.pooling.gsp import GSP
from gspool.pooling.layer import PoolingLayer, real_tokens

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from gspool.functional.pool import Backend, Precision, Role


class GeMeanGSP(PoolingLayer):
    """GeMean+GSP: ``E ((1/n) sum_j (n p_j f_j)^p)^(1/p)``, the weights ``p_j`` by GSP on the embedded features ``E f``.

    The pseudo-code of the supplement with ``p > 1``: features are weighted as the backbone gives them, averaged by the
    power, and embedded last. Weighted features below 1e-6 are raised to it. ``mu = 1`` is `GeMean`, and power one GSP
    with its sum over non-negative features. ``weights`` and ``attributes`` are GSP's.

    Args:
        dim: number of channels.
        out_dim: length of the embedding ``E``; None leaves it out.
        p: the power to start from, one for all channels.
        learn_p: whether it is a parameter.
        prototypes: this and all that follow are those of `GSP`.
        mu: part of the mass to pool.
        epsilon: sharpness.
        learn_mu: whether mu is learned.
        learn_epsilon: whether epsilon is learned.
        role: ``foreground`` or ``background``.
        warm_start: number of vectors to see before the prototypes are set; until then the weights are uniform.
        backend: see `gspool.functional.gsp_pool`.
        precision: see `gspool.functional.gsp_pool`.
        keys: width of a key projection of the backbone's features; 0 compares the embedded features.

    Raises:
        ValueError: for values outside their range; on use, for features that do not fit.

    Example:
        >>> import torch
        >>> layer = GeMeanGSP(dim=64, out_dim=16, prototypes=8)
        >>> out = layer.pool(torch.rand(2, 64, 7, 7))
        >>> out.pooled.shape, out.weights.shape, out.attributes.shape
        (torch.Size([2, 16]), torch.Size([2, 49]), torch.Size([2, 8]))
    """

    embedding = "inside"
    p: Tensor

    def __init__(
        self,
        dim: int,
        out_dim: int | None = None,
        p: float = 3.0,
        learn_p: bool = True,
        prototypes: int = 64,
        mu: float = 0.3,
        epsilon: float = 5.0,
        learn_mu: bool = False,
        learn_epsilon: bool = False,
        role: Role = "foreground",
        warm_start: int = 0,
        backend: Backend = "auto",
        precision: Precision = "exact",
        keys: int = 0,
    ) -> None:
        super().__init__(dim, out_dim)
        if learn_p:
            self.p = nn.Parameter(starting_power(p))
        else:
            self.register_buffer("p", starting_power(p))
        self.embed = None if out_dim is None else LocalEmbedding(dim, out_dim)
        how = (role, warm_start, backend, precision, keys)
        # Keys are computed from the backbone's features.
        self.gsp = GSP(dim if keys else self.out_dim, prototypes, mu, epsilon, learn_mu, learn_epsilon, *how)

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Weigh the real tokens by GSP, take their generalized mean, embed it."""
        tokens, token_mask = real_tokens(x, mask, self.dim)
        embedded = tokens if self.embed is None or self.gsp.key is not None else self.embed(tokens)
        selected = self.gsp.pool(embedded, token_mask)
        count = tokens.shape[1] if token_mask is None else token_mask.sum(1, keepdim=True)
        relative = count * cast("Tensor", selected.weights)
        pooled = generalized_mean(relative.unsqueeze(2) * tokens, self.p, token_mask).to(x.dtype)
        if self.embed is not None:
            pooled = self.embed(pooled).to(x.dtype)
        return selected._replace(pooled=pooled)

    def extra_repr(self) -> str:
        """Name sizes and power in `print(model)`."""
        return f"{super().extra_repr()}, p={self.p.detach().item():.3g}, learn_p={self.p.requires_grad}"
