"""The preprocessing that a backbone expects, stored with its weights, and its images checked and normalised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import nn

if TYPE_CHECKING:
    from jaxtyping import Float
    from PIL.Image import Image
    from torch import Tensor

    from gspool.data.decode import Interpolation

ChannelOrder = Literal["RGB", "BGR"]
PixelRange = Literal["0-1", "0-255"]

# Limits of what a network can be fed: pixels, once normalised, must stay far from the end of float32.
LARGEST_PIXEL = 1_000_000
SMALLEST_DEVIATION = 1e-6
LARGEST_SIDE = 4_096
# Resizing in floating point rounds; anything further outside [0, 1] is another scale, not rounding.
ROUNDING = 1e-3


@dataclass(frozen=True)
class Pixels:
    """The preprocessing that the weights of a backbone were trained with.

    A network sees ``(white * image - mean) / std``, where ``white`` is 1 or 255 by ``range`` and the channels, those of
    ``mean`` and ``std`` included, are in ``channel_order``. For evaluation the shorter side becomes ``resize``, and
    ``size`` pixels (or height and width) are cropped from the middle (Supp. 1.6: 256 and 227).

    Raises:
        ValueError: if a field has the wrong type or range: three channels, positive deviations, sizes up to 4,096.

    Example:
        >>> caffe = Pixels(mean=(104, 117, 128), std=(1, 1, 1), channel_order="BGR", range="0-255", size=227)
        >>> caffe.changed({"size": 224}).size
        224
    """

    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    channel_order: ChannelOrder = "RGB"
    range: PixelRange = "0-1"
    size: int | tuple[int, int] = 224
    resize: int = 256
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            values = getattr(self, name)
            if not isinstance(values, tuple | list) or len(values) != 3:
                raise ValueError(f"Pixels.{name} needs one number per channel, three in all, got {values!r}")
            # Written so that a NaN is refused as well; a boolean is no number here.
            if not all(_is_number(value) and abs(value) <= LARGEST_PIXEL for value in values):
                raise ValueError(f"Pixels.{name} must be numbers of at most {LARGEST_PIXEL:,} in size, got {values!r}")
            # JSON has lists and whole numbers: one form, so that equal settings compare equal.
            object.__setattr__(self, name, tuple(float(value) for value in values))
        if min(self.std) < SMALLEST_DEVIATION:
            raise ValueError(
                f"Pixels.std divides the pixels and must be positive, at least {SMALLEST_DEVIATION}, got {self.std}"
            )
        kinds = {"channel_order": ChannelOrder, "range": PixelRange, "interpolation": Literal["bilinear", "bicubic"]}
        for name, kind in kinds.items():
            if getattr(self, name) not in (allowed := get_args(kind)):
                raise ValueError(f"Pixels.{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if isinstance(self.size, list):
            object.__setattr__(self, "size", tuple(self.size))
        for name, lengths in (("size", self.crop), ("resize", (self.resize, self.resize))):
            if len(lengths) != 2 or not all(type(length) is int and 0 < length <= LARGEST_SIDE for length in lengths):
                raise ValueError(
                    f"Pixels.{name} is a length in pixels and must be positive, at most {LARGEST_SIDE}, "
                    f"got {getattr(self, name)!r}"
                )
        if self.resize < max(self.crop):
            raise ValueError(
                f"the crop (size {self.size}) does not fit into the resized image (resize {self.resize}); "
                "set both, with resize at least as large as size"
            )

    @property
    def crop(self) -> tuple[int, int]:
        """Height and width of an image as the network sees it."""
        return self.size if isinstance(self.size, tuple) else (self.size, self.size)

    def changed(self, changes: Mapping[str, Any]) -> Pixels:
        """Return the same settings with some fields changed.

        Raises:
            ValueError: if a name is not a field of Pixels, or its value is not of its kind.
        """
        known = [field.name for field in fields(self)]
        unknown = sorted(set(changes) - set(known))
        if unknown:
            raise ValueError(f"Pixels has no field {', '.join(map(repr, unknown))}; its fields are {', '.join(known)}")
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain lists, numbers and words, for a config file."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def transform(self, normalise: bool = False) -> Callable[[Image], Tensor]:
        """Return the evaluation transform for PIL images: upright RGB, resize, centre crop, uint8 [3, size, size].

        An `Embedder` normalises inside, so the default stops at uint8; ``normalise=True`` also normalises, for a bare
        backbone.

        Example:
            >>> from PIL import Image
            >>> picture = Image.new("L", (300, 400))
            >>> image = Pixels(size=227).transform()(picture)
            >>> image.dtype, tuple(image.shape)
            (torch.uint8, (3, 227, 227))
        """
        # torchvision takes a second to import, and a model that takes tensors never needs it.
        from torchvision.transforms import InterpolationMode, v2

        steps: list[Callable[..., Any]] = [
            _in_rgb,
            v2.Resize(self.resize, interpolation=InterpolationMode(self.interpolation), antialias=True),
            v2.CenterCrop(self.crop),
            v2.ToImage(),
            v2.ToPureTensor(),
        ]
        if normalise:
            steps.append(PixelNormalisation(self))
        return v2.Compose(steps)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _in_rgb(image: Any) -> Any:
    """Convert a PIL image of any mode to upright RGB, as files are read; tensors are assumed to be RGB."""
    if isinstance(image, torch.Tensor):
        return image
    from PIL import ImageOps

    from gspool.data.decode import as_rgb

    return as_rgb(ImageOps.exif_transpose(image))


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
