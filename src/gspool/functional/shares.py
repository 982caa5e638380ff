"""From the threshold to shares: what each token gives, what it keeps, and the derivative of both.

A token's *position* is ``tau + l_j``: how far above the threshold of its image it lies, in logits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import logsigmoid

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class Shares(NamedTuple):
    """Of each token's own mass: the part that is transported and the part that stays; both 0 for a padded token."""

    given: Float[Tensor, "*B N"]
    kept: Float[Tensor, "*B N"]


def shares(position: Float[Tensor, "*B N"], mask: Bool[Tensor, "*B N"] | None) -> Shares:
    """Return ``a_j = sigmoid(position_j)`` and its complement, each by its own sigmoid so that neither loses digits."""
    given, kept = torch.sigmoid(position), torch.sigmoid(-position)
    if mask is not None:
        given, kept = given.masked_fill(~mask, 0), kept.masked_fill(~mask, 0)
    return Shares(given, kept)


def normalised(masses: Float[Tensor, "*B N"]) -> Float[Tensor, "*B N"]:
    """Divide masses by their sum; an image without any stays at zero."""
    return masses / masses.sum(-1, keepdim=True).clamp_min(torch.finfo(masses.dtype).tiny)


class ShareGradient(NamedTuple):
    """Gradient of the loss with respect to the log-affinities, and the mean gradient, which the root passes to mu."""

    log_affinity: Float[Tensor, "*B N"]
    mean: Float[Tensor, "*B"]


def share_gradient(
    gradient: Float[Tensor, "*B N"],
    position: Float[Tensor, "*B N"],
    total: Float[Tensor, "*B"],
    mask: Bool[Tensor, "*B N"] | None,
) -> ShareGradient:
    """Differentiate the root (Prop. 4.3, corrected): ``dL/dl_j = v_j (g_j - sum v g / sum v)``, ``v = a (1 - a)``.

    ``gradient`` is ``u_j = total g_j``, the gradient of the loss with respect to ``a_j / total``: with the total mass
    for ``total``, ``v_j / total`` is at most 1 and nothing overflows, however small mu is. The normalised ``v`` is a
    softmax of ``log v``, because every ``v`` may underflow at once: far from the threshold at large epsilon, and
    everywhere as mu -> 1, where the ratio still has a limit.
    """
    log_slope = logsigmoid(position) + logsigmoid(-position)
    if mask is not None:
        # A finite floor: an image without a real token must give 0, and a softmax of nothing but -inf gives NaN.
        log_slope = log_slope.masked_fill(~mask, torch.finfo(position.dtype).min)
        gradient = gradient.masked_fill(~mask, 0)
    mean = (torch.softmax(log_slope, dim=-1) * gradient).sum(-1)
    slope = (log_slope - total.log()[..., None]).exp()
    return ShareGradient(slope * (gradient - mean[..., None]), mean)


def token_count(like: Float[Tensor, "*B N"], mask: Bool[Tensor, "*B N"] | None) -> Float[Tensor, "*B"]:
    """Count the tokens that hold mass, for each image."""
    if mask is None:
        return torch.full(like.shape[:-1], like.shape[-1], dtype=like.dtype, device=like.device)
    return mask.sum(-1).to(like.dtype)
