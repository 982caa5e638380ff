"""Generalized Sum Pooling as a layer: learnable prototypes decide which part of the image counts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast, get_args

import torch
from torch import nn

from gspool.functional import clip_norm, greedy_centers, gsp_pool, partial_transport
from gspool.functional.checks import computing_dtype, epsilon_tensor, full_precision, mu_tensor
from gspool.functional.pool import Backend, Precision, Role
from gspool.functional.product_distance import product_distance
from gspool.functional.results import Pooled
from gspool.pooling.embedding import LocalEmbedding
from gspool.pooling.layer import PoolingLayer, as_token_mask, as_tokens, without_padding
from gspool.pooling.warm_start import WarmStart

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


# A learned mu stays within 3e-4 of 0 and 1, where the sigmoid still has a gradient to come back by; a learned epsilon
# stays below 1e4, the sharpest that the solver is tested for.
LOGIT_LIMIT = 8.0
LOG_EPSILON_LIMIT = math.log(1e4)


class GSP(PoolingLayer):
    """Pool the tokens that lie near learned prototypes, and leave the rest (Sec. 4, a drop-in for average pooling).

    Args:
        dim: number of feature channels.
        prototypes: number of prototypes, m in the paper.
        mu: part of the mass to pool, in (0, 1]; 1 is average pooling exactly.
        epsilon: sharpness; it multiplies the distance. The paper uses 5 for pair losses and 0.5 for proxy losses.
        learn_mu: learn mu, kept inside (0, 1) by a sigmoid.
        learn_epsilon: learn epsilon, kept positive by an exponential.
        role: ``foreground`` pools what is near the prototypes, ``background`` what is far from them.
        warm_start: pool by plain averaging until this many pooled vectors were seen in training, then set the
            prototypes by greedy k-center on them; the authors' reference uses 1024. 0 starts from random prototypes.
        backend: see `gspool.functional.gsp_pool`; with groups ``auto`` computes the distances by the plain version, and
            ``triton`` takes at most 1024 prototypes.
        precision: see `gspool.functional.gsp_pool`.
        keys: width of a linear projection of the tokens that the prototypes are compared with, so that weights and
            values come from separate spaces; 0 compares the tokens themselves.
        groups: the prototypes are divided into so many groups, each of which weighs the tokens by itself and pools its
            slice of the channels; ``weights`` and ``attributes`` are then means over the groups.

    Raises:
        ValueError: for values outside their range; on use, for features that do not fit.

    Example:
        >>> pool = GSP(dim=8, prototypes=4)
        >>> features = torch.randn(2, 8, 7, 7)
        >>> pool(features).shape
        torch.Size([2, 8])
        >>> pool.pool(features).weights.shape
        torch.Size([2, 49])
    """

    def __init__(
        self,
        dim: int,
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
        groups: int = 1,
    ) -> None:
        super().__init__(dim)
        if isinstance(prototypes, bool) or not isinstance(prototypes, int) or prototypes < 1:
            raise ValueError(f"prototypes is the number of prototypes, a positive integer, got {prototypes!r}")
        mu_tensor(mu, (), torch.device("cpu"))
        epsilon_tensor(epsilon, torch.float64, torch.device("cpu"))
        if mu == 1 and (learn_mu or role == "background"):
            raise ValueError(
                "mu = 1 keeps everything: it cannot be learned from there, nor leaves a background; use e.g. 0.9"
            )
        if learn_epsilon and epsilon == 0:
            raise ValueError("epsilon = 0 ignores the prototypes and cannot be learned from there; start e.g. at 0.5")
        for value, name, kind in (
            (role, "role", Role),
            (backend, "backend", Backend),
            (precision, "precision", Precision),
        ):
            if value not in get_args(kind):
                raise ValueError(f"{name} must be one of {', '.join(get_args(kind))}, got {value!r}")
        if isinstance(keys, bool) or not isinstance(keys, int) or keys < 0:
            raise ValueError(f"keys is the width of the key projection, or 0 for none, got {keys!r}")
        if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1 or prototypes % groups or dim % groups:
            raise ValueError(f"groups divide the {prototypes} prototypes and the {dim} channels, got {groups!r}")
        if keys and warm_start:
            raise ValueError("a warm start collects tokens, not keys: leave warm_start out, or call init_prototypes")
        self.key = LocalEmbedding(dim, keys) if keys else None
        self.groups = groups
        width = keys or dim
        self.prototypes = nn.Parameter(torch.randn(prototypes, width) / math.sqrt(width))
        self.role: Role = role
        self.backend: Backend = backend
        self.precision: Precision = precision
        self._mu, self._epsilon = float(mu), float(epsilon)
        self.mu_logit = nn.Parameter(torch.tensor(math.log(mu / (1 - mu)))) if learn_mu else None
        self.log_epsilon = nn.Parameter(torch.tensor(math.log(epsilon))) if learn_epsilon else None
        self.warm_start = WarmStart(warm_start, prototypes, dim) if warm_start else None

    @property
    def mu(self) -> float | Float[Tensor, ""]:
        """The part of the mass that is pooled; a tensor with a gradient where it is learned."""
        return self._mu if self.mu_logit is None else torch.sigmoid(self.mu_logit.clamp(-LOGIT_LIMIT, LOGIT_LIMIT))

    @property
    def epsilon(self) -> float | Float[Tensor, ""]:
        """The sharpness; a tensor with a gradient where it is learned."""
        return self._epsilon if self.log_epsilon is None else torch.exp(self.log_epsilon.clamp(max=LOG_EPSILON_LIMIT))

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Pool a feature map [B, C, H, W] or tokens [B, N, D]; return the vector, the weights and the attributes."""
        tokens, token_mask = as_tokens(x, self.dim), as_token_mask(mask, x)
        if self.warm_start is not None and self.warm_start.collecting:
            return self._collect(self.warm_start, tokens, token_mask)
        if self.key is None and self.groups == 1:
            return gsp_pool(
                tokens, self.prototypes, self.mu, self.epsilon, token_mask, self.backend, self.role, self.precision
            )
        pooled, weights, attributes = self.pool_groups(without_padding(tokens, token_mask), token_mask)
        # Of all channels that a group pooled its slice is taken: cheaper than a copy of the tokens slice by slice.
        slices = pooled.unflatten(2, (self.groups, -1)).diagonal(dim1=1, dim2=2).mT
        return Pooled(slices.flatten(1), weights.mean(1), attributes)

    def pool_groups(
        self, tokens: Float[Tensor, "B N D"], mask: Bool[Tensor, "B N"] | None
    ) -> tuple[Float[Tensor, "B G D"], Float[Tensor, "B G N"], Float[Tensor, "B M"]]:
        """Return a vector of all channels for every group, the weights of every group, and the attributes."""
        precise = tokens.to(computing_dtype(tokens))  # once for both products
        weights, attributes = self.weigh(precise if self.key is None else tokens, mask)
        with full_precision(tokens):
            return torch.bmm(weights, precise.to(weights.dtype)).to(tokens.dtype), weights, attributes

    def weigh(
        self, tokens: Float[Tensor, "B N D"], mask: Bool[Tensor, "B N"] | None
    ) -> tuple[Float[Tensor, "B G N"], Float[Tensor, "B M"]]:
        """Weigh the tokens by every group: one transport problem an image and group, all solved at once."""
        keys = tokens if self.key is None else self.key(tokens)
        if self.groups == 1:
            out = gsp_pool(keys, self.prototypes, self.mu, self.epsilon, mask, self.backend, self.role, self.precision)
            return cast("Tensor", out.weights)[:, None], cast("Tensor", out.attributes)
        with full_precision(keys):
            cost = product_distance(self.prototypes, keys, self.backend, self.precision)
            cost = cost.unflatten(1, (self.groups, -1))
            group_mask = None if mask is None else mask[:, None].expand(-1, self.groups, -1)
            residual, plan = partial_transport(cost, self.mu, self.epsilon, group_mask, self.backend)
            weights = residual / (1 - self.mu) if self.role == "background" else plan.sum(2) / self.mu
            return weights, (plan.sum(3) / (self.mu * self.groups)).flatten(1)

    @torch.no_grad()
    def init_prototypes(self, features: Float[Tensor, "K D"]) -> None:
        """Set the prototypes by greedy k-center on observed features, in place: the optimiser keeps its parameter.

        Args:
            features: vectors [K, D], or tokens [B, N, D], or maps [B, C, H, W], at least as many as prototypes; the key
                projection, if there is one, is applied to them.

        Raises:
            ValueError: if the features do not fit, are too few, or are not finite.
        """
        vectors = features if features.ndim == 2 else as_tokens(features, self.dim).flatten(0, 1)
        if vectors.shape[-1] != self.dim:
            raise ValueError(f"features must have {self.dim} channels, got shape {tuple(features.shape)}")
        if self.key is not None:
            vectors = self.key(vectors.to(self.prototypes))
        vectors = clip_norm(vectors.to(self.prototypes))
        self.prototypes.copy_(vectors[greedy_centers(vectors, self.prototypes.shape[0])])

    def _collect(
        self, warm_start: WarmStart, tokens: Float[Tensor, "B N D"], mask: Bool[Tensor, "B N"] | None
    ) -> Pooled:
        """Pool by averaging, remember what came out, and set the prototypes once enough was seen."""
        # A copy, because the prototypes may be set below, before the backward pass reads them.
        average = gsp_pool(tokens, self.prototypes.clone(), 1.0, 0.0, mask, self.backend)
        if self.training:
            seen = warm_start.add(clip_norm(average.pooled.detach()))
            if seen is not None:
                self.init_prototypes(seen)
        # Distributed training waits for a gradient of every parameter, of those too that play no part yet.
        idle = [parameter for parameter in (self.mu_logit, self.log_epsilon) if parameter is not None]
        return average._replace(pooled=average.pooled + sum(0 * parameter for parameter in idle)) if idle else average

    def extra_repr(self) -> str:
        """Name what decides the result in `print(model)`."""
        parts = [f"{self.dim}", f"prototypes={self.prototypes.shape[0]}"]
        for name, parameter in (("mu", self.mu_logit), ("epsilon", self.log_epsilon)):
            value = torch.as_tensor(getattr(self, name)).item()
            parts.append(f"{name}={value:.3g}" + (" (learned)" if parameter is not None else ""))
        parts += [f"keys={self.key.out_features}"] if self.key is not None else []
        parts += [f"groups={self.groups}"] if self.groups > 1 else []
        if self.role != "foreground":
            parts.append(f"role={self.role}")
        return ", ".join(parts)
