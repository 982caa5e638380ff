"""OTP: balanced transport hands every prototype the same share of the image."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from gspool.functional.checks import computing_dtype, full_precision
from gspool.functional.cost import clip_norm
from gspool.functional.results import Pooled
from gspool.pooling.dictionary import dictionary_size
from gspool.pooling.layer import PoolingLayer, real_tokens

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class OTP(PoolingLayer):
    """Optimal-transport aggregation: one barycentre of the tokens for each prototype (P4 in the supplement).

    ``y = sqrt(m) [sum_j plan_1j f_j, ..., sum_j plan_mj f_j]``, where the tokens ``f_j`` are embedded to ``token_dim``
    channels first and the plan is that of `balanced_transport` for the distances between norm-clipped prototypes and
    norm-clipped tokens.

    The blocks add up to ``sqrt(m)`` times the average of the tokens: nothing is left out, which is what tells OTP from
    GSP. ``attributes`` are the masses that the prototypes received, ``1/m`` each but for what the unrolled iterations
    leave open; they say little about the image. There are no ``weights``: every token gives ``1/n``.

    The paper compares 8 prototypes of 16 channels (the default, 128 numbers) and 64 of 128 (8,192 numbers), with
    ``epsilon = 2`` and 10 iterations in the authors' reference implementation.

    Args:
        dim: number of feature channels.
        out_dim: length of the vector; ``prototypes * token_dim`` where it is not given.
        prototypes: number of blocks.
        token_dim: channels of the embedded tokens; ``out_dim // prototypes``, or 16 where that is not given either.
        epsilon: sharpness of the plan, positive; it multiplies the cost.
        iterations: unrolled Sinkhorn steps; gradients pass through all of them.

    Raises:
        ValueError: if sizes do not fit each other or an option is out of range, or, when called, if the features do not
            fit ``dim``.

    Example:
        >>> OTP(64, prototypes=8, token_dim=16)(torch.randn(2, 64, 7, 7)).shape
        torch.Size([2, 128])
    """

    embedding = "inside"

    def __init__(
        self,
        dim: int,
        out_dim: int | None = None,
        prototypes: int = 8,
        token_dim: int | None = None,
        epsilon: float = 2.0,
        iterations: int = 10,
    ) -> None:
        size = dictionary_size(prototypes, token_dim, out_dim)
        super().__init__(dim, size.out_dim)
        if not (math.isfinite(epsilon) and epsilon > 0):
            raise ValueError(f"epsilon multiplies the cost (larger is sharper) and must be > 0, got {epsilon!r}")
        if not isinstance(iterations, int) or iterations < 1:
            raise ValueError(
                f"iterations is the number of Sinkhorn steps and must be a positive integer, got {iterations!r}"
            )
        self.epsilon = epsilon
        self.iterations = iterations
        self.embed = nn.Linear(dim, size.token_dim, bias=False)
        self.prototypes = nn.Parameter(torch.empty(size.prototypes, size.token_dim))
        for weight in (self.embed.weight, self.prototypes):
            nn.init.xavier_uniform_(weight)

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Embed the tokens, transport them, collect them at the prototypes."""
        tokens, valid = real_tokens(x, mask, self.dim)
        embedded = self.embed(tokens.to(self.embed.weight.dtype)).to(computing_dtype(x))
        prototypes = self.prototypes.to(embedded.dtype)
        with full_precision(x):
            # Direct differences: the way through a matrix product cancels where a token sits on a prototype.
            cost = torch.cdist(clip_norm(prototypes), clip_norm(embedded), compute_mode="donot_use_mm_for_euclid_dist")
            plan = balanced_transport(cost, self.epsilon, self.iterations, valid)
            blocks = math.sqrt(len(prototypes)) * (plan @ embedded)
        return Pooled(blocks.flatten(1).to(x.dtype), attributes=plan.sum(2))

    def extra_repr(self) -> str:
        """Name the sizes and the settings of the transport."""
        prototypes, token_dim = self.prototypes.shape
        sizes = f"{super().extra_repr()} ({prototypes} x {token_dim})"
        return f"{sizes}, epsilon={self.epsilon}, iterations={self.iterations}"


def balanced_transport(
    cost: Float[Tensor, "B M N"], epsilon: float, iterations: int, mask: Bool[Tensor, "B N"] | None = None
) -> Float[Tensor, "B M N"]:
    """Carry the mass of ``n`` tokens to ``m`` prototypes, uniform on both sides, at the least smoothed cost (P4).

    Minimises ``sum_ij c_ij plan_ij + (1/epsilon) sum_ij plan_ij log plan_ij`` with ``sum_i plan_ij = 1/n`` and
    ``sum_j plan_ij = 1/m`` by Sinkhorn's iteration, in logarithms. The step for the tokens comes last: their marginal
    is exact, that of the prototypes as close as the iterations have brought it.

    Example:
        >>> plan = balanced_transport(torch.rand(1, 4, 6), epsilon=2.0, iterations=100)
        >>> torch.allclose(plan.sum(1), torch.tensor(1 / 6)), torch.allclose(plan.sum(2), torch.tensor(1 / 4))
        (True, True)
    """
    logits = -epsilon * cost
    if mask is None:
        # A tensor, not a number: the logarithm of a number would tie an exported graph to one size of the map.
        log_mass = -logits.new_full((1, 1), cost.shape[2]).log()
    else:
        log_mass = -mask.sum(1, keepdim=True).to(logits.dtype).log()
        log_mass = log_mass.expand(mask.shape).masked_fill(~mask, -torch.inf)
    log_share = -math.log(cost.shape[1])
    of_token = log_mass - torch.logsumexp(logits, 1)
    for _ in range(iterations):
        of_prototype = log_share - torch.logsumexp(logits + of_token[:, None], 2)
        of_token = log_mass - torch.logsumexp(logits + of_prototype[:, :, None], 1)
    return torch.exp(logits + of_prototype[:, :, None] + of_token[:, None])
