"""The cost map of Sec. 4.1: Euclidean distance between norm-clipped tokens and prototypes, exact near zero.

The fast way to distances is one matrix product, ``|f - w|^2 = |f|^2 + |w|^2 - 2 f.w``, and it cancels: where a token
lies on a prototype, and k-center initialisation puts tokens there, float32 leaves 3e-4 instead of 0. So the distance
to the nearest prototype of every token is computed by subtraction, and every prototype that the product cannot
separate from the nearest shares that distance, so that duplicates stay equal.

What a product cannot resolve is relative to the lengths that were multiplied, so every tolerance here is too.
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
# Squared distances this many roundings apart are equal as far as a product can tell.
TIE_ROUNDINGS = 16
# Numbers beyond SAFE have squares that overflow; SHRINK brings them back; no vector may be longer than LONGEST, whose
# reciprocal is still a normal number.
SHRINK = {torch.float32: 2.0**-64, torch.float64: 2.0**-512}
LONGEST = {torch.float32: 2.0**125, torch.float64: 2.0**1021}


class Nearest(NamedTuple):
    """Tokens that may be close to a prototype, the nearest one of each, and its distance by subtraction.

    ``rows`` counts tokens through the batch, in order. Where values cannot be read, it lists all of them.
    """

    rows: Int[Tensor, K]
    prototype: Int[Tensor, K]
    distance: Float[Tensor, K]

    def take(self, values: Float[Tensor, "B N ..."]) -> Float[Tensor, "K ..."]:
        """Return what belongs to these tokens; a view where that is all."""
        flat = values.flatten(0, 1)
        return flat if self.has_all(values) else flat.index_select(0, self.rows)

    def put(self, values: Float[Tensor, "B N ..."], new: Float[Tensor, "K ..."]) -> Float[Tensor, "B N ..."]:
        """Replace what belongs to these tokens, in place where that is not all."""
        if self.has_all(values):
            return new.view_as(values)
        return values.flatten(0, 1).index_put_((self.rows,), new).view_as(values)

    def add(self, values: Float[Tensor, "B N ..."], more: Float[Tensor, "K ..."]) -> Float[Tensor, "B N ..."]:
        """Add to what belongs to these tokens, in place where that is not all."""
        if self.has_all(values):
            return values + more.view_as(values)
        return values.flatten(0, 1).index_add_(0, self.rows, more).view_as(values)

    def has_all(self, values: Float[Tensor, "B N ..."]) -> bool:
        """Return whether all tokens are listed."""
        return self.rows.shape[0] == values.shape[0] * values.shape[1]


def distance(prototypes: Float[Tensor, "M D"], tokens: Float[Tensor, "B N D"]) -> Float[Tensor, "B M N"]:
    """Compute the distances of norm-clipped tokens and prototypes: ``c_ij = |clip(w_i) - clip(f_j)|`` (Sec. 4.1).

    The readable, differentiable way, by subtraction; it holds a B x M x N x D tensor and is meant for small problems
    and for tests. `gsp_pool` computes the same by matrix products. The gradient is 0 where a token equals a prototype.

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


def vector_length(vectors: Float[Tensor, "*B D"]) -> Float[Tensor, "*B"]:
    """Return ``|u|``, also where the squares overflow: in float32, those of numbers above 1e19.

    Raises:
        ValueError: for finite vectors so long that ``1 / |u|`` is not a normal number, where values can be read.
    """
    length = torch.linalg.vector_norm(vectors, dim=-1)
    eager = values_can_be_read(vectors)
    if eager and not bool(torch.isinf(length).any()):
        return length
    shrink, longest = SHRINK.get(vectors.dtype, 1.0), LONGEST.get(vectors.dtype, float("inf"))
    length = torch.where(torch.isinf(length), torch.linalg.vector_norm(vectors * shrink, dim=-1) / shrink, length)
    if eager and bool(((length > longest) & torch.isfinite(vectors).all(-1)).any()):
        raise ValueError(
            f"a token or prototype is longer than {longest:.0e}, the most that {vectors.dtype} can compute with; "
            "look for the layer that produced it, or normalise the features"
        )
    return length


def clip_scale(vectors: Float[Tensor, "*B D"]) -> Float[Tensor, "*B"]:
    """Return the factor ``1 / max(1, |u|)`` that clips a vector to the unit ball (Sec. 4.1)."""
    return vector_length(vectors).clamp_min(1).reciprocal()


