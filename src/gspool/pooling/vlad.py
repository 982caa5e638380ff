"""NetVLAD: what is left of the tokens beside the prototype that they belong to, one direction for each prototype."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from gspool.functional.checks import computing_dtype, full_precision
from gspool.functional.results import Pooled
from gspool.pooling.dictionary import dictionary_size
from gspool.pooling.gap import token_average
from gspool.pooling.layer import PoolingLayer, real_tokens

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class NetVLAD(PoolingLayer):
    """Residuals of the tokens, summed by soft assignment to learned prototypes (Arandjelović et al., CVPR 2016).

    ``y = [v_1 / |v_1|, ..., v_m / |v_m|]`` with ``v_i = sum_j a_ij (f_j - w_i)``, where the tokens ``f_j`` are embedded
    to ``token_dim`` channels first and assigned by ``a_ij = softmax_i(u_i . f_j + b_i)``.

    Every row is of unit length, so the vector is of length ``sqrt(m)``; ``attributes`` are the mean assignments. The
    paper compares 8 prototypes of 16 channels (the default, 128 numbers) and 64 of 128 (8,192 numbers); the settings
    are those of the authors' reference implementation: assignments have weights of their own, apart from the
    prototypes, and both start at random.

    Args:
        dim: number of feature channels.
        out_dim: length of the vector; ``prototypes * token_dim`` where it is not given.
        prototypes: number of rows.
        token_dim: channels of the embedded tokens; ``out_dim // prototypes``, or 16 where that is not given either.

    Raises:
        ValueError: if the sizes do not fit each other, or, when called, if the features do not fit ``dim``.

    Example:
        >>> out = NetVLAD(64, prototypes=8, token_dim=16).pool(torch.randn(2, 64, 7, 7))
        >>> out.pooled.shape, out.attributes.shape
        (torch.Size([2, 128]), torch.Size([2, 8]))
    """

    embedding = "inside"

    def __init__(self, dim: int, out_dim: int | None = None, prototypes: int = 8, token_dim: int | None = None) -> None:
        size = dictionary_size(prototypes, token_dim, out_dim)
        super().__init__(dim, size.out_dim)
        self.embed = nn.Linear(dim, size.token_dim, bias=False)
        self.assign = nn.Linear(size.token_dim, size.prototypes)
        self.prototypes = nn.Parameter(torch.empty(size.prototypes, size.token_dim))
        for weight in (self.embed.weight, self.assign.weight, self.prototypes):
            nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.assign.bias)

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Assign, collect the residuals, bring every row to unit length."""
        tokens, valid = real_tokens(x, mask, self.dim)
        embedded = self.embed(tokens.to(self.embed.weight.dtype))
        precise = computing_dtype(x)
        log_assignment = self.assign(embedded).to(precise).log_softmax(2)
        with full_precision(x):
            rows = unit_residuals(embedded.to(precise), log_assignment, self.prototypes.to(precise), valid)
        return Pooled(rows.flatten(1).to(x.dtype), attributes=token_average(log_assignment.exp(), valid))

    def extra_repr(self) -> str:
        """Name the sizes."""
        prototypes, token_dim = self.prototypes.shape
        return f"{super().extra_repr()} ({prototypes} x {token_dim})"


def unit_residuals(
    tokens: Float[Tensor, "B N D"],
    log_assignment: Float[Tensor, "B N M"],
    prototypes: Float[Tensor, "M D"],
    mask: Bool[Tensor, "B N"] | None,
) -> Float[Tensor, "B M D"]:
    """Directions of the summed residuals.

    The length of a row goes anyway, so each row is divided by the mass that its prototype received: what remains is
    the mean of its tokens minus the prototype. A prototype that every token shuns keeps its direction this way, where
    a sum of vanishing terms would have none.
    """
    if mask is not None:
        log_assignment = log_assignment.masked_fill(~mask[..., None], -torch.inf)
    centres = log_assignment.softmax(1).transpose(1, 2) @ tokens
    return F.normalize(centres - prototypes, dim=2)
