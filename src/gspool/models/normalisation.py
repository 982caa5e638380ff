"""Check images and normalise them for a backbone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from gspool.models.pixels import Pixels

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

# Resizing in floating point rounds; anything further outside [0, 1] is another scale, not rounding.
ROUNDING = 1e-3


class PixelNormalisation(nn.Module):
    """Convert RGB images, uint8 or floating in [0, 1], to the pixels that a backbone expects.

    It is a module, so that it moves and is exported with the model; it adds no keys to a checkpoint.

    Example:
        >>> images = torch.full((1, 3, 2, 2), 255, dtype=torch.uint8)
        >>> PixelNormalisation(Pixels(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)))(images).unique()
        tensor([1.])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, pixels: Pixels) -> None:
        super().__init__()
        self.pixels = pixels
        # The value of white, so that forward has one formula for both ranges.
        self.white = 255.0 if pixels.range == "0-255" else 1.0
        self.register_buffer("mean", torch.tensor(pixels.mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(pixels.std).view(3, 1, 1), persistent=False)

    def forward(self, images: Float[Tensor, "*B 3 H W"]) -> Float[Tensor, "*B 3 H W"]:
        """Scale, reorder, centre a batch or one image; in at least float32, then in the precision of the model."""
        precision = torch.promote_types(self.mean.dtype, torch.float32)
        scale = self.white if images.is_floating_point() else self.white / 255.0
        values = images.to(precision) * scale
        if self.pixels.channel_order == "BGR":
            values = values.flip(-3)
        return ((values - self.mean.to(precision)) / self.std.to(precision)).to(self.mean.dtype)

    def extra_repr(self) -> str:
        """Name the settings in `print(model)`."""
        return f"{self.pixels.channel_order} {self.pixels.range}, mean {self.pixels.mean}, std {self.pixels.std}"


def check_images(images: Float[Tensor, "B 3 H W"], normalised: bool = False) -> None:
    """Check a batch of RGB images, uint8 or floating in [0, 1], or of ``normalised`` pixels, floating.

    Shape and type are always checked. Values are checked on the CPU alone: a GPU would have to wait, and a compiled or
    exported graph cannot.

    Raises:
        ValueError: if ``images`` is not such a batch, with what is wrong and what to do.
    """
    if not isinstance(images, torch.Tensor):
        raise ValueError(
            f"images must be a torch.Tensor [B, 3, H, W], got {type(images).__name__}; "
            "turn PIL images into tensors with model.pixels.transform()"
        )
    if images.ndim != 4:
        hint = "; add the batch axis with images[None]" if images.ndim == 3 else ""
        raise ValueError(f"images must be a batch [B, 3, H, W], got shape {tuple(images.shape)}{hint}")
    if images.shape[1] != 3:
        hint = ""
        if images.shape[3] == 3:
            hint = "; the channels seem to be last, move them with images.permute(0, 3, 1, 2)"
        elif images.shape[1] == 1:
            hint = "; repeat the grey channel with images.expand(-1, 3, -1, -1)"
        raise ValueError(f"images must have the 3 channels of RGB on axis 1, got shape {tuple(images.shape)}{hint}")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise ValueError(f"images must be uint8 (0 to 255) or floating point in [0, 1], got {images.dtype}")
    if normalised and not images.is_floating_point():
        raise ValueError(
            f"this model was created with normalise=False and takes normalised pixels, floating, got {images.dtype}; "
            "use model.pixels.transform(normalise=True)"
        )
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return
    if images.numel() == 0:
        raise ValueError(f"images of shape {tuple(images.shape)} are empty: there is nothing to embed")
    if images.is_floating_point() and images.device.type == "cpu" and not normalised:
        low, high = (value.item() for value in images.detach().aminmax())
        # Written so that a NaN, which compares false with everything, is refused as well.
        if not (low >= -ROUNDING and high <= 1 + ROUNDING):
            raise ValueError(
                f"floating images must lie in [0, 1], got values from {low:.4g} to {high:.4g}; the model normalises "
                "by mean and standard deviation itself, so pass uint8 or images / 255, clamp the overshoot of a resize "
                "with images.clamp(0, 1), or create the model with normalise=False to pass normalised pixels"
            )