def clip_norm(vectors: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
    """Clip vectors to the unit ball: ``u / max(1, |u|)`` (Sec. 4.1).

    Example:
        >>> clip_norm(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
        tensor([[0.6000, 0.8000],
                [0.3000, 0.4000]])
    """
    return vectors / vector_length(vectors).clamp_min(1)[..., None]


def distances_by_product(
    tokens: Float[Tensor, "B N D"], prototypes: Float[Tensor, "M D"]
) -> tuple[Float[Tensor, "B N M"], Float[Tensor, "B N"], Nearest]:
    """Compute the distances by one product and the smallest by subtraction; return them, the tokens' norms, and which.

    Values alone: `gspool.functional.pool_gradient.through_distance` is their gradient.
    """
    norm = vector_length(tokens)
    scale, clipped = norm.clamp_min(1).reciprocal(), clip_norm(prototypes)
    squared = squared_by_product(tokens, scale, norm.clamp_max(1).square(), clipped)
    nearest = find_nearest(squared, tokens, scale, clipped)
    return refined(squared, nearest, norm), norm, nearest


def squared_by_product(
    tokens: Float[Tensor, "B N D"],
    scale: Float[Tensor, "B N"],
    squared_norm: Float[Tensor, "B N"],
    clipped: Float[Tensor, "M D"],
) -> Float[Tensor, "B N M"]:
    """Square the distances by one product of the raw tokens; their clip factor is applied to the small result."""
    # In place: on the CPU, fresh memory for every step costs more than the arithmetic.
    product = torch.matmul(tokens, clipped.t()).mul_(-2 * scale[..., None])
    return product.add_(clipped.square().sum(-1)).add_(squared_norm[..., None])


def find_nearest(
    squared: Float[Tensor, "B N M"],
    tokens: Float[Tensor, "B N D"],
    scale: Float[Tensor, "B N"],
    clipped: Float[Tensor, "M D"],
) -> Nearest:
    """Find the nearest prototype and its exact distance for every token that is close enough to need it.

    Finding these tokens is a shortcut of eager execution on the CPU; elsewhere the work is done for all.
    """
    flat = squared.flatten(0, 1)
    if not values_can_be_read(squared):
        rows = torch.arange(flat.shape[0], device=squared.device)
    elif flat.shape[0] == 0:
        rows = torch.empty(0, dtype=torch.long)
    else:
        rows = (flat.amin(-1) < CLOSE).nonzero()[:, 0]
    nearest = Nearest(rows, rows, rows)
    prototype = nearest.take(squared).argmin(-1)
    nearest = nearest._replace(prototype=prototype)
    return nearest._replace(distance=torch.linalg.vector_norm(offsets(tokens, scale, clipped, nearest), dim=-1))


def offsets(
    tokens: Float[Tensor, "B N D"], scale: Float[Tensor, "B N"], clipped: Float[Tensor, "M D"], nearest: Nearest
) -> Float[Tensor, "K D"]:
    """Subtract from each clipped token its nearest prototype."""
    chosen = clipped.index_select(0, nearest.prototype)
    return torch.addcmul(-chosen, nearest.take(tokens), nearest.take(scale)[:, None])


def size_of_pair(norm: Float[Tensor, "B N"], nearest: Nearest) -> Float[Tensor, K]:
    """Return the length to which rounding is relative: that of the clipped token or of its offset, the larger one."""
    return torch.maximum(nearest.take(norm).clamp_max(1), nearest.distance)


def refined(squared: Float[Tensor, "B N M"], nearest: Nearest, norm: Float[Tensor, "B N"]) -> Float[Tensor, "B N M"]:
    """Take the root in place; the nearest prototype, and all that a product cannot separate from it, get the exact one.

    ``norm`` is that of the raw tokens.
    """
    close = nearest.take(squared)
    rounding = TIE_ROUNDINGS * torch.finfo(squared.dtype).eps * size_of_pair(norm, nearest).square()
    tied = close <= (close.amin(-1) + rounding)[:, None]
    distances = squared.clamp_min_(0).sqrt_()
    return nearest.put(distances, torch.where(tied, nearest.distance[:, None], nearest.take(distances)))
