"""Generalized mean pooling (GeM)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from gspool.functional.checks import computing_dtype
from gspool.functional.results import Pooled
from gspool.pooling.layer import PoolingLayer, as_token_mask, as_tokens

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

# Towards p = 0 the root 1/p blows rounding up: at 0.01 float32 still keeps five digits.
SMALLEST_POWER = 0.01


class GeMean(PoolingLayer):
    """Generalized mean pooling: ``((1/n) sum_j max(f_j, minimum)^p)^(1/p)``, each channel by itself.

    ``p = 1`` is the average, ``p -> infinity`` the maximum. From "Fine-tuning CNN image retrieval with no human
    annotation" (Radenovic et al., 2018), with the settings of the authors' reference implementation: ``p = 3``, one
    learned power for all channels, features clamped to 1e-6.

    Args:
        dim: number of channels.
        p: the power to start from.
        learn_p: whether ``p`` is a parameter (otherwise it is a buffer, and stays).
        per_channel: whether each channel has its own power.
        minimum: what smaller features are raised to; the power of a negative number is not real.

    Raises:
        ValueError: if the power is below 0.01 or not finite, or ``minimum`` is not positive.

    Example:
        >>> features = torch.tensor([[[1.0, 2.0], [3.0, 2.0]]])
        >>> GeMean(dim=2, p=1.0, learn_p=False)(features)
        tensor([[2., 2.]])
    """

    embedding = "after"
    p: Tensor

    def __init__(
        self,
        dim: int,
        p: float = 3.0,
        learn_p: bool = True,
        per_channel: bool = False,
        minimum: float = 1e-6,
    ) -> None:
        super().__init__(dim)
        if not minimum > 0:
            raise ValueError(f"minimum is what features are clamped to before the power and must be > 0, got {minimum}")
        self.minimum = minimum
        power = starting_power(p, dim if per_channel else None)
        if learn_p:
            self.p = nn.Parameter(power)
        else:
            self.register_buffer("p", power)

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Take the generalized mean of the real tokens, channel by channel."""
        tokens, token_mask = as_tokens(x, self.dim), as_token_mask(mask, x)
        return Pooled(generalized_mean(tokens, self.p, token_mask, self.minimum).to(x.dtype))

    def extra_repr(self) -> str:
        """Name size, power and who owns it in `print(model)`."""
        owner = "per channel" if self.p.ndim else "shared"
        return (
            f"{super().extra_repr()}, p={self.p.detach().mean().item():.3g} ({owner}), learn_p={self.p.requires_grad}"
        )


def starting_power(p: float, channels: int | None = None) -> Float[Tensor, "*C"]:
    """Make the tensor that holds the power: one number, or one a channel.

    Raises:
        ValueError: if the power is below 0.01 or not finite.
    """
    if not math.isfinite(p) or p < SMALLEST_POWER:
        raise ValueError(
            f"p is the power of a generalized mean and must be a finite number of at least {SMALLEST_POWER}, got {p}; "
            "p = 1 is the average (gap), and what a very large p tends to is the maximum (gmp)"
        )
    return torch.tensor(float(p)) if channels is None else torch.full((channels,), float(p))


def generalized_mean(
    tokens: Float[Tensor, "B N C"],
    power: Float[Tensor, "*C"],
    mask: Bool[Tensor, "B N"] | None = None,
    minimum: float = 1e-6,
) -> Float[Tensor, "B C"]:
    """Take the generalized mean of the real tokens, in logarithms and in float32 at least.

    ``exp((logsumexp_j(p log f_j) - log n) / p)``: logsumexp takes the maximum out first, so that no power overflows.
    """
    dtype = computing_dtype(tokens)
    # A learned power may wander to 0, where the mean has no root.
    power = power.to(dtype).clamp(min=SMALLEST_POWER)
    if mask is None:
        log_powers = power * tokens.to(dtype).clamp(min=minimum).log()
        # The logarithm of a tensor, not of a number, so that an exported graph takes maps of any size.
        log_count = log_powers.new_full((), tokens.shape[1]).log()
        return ((log_powers.logsumexp(1) - log_count) / power).exp()
    padding = ~mask.unsqueeze(2)
    # Padding may hold anything; ones keep its logarithm, and with it the gradient of the power, finite.
    log_powers = power * tokens.to(dtype).masked_fill(padding, 1.0).clamp(min=minimum).log()
    log_sum = log_powers.masked_fill(padding, float("-inf")).logsumexp(1)
    return ((log_sum - mask.sum(1, keepdim=True).to(dtype).log()) / power).exp()
