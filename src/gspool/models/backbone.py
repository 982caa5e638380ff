"""The interface of every backbone: pixels in, feature map out."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import nn

from gspool.models.pixels import Pixels

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class Features(NamedTuple):
    """What a backbone computes: the feature map, and the tokens of a transformer that have no place in it."""

    map: Float[Tensor, "B C h w"]
    class_token: Float[Tensor, "B C"] | None = None
    registers: Float[Tensor, "B R C"] | None = None


class Backbone(nn.Module):
    """A network without its global pooling (Sec. 4.4): normalised pixels to a feature map.

    ``channels`` is the width of the map and ``pixels`` the preprocessing of the weights. A backbone of your own
    is a subclass with a `forward`; pass an instance of it to `Embedder`.

    Example:
        >>> import torch
        >>> class Stripes(Backbone):
        ...     def __init__(self):
        ...         super().__init__(channels=8, pixels=Pixels(size=32, resize=32))
        ...         self.convolution = nn.Conv2d(3, 8, 4, stride=4)
        ...
        ...     def forward(self, pixels):
        ...         return self.convolution(pixels)
        >>> Stripes()(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 8, 8, 8])
    """

    def __init__(self, channels: int, pixels: Pixels) -> None:
        super().__init__()
        if not isinstance(channels, int) or channels < 1:
            raise ValueError(
                f"channels is the width of the feature map and must be a positive integer, got {channels!r}"
            )
        self.channels = channels
        self.pixels = pixels

    def forward(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C h w"]:
        """Compute the feature map; every backbone has its own."""
        raise NotImplementedError(f"{type(self).__name__} has no `forward`; write one that computes the feature map")

    def features(self, pixels: Float[Tensor, "B 3 H W"]) -> Features:
        """Compute the feature map and, where the network has them, class and register tokens."""
        return Features(self(pixels))

    def parameter_blocks(self) -> list[list[str]]:
        """Return the names of the parameters by depth, the stem first, for ``freeze="all-but-N"``.

        Raises:
            ValueError: if this backbone has no such order; define this method in a backbone of your own.
        """
        raise ValueError(f"{type(self).__name__} has no blocks to freeze one by one; use none, batchnorm or all")
