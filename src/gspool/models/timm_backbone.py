"""Any model of timm as a backbone: convolutional maps, channels-last maps, and tokens without class tokens."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from math import isqrt, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import timm
import torch
from timm.data import resolve_model_data_config
from timm.layers import resample_abs_pos_embed
from torch import nn

from gspool.models.backbone import Backbone, Features
from gspool.models.hub import cached_backbones, check_downloadable, ways_without
from gspool.models.pixels import Pixels
from gspool.models.weights import load_weights

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

# Options of timm that say where pretrained weights are.
OWN_SOURCES = {"cache_dir", "pretrained_cfg", "pretrained_cfg_overlay"}
OURS_TO_SET = ("num_classes", "in_chans", "features_only")


class FeatureForm(NamedTuple):
    """The form of a network's features: layout, width, and leading tokens that have no position.

    ``stride`` is the distance of two tokens in pixels, down and across; None if the tokens form no grid.
    """

    layout: str  # "NCHW", "NHWC" or "tokens"
    channels: int
    prefix: int = 0
    stride: tuple[float, float] | None = None

    def as_map(self, features: Tensor, size: tuple[int, int]) -> Float[Tensor, "B C h w"]:
        """Return features of an image of ``size`` as a map [B, C, h, w], or as tokens [B, N, C] if there is no grid."""
        if self.layout == "NCHW":
            return features
        if self.layout == "NHWC":
            return features.permute(0, 3, 1, 2)
        tokens = features[:, self.prefix :]
        grid = self._grid(size, tokens.shape[1])
        return tokens if grid is None else tokens.transpose(1, 2).unflatten(2, grid)

    def _grid(self, size: tuple[int, int], tokens: int) -> tuple[int, int] | None:
        if self.stride is None:
            return None
        # Networks either pad or cut an image that is no multiple of the stride.
        down, across = (_steps(n, step) for n, step in zip(size, self.stride, strict=True))
        return next(((h, w) for h in down for w in across if h * w == tokens), None)


def _steps(length: int, stride: float) -> tuple[int, int]:
    """Count strides, rounded down and up; whole numbers keep the size of an exported graph dynamic."""
    if float(stride).is_integer():
        return length // int(stride), -(-length // int(stride))
    return int(length // stride), int(-(-length // stride))


def form_of(network: nn.Module, shape: tuple[int, ...], size: tuple[int, int]) -> FeatureForm | None:
    """Find the form of features of ``shape`` for an image of ``size``; None if there is no map in them."""
    if len(shape) == 4:
        wide = getattr(network, "num_features", None)
        last = getattr(network, "output_fmt", None) == "NHWC" or (shape[3] == wide != shape[1])
        return FeatureForm("NHWC", shape[3]) if last else FeatureForm("NCHW", shape[1])
    if len(shape) != 3:
        return None
    prefix = getattr(network, "num_prefix_tokens", None)
    if prefix is None:
        # Older architectures do not state their number of class tokens: it is what exceeds a square.
        prefix = shape[1] - isqrt(shape[1]) ** 2 if size[0] == size[1] else 0
    tokens = shape[1] - prefix
    if tokens < 2:
        return None
    rows = round((tokens * size[0] / size[1]) ** 0.5)
    grid = (rows, tokens // rows)
    stride = (size[0] / grid[0], size[1] / grid[1]) if prod(grid) == tokens else None
    return FeatureForm("tokens", shape[2], prefix, stride)


class TimmBackbone(Backbone):
    """A model of timm without its global pooling; `features` also returns class and register tokens.

    Tokens that form a grid are returned as a map [B, C, h, w], others as [B, N, C]. What remains of the classifier (a
    norm or a wider convolution after the pooling) is removed, so that every parameter gets a gradient. A dry run on the
    meta device, without memory or arithmetic, finds all this when the backbone is created.

    Args:
        name: timm's name, with or without the tag of its weights.
        pretrained: download timm's weights, unless a file is given.
        weights: a file of weights under timm's names.
        layers: blocks of a vision transformer, ``[5, 11]`` or ``[-7, -1]``, whose tokens, after the final norm, are
            concatenated along the channels in the order of the network; by default the last block alone. Later blocks
            are removed.
        options: for `timm.create_model`, such as ``img_size`` and ``dynamic_img_size`` of a ViT.

    Raises:
        ValueError: if the name or an option does not fit, or the model has no feature map to pool.
        ConnectionError: if its weights cannot be downloaded.

    Example:
        >>> backbone = TimmBackbone("test_vit", img_size=64, dynamic_img_size=True, layers=[2, -1]).eval()
        >>> tuple(backbone(torch.zeros(1, 3, 64, 96)).shape)
        (1, 128, 4, 6)
    """

    def __init__(
        self,
        name: str,
        pretrained: bool = False,
        weights: str | Path | None = None,
        layers: Sequence[int] | None = None,
        **options: Any,
    ) -> None:
        _check(name, options)
        # A file holds every weight, so nothing is downloaded.
        downloads = pretrained and weights is None
        if downloads and not OWN_SOURCES & options.keys():
            check_downloadable(name)
        try:
            network = timm.create_model(name, pretrained=downloads, num_classes=0, **options)
        except TypeError as error:
            raise ValueError(f"timm/{name} does not take these options ({error}); got {options}") from error
        except OSError as error:
            if not downloads:
                raise
            raise ConnectionError(
                f"the weights of timm/{name} could not be downloaded ({' '.join(str(error).split()).rstrip('.')}). "
                f"{ways_without(cached_backbones())}"
            ) from error
        pixels = _pixels_of(network, options.get("img_size"))
        form, idle = _examine(name, options, pixels)
        # Indices of the blocks whose tokens are returned; None for the plain output of the network.
        blocks = None if layers is None else block_indices(name, network, form, layers)
        super().__init__(form.channels * (len(blocks) if blocks else 1), pixels)
        self.form = form
        self.blocks = blocks
        for part in idle:
            setattr(network, part, nn.Identity())
        self.network = network
        if weights is not None:
            classifier = timm.models.get_pretrained_cfg_value(name, "classifier") or ()
            names = (classifier,) if isinstance(classifier, str) else tuple(classifier)
            ignored = [f"{part}." for part in (*names, *idle)]
            load_weights(network, weights, ignored, partial(_fitted_positions, network))
        if blocks is not None:
            network.blocks = network.blocks[: blocks[-1] + 1]  # type: ignore[index]

    def forward(self, pixels: Float[Tensor, "B 3 H W"], all_tokens: bool = False) -> Any:
        """Compute the feature map before global pooling, or with ``all_tokens`` what `features` returns.

        Raises:
            ValueError: if the network was made for images of another size.
        """
        size = (pixels.shape[2], pixels.shape[3])
        patches = getattr(self.network, "patch_embed", None)
        expected = getattr(patches, "img_size", None)
        if getattr(patches, "strict_img_size", False) and expected is not None and tuple(expected) != size:
            raise ValueError(
                f"{type(self.network).__name__} takes images of {expected[0]} x {expected[1]} pixels, got "
                f"{size[0]} x {size[1]}; resize them with model.pixels.transform(), or create the backbone with "
                f"img_size={size} (a ViT also takes dynamic_img_size=True)"
            )
        raw = self._raw_features(pixels)
        found = self.form.as_map(raw, size)
        if not all_tokens:
            return found
        prefix = raw[:, : self.form.prefix] if self.form.layout == "tokens" else None
        classes = self.class_tokens
        return Features(
            found,
            prefix[:, 0] if prefix is not None and classes else None,
            prefix[:, classes:] if prefix is not None and prefix.shape[1] > classes else None,
        )

    def features(self, pixels: Float[Tensor, "B 3 H W"]) -> Features:
        """Compute the feature map, and class and register tokens apart from it.

        Raises:
            ValueError: if the network was made for images of another size.
        """
        found: Features = self(pixels, all_tokens=True)  # a call, because a compiled module compiles calls alone
        return found

    def _raw_features(self, pixels: Float[Tensor, "B 3 H W"]) -> Tensor:
        """Run the network; of several blocks the tokens, prefix first, are concatenated along the channels."""
        network: Any = self.network
        if self.blocks is None:
            return network.forward_features(pixels)
        taken = network.forward_intermediates(
            pixels,
            indices=list(self.blocks),
            return_prefix_tokens=True,
            norm=True,
            output_fmt="NLC",
            intermediates_only=True,
        )
        if self.form.prefix:
            taken = [torch.cat((prefix, tokens), dim=1) for tokens, prefix in taken]
        return torch.cat(taken, dim=-1)

    def parameter_blocks(self) -> list[list[str]]:
        """Return the names of the parameters by depth, as timm orders them: the stem first, the norm with the last."""
        network: Any = self.network
        groups = timm.models.group_parameters(network, network.group_matcher())
        return [[f"network.{name}" for name in groups[depth]] for depth in sorted(groups)]

    @property
    def class_tokens(self) -> int:
        """1 for a network with a class token, which timm puts first, else 0."""
        return int(self.form.prefix > 0 and getattr(self.network, "cls_token", None) is not None)


def has_class_token(name: str) -> bool:
    """Return whether a model of timm has a class token; it is built on the meta device, without memory."""
    _check(name, {})
    with torch.device("meta"):
        return getattr(timm.create_model(name, num_classes=0), "cls_token", None) is not None


def takes_option(name: str, option: str, value: Any) -> bool:
    """Return whether a model of timm takes an option; it is built on the meta device, without memory."""
    _check(name, {})
    for function in (TimmBackbone, timm.create_model):
        if option in inspect.signature(function).parameters and option != "layers":
            return True
    try:
        with torch.device("meta"):
            network = timm.create_model(name, num_classes=0, **({} if option == "layers" else {option: value}))
    except Exception as error:  # an option may not fit without the others, which is another error
        return "unexpected keyword argument" not in str(error)
    return option != "layers" or _returns_blocks(network)


def _returns_blocks(network: nn.Module) -> bool:
    """Return whether a network is a vision transformer that returns the tokens of any block."""
    takes = inspect.signature(getattr(network, "forward_intermediates", lambda: None)).parameters
    return "return_prefix_tokens" in takes and hasattr(network, "blocks")


def block_indices(name: str, network: nn.Module, form: FeatureForm, layers: Sequence[int]) -> tuple[int, ...]:
    """Return the indices of blocks of a vision transformer in increasing order, those from the end made positive."""
    if form.layout != "tokens" or not _returns_blocks(network):
        raise ValueError(
            f"layers are blocks of a vision transformer, such as timm/vit_small_patch14_dinov2, and timm/{name} is "
            "none; leave layers out"
        )
    count = len(network.blocks)  # type: ignore[arg-type]
    if not isinstance(layers, list | tuple) or not layers or not all(type(index) is int for index in layers):
        raise ValueError(f"layers is a list of block indices such as [{count // 2 - 1}, {count - 1}], got {layers!r}")
    wrong = [index for index in layers if not -count <= index < count]
    if wrong:
        raise ValueError(
            f"timm/{name} has {count} blocks, so layers lie from 0 to {count - 1}, or from -{count} to -1; got {wrong}"
        )
    found = sorted(index % count for index in layers)
    if len(set(found)) < len(found):
        raise ValueError(f"layers names a block twice: {list(layers)} are the blocks {found}")
    return tuple(found)


def _examine(name: str, options: dict[str, Any], pixels: Pixels) -> tuple[FeatureForm, set[str]]:
    """Run a model on the meta device, where shapes are computed and numbers are not.

    Returns the form of its features, and the names of its children that have parameters and do not affect them: the
    rest of a classifier.
    """
    with torch.device("meta"):
        probe: Any = timm.create_model(name, pretrained=False, num_classes=0, **options).eval()
    form = None
    try:
        features = probe.forward_features(torch.zeros(1, 3, *pixels.crop, device="meta"))
        if isinstance(features, torch.Tensor):
            form = form_of(probe, tuple(features.shape), pixels.crop)
            features.sum().backward()
    except RuntimeError as error:
        raise ValueError(
            f"timm/{name} cannot be examined on the meta device ({error}); wrap it in a Backbone"
        ) from error
    if form is None:
        raise ValueError(
            f"timm/{name} has no single feature map to pool: it returns class tokens alone or several maps. "
            "Choose another model, or wrap it in a gspool.models.Backbone of your own that selects one"
        )
    children = {part: list(child.parameters()) for part, child in probe.named_children()}
    return form, {part for part, own in children.items() if own and all(each.grad is None for each in own)}


def _check(name: str, options: dict[str, Any]) -> None:
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        near = get_close_matches(architecture, timm.list_models(), n=3)
        hint = f"; did you mean {' or '.join('timm/' + each for each in near)}?" if near else ""
        raise ValueError(f"timm {timm.__version__} has no model {architecture!r}{hint}")
    if tag and name not in timm.list_pretrained(f"{architecture}.*"):
        tags = ", ".join(each.partition(".")[2] for each in timm.list_pretrained(f"{architecture}.*")) or "none"
        raise ValueError(f"timm has no weights {tag!r} of {architecture}; it has {tags}")
    taken = [option for option in OURS_TO_SET if option in options]
    if taken:
        raise ValueError(
            f"{', '.join(taken)} cannot be set: a backbone is the model without classifier, on three channels"
        )


def _fitted_positions(network: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Interpolate position embeddings of a transformer that was trained at another image size, as timm does."""
    own, stored = getattr(network, "pos_embed", None), weights.get("pos_embed")
    patches = getattr(network, "patch_embed", None)
    if own is None or stored is None or stored.shape == own.shape or stored.shape[2:] != own.shape[2:]:
        return weights
    prefix = 0 if getattr(network, "no_embed_class", False) else getattr(network, "num_prefix_tokens", 1)
    size = list(patches.grid_size)  # type: ignore[union-attr]
    return {**weights, "pos_embed": resample_abs_pos_embed(stored.float(), size, num_prefix_tokens=prefix)}


def _pixels_of(network: nn.Module, img_size: int | tuple[int, int] | None) -> Pixels:
    """Read the preprocessing of these weights from timm."""
    data = resolve_model_data_config(network)
    height, width = data["input_size"][1:]
    if img_size is not None:
        height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
    return Pixels(
        mean=data["mean"],
        std=data["std"],
        size=height if height == width else (height, width),
        resize=int(max(height, width) / data["crop_pct"]),
        interpolation="bilinear" if data["interpolation"] == "bilinear" else "bicubic",
    )
