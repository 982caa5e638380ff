"""T-SMK: smoothed local descriptors, weighted by the length of the features they came from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import avg_pool2d, linear

from gspool.functional.checks import computing_dtype
from gspool.functional.results import Pooled
from gspool.pooling.crow import scaled_to_one
from gspool.pooling.embedding import LocalEmbedding
from gspool.pooling.gap import token_average, uniform_weights
from gspool.pooling.layer import PoolingLayer, as_token_mask, as_tokens, check_plane

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class TSMK(PoolingLayer):
    """Trainable SMK: ``(1/n) sum_j |f_j| (A s_j + b)``, ``s`` the 3x3 average of the feature map around place j.

    From "Learning and aggregating deep local descriptors for instance-level recognition" (Tolias et al., 2020), as a
    pooling layer in the authors' reference implementation: no gradient flows through the lengths ``|f_j|``.

    ``weights`` are the lengths, scaled to sum to one; uniform where an image has no feature but zero.

    Args:
        dim: number of channels.
        out_dim: length of the embedding ``A s + b``; None leaves it out (``A = I``, ``b = 0``).
        kernel_size: side of the averaging window, odd; at the border it averages what lies inside the map.

    Raises:
        ValueError: if ``kernel_size`` is not odd and positive; at the call, for tokens, which have no neighbours.

    Example:
        >>> out = TSMK(dim=2, kernel_size=1).pool(torch.tensor([[[[3.0, 0.0]], [[4.0, 5.0]]]]))
        >>> out.weights, out.pooled
        (tensor([[0.5000, 0.5000]]), tensor([[ 7.5000, 22.5000]]))
    """

    embedding = "inside"

    def __init__(self, dim: int, out_dim: int | None = None, kernel_size: int = 3) -> None:
        super().__init__(dim, out_dim)
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(
                f"kernel_size is the side of a centred window and must be odd and positive, got {kernel_size}"
            )
        self.kernel_size = kernel_size
        self.embed = None if out_dim is None else LocalEmbedding(dim, out_dim, bias=True)

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Average the smoothed map, each real place weighted by the length of its feature."""
        tokens, token_mask = as_tokens(x, self.dim), as_token_mask(mask, x)
        check_plane(x, "T-SMK averages neighbouring places")
        dtype = computing_dtype(x)
        lengths = torch.linalg.vector_norm(tokens.detach(), dim=2, dtype=dtype)
        if token_mask is not None:
            lengths = lengths.masked_fill(~token_mask, 0.0)
        smoothed = as_tokens(self._smooth(x.to(dtype), token_mask), self.dim)
        pooled = token_average(lengths.unsqueeze(2) * smoothed, token_mask)
        if self.embed is not None:
            # The sum of A s + b is A times the sum, plus b times the sum of the lengths: one product instead of n.
            mean_length = token_average(lengths.unsqueeze(2), token_mask)
            pooled = linear(pooled, self.embed.weight.to(dtype)) + mean_length * self.embed.bias.to(dtype)
        return Pooled(pooled.to(x.dtype), weights=scaled_to_one(lengths, uniform_weights(tokens, token_mask)))

    def _smooth(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B N"] | None) -> Float[Tensor, "B C H W"]:
        if mask is None:
            return self._window_average(x, count_padding=False)
        real = mask.unflatten(1, x.shape[2:]).unsqueeze(1)
        inside = self._window_average(real.to(x.dtype), count_padding=True)
        total = self._window_average(x.masked_fill(~real, 0.0), count_padding=True)
        # A real place lies in its own window; elsewhere there may be nothing to divide by, and the value is not used.
        return total / inside.masked_fill(~real, 1.0)

    def _window_average(self, x: Float[Tensor, "B C H W"], count_padding: bool) -> Float[Tensor, "B C H W"]:
        size = self.kernel_size
        return avg_pool2d(x, size, stride=1, padding=size // 2, count_include_pad=count_padding)

    def extra_repr(self) -> str:
        """Name sizes and window in `print(model)`."""
        return f"{super().extra_repr()}, kernel_size={self.kernel_size}"
