"""Named results of the mathematics, so that no caller needs to know which row of a tensor is what."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class Transport(NamedTuple):
    """The solution of (P1) or (P2): what is left behind and what is carried to which prototype.

    Every valid token starts with mass ``1 / n``; ``residual + plan.sum(-2)`` gives it back; ``plan`` sums to ``mu``.
    """

    residual: Float[Tensor, "*B N"]
    plan: Float[Tensor, "*B M N"]


class Pooled(NamedTuple):
    """One vector an image, and how it came about.

    ``weights`` (sum 1 over the tokens) and ``attributes`` (sum 1 over the prototypes) are None for a pooling layer that
    has no such thing, a maximum for example.
    """

    pooled: Float[Tensor, "B D"]
    weights: Float[Tensor, "B N"] | None = None
    attributes: Float[Tensor, "B M"] | None = None


class Incoming(NamedTuple):
    """Gradients of the loss with respect to the three outputs; None for one that the loss does not look at."""

    pooled: Float[Tensor, "B D"] | None
    weights: Float[Tensor, "B N"] | None
    attributes: Float[Tensor, "B M"] | None


class Wanted(NamedTuple):
    """Which inputs need a gradient; frozen tokens, whose gradient costs more than all others together, do not."""

    tokens: bool
    prototypes: bool
    mu: bool = False
    epsilon: bool = False


class PoolGradient(NamedTuple):
    """Gradients of the loss with respect to the four differentiable inputs; None where not wanted."""

    tokens: Float[Tensor, "B N D"] | None
    prototypes: Float[Tensor, "M D"] | None
    mu: Float[Tensor, B] | None
    epsilon: Float[Tensor, ""] | None
