"""The cost map of Sec. 4.1: Euclidean distance between norm-clipped tokens and prototypes, exact near zero.

The fast way to distances is one matrix product, ``|f - w|^2 = |f|^2 + |w|^2 - 2 f.w``, and it cancels: where a token
sits on a prototype, and k-center initialisation puts tokens there, float32 leaves 3e-4 instead of 0. So the nearest
prototype of every token is subtracted directly, and every prototype that the product cannot tell from the nearest
shares that distance, so that duplicates stay equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from gspool.functional.checks import check_tokens, computing_dtype, values_can_be_read

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

# Squared distances above this are as exact as their root can hold; below it the nearest one is computed directly.
CLOSE = 0.25


class Nearest(NamedTuple):
    """Each token's nearest prototype, by direct subtraction; both are empty where no token is close to any."""

    prototype: Int[Tensor, "B N"]
    distance: Float[Tensor, "B N"]


def distance(prototypes: Float[Tensor, "M D"], tokens: Float[Tensor, "B N D"]) -> Float[Tensor, "B M N"]:
    """Measure norm-clipped tokens against norm-clipped prototypes: ``c_ij = |clip(w_i) - clip(f_j)|`` (Sec. 4.1).

    The readable, differentiable way, by subtraction; it holds a B x M x N x D tensor and is meant for small problems
    and for tests. `gsp_pool` measures the same by matrix products. The gradient is 0 where a token equals a prototype.

    Raises:
        ValueError: if the shapes, types or devices do not fit.

    Example:
        >>> distance(torch.tensor([[1.0, 0.0]]), torch.tensor([[[2.0, 0.0], [0.0, 0.5]]]))
        tensor([[[0.0000, 1.1180]]])
    """
    check_tokens(tokens, prototypes)
    dtype = computing_dtype(tokens, prototypes)
    clipped = clip_norm(prototypes.to(dtype))[:, None, :] - clip_norm(tokens.to(dtype))[:, None, :, :]
    return torch.linalg.vector_norm(clipped, dim=-1)


def clip_scale(vectors: Float[Tensor, "*B D"]) -> Float[Tensor, "*B"]:
    """Give the factor ``1 / max(1, |u|)`` that clips a vector to the unit ball (Sec. 4.1)."""
    return torch.linalg.vector_norm(vectors, dim=-1).clamp_min(1).reciprocal()


def clip_norm(vectors: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
    """Clip vectors to the unit ball: ``u / max(1, |u|)`` (Sec. 4.1).

    Example:
        >>> clip_norm(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
        tensor([[0.6000, 0.8000],
                [0.3000, 0.4000]])
    """
    return vectors * clip_scale(vectors)[..., None]


def squared_by_product(
    tokens: Float[Tensor, "B N D"],
    scale: Float[Tensor, "B N"],
    squared_norm: Float[Tensor, "B N"],
    clipped: Float[Tensor, "M D"],
) -> Float[Tensor, "B N M"]:
    """Square the distances by one product of the raw tokens; their clip factor is applied to the small result."""
    product = torch.matmul(tokens, clipped.t())
    squared = torch.addcmul(clipped.square().sum(-1), product, -2 * scale[..., None])
    return squared.add_(squared_norm[..., None])


def find_nearest(
    squared: Float[Tensor, "B N M"],
    tokens: Float[Tensor, "B N D"],
    scale: Float[Tensor, "B N"],
    clipped: Float[Tensor, "M D"],
) -> Nearest:
    """Find each token's nearest prototype and its exact distance, unless nothing is near enough to need it.

    Looking whether anything is near is a shortcut of eager execution on the CPU; elsewhere the work is always done.
    """
    if values_can_be_read(squared) and bool(squared.amin() > CLOSE):
        return Nearest(torch.empty(0, dtype=torch.long), torch.empty(0, dtype=squared.dtype))
    index = squared.argmin(-1)
    return Nearest(index, torch.linalg.vector_norm(offsets(tokens, scale, clipped, index), dim=-1))


def offsets(
    tokens: Float[Tensor, "B N D"],
    scale: Float[Tensor, "B N"],
    clipped: Float[Tensor, "M D"],
    index: Int[Tensor, "B N"],
) -> Float[Tensor, "B N D"]:
    """Subtract from each clipped token the prototype of that index."""
    chosen = clipped.index_select(0, index.flatten()).unflatten(0, index.shape)
    return torch.addcmul(-chosen, tokens, scale[..., None])


def refined(squared: Float[Tensor, "B N M"], nearest: Nearest) -> Float[Tensor, "B N M"]:
    """Take the root, with the exact distance for the nearest prototype and all that the product cannot tell from it."""
    distances = squared.clamp_min(0).sqrt_()
    if nearest.prototype.numel() == 0:
        return distances
    rounding = 16 * torch.finfo(squared.dtype).eps
    tied = squared <= squared.amin(-1, keepdim=True) + rounding
    return torch.where(tied, nearest.distance[..., None], distances)
