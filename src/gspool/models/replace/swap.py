"""Swap the global pooling of a classifier for another pooling layer, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import nn

from gspool.models.replace.adapter import SwappedPooling
from gspool.models.replace.choice import choose, choose_class_token, choose_named
from gspool.models.replace.example import device_and_dtype, first_look
from gspool.models.replace.proof import put, right_place
from gspool.pooling.layer import PoolingLayer
from gspool.pooling.registry import create

if TYPE_CHECKING:
    from torch import Tensor

    from gspool.models.replace.observation import Reduction

Model = TypeVar("Model", bound=nn.Module)


def replace_pooling(
    model: Model,
    pooling: PoolingLayer | str,
    *,
    example: Tensor | None = None,
    where: str | None = None,
    tokens: Literal["patches"] | None = None,
    **options: Any,
) -> Model:
    """Put ``pooling`` in the place of the global pooling of a classifier, and keep everything else, weights included.

    The network runs on a few example images, in evaluation mode, and its global pooling is found by what it computes:
    the average or maximum after which nothing has positions any more. It may be a module or a bare ``x.mean((2, 3))``.
    The place is proved before it is used: with the old pooling put there, the network must give the same outputs. A
    network that pools by a module gets the layer instead of it, one that pools by a function gets it behind the module
    that gives the map. With ``mu=1`` GSP is average pooling, and the outputs of an averaging network stay the same.

    Args:
        model: a classifier of timm, of torchvision, or your own. It is changed in place. Compile it afterwards.
        pooling: the layer, or its name in `gspool.pooling.list`, then made for the right number of channels.
        example: images [B, 3, H, W] to run on, if the network does not take the size that it seems to ask for.
        where: path of the module to replace (``"head.global_pool"``), if the network does not tell by itself.
        tokens: ``"patches"`` to pool the patch tokens of a transformer that reads its class token. That is another
            model: its classifier knows class tokens, and has to be trained again.
        **options: options of the layer, if ``pooling`` is a name.

    Returns:
        The same model.

    Raises:
        ValueError: if the network has no global pooling or several, if the layer does not fit its channels or its
            classifier, or if the proof fails. The model is then as it was.

    Example:
        >>> from gspool.pooling.gsp import GSP
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
        >>> images = torch.rand(2, 3, 16, 16)
        >>> before = net(images)
        >>> after = replace_pooling(net, GSP(dim=8, mu=1))(images)
        >>> torch.allclose(before, after, atol=1e-6)
        True
    """
    _check_arguments(model, pooling, where, tokens, options)
    swapped = _swapped_before(model, where)
    if swapped is not None:
        layer = _fitting_layer(
            pooling, swapped.layer.dim, swapped.layer.out_dim, "the layer that was swapped in before", options
        )
        swapped.layer = layer.to(**device_and_dtype(model)).train(swapped.training)
        return model
    images, before = first_look(model, example, where)
    if tokens is not None:
        reduction = choose_class_token(before)
    elif where is not None:
        reduction = choose_named(model, before, where)
        _read_layout(reduction, pooling)
    else:
        reduction = choose(before)
    layer = _fitting_layer(
        pooling, reduction.channels, torch.Size(reduction.gives[1:]).numel(), str(reduction), options
    )
    place = right_place(model, images, before, reduction)
    put(model, images, before, place, layer.to(**device_and_dtype(model)))
    layer.train(model.training)
    return model


def _check_arguments(
    model: object, pooling: object, where: str | None, tokens: str | None, options: dict[str, Any]
) -> None:
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    compiled = hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None
    if compiled or isinstance(model, torch.jit.ScriptModule):
        raise ValueError(
            f"model is already compiled ({type(model).__name__}): replace its pooling first, compile it then"
        )
    if not isinstance(pooling, (PoolingLayer, str)):
        raise ValueError(
            f"pooling must be a pooling layer, GSP(dim=512) say, or a name such as 'gsp', got {type(pooling).__name__}"
        )
    if options and isinstance(pooling, PoolingLayer):
        raise ValueError(
            f"options {sorted(options)} go with the name of a layer; this {type(pooling).__name__} has its own"
        )
    if tokens not in (None, "patches"):
        raise ValueError(
            f"tokens can be 'patches' (pool them instead of reading the class token) or None, got {tokens!r}"
        )
    if tokens is not None and where is not None:
        raise ValueError(
            "where names a module to replace, tokens='patches' replaces the reading of the class token: give one"
        )


def _swapped_before(model: nn.Module, where: str | None) -> SwappedPooling | None:
    """Find a layer that was swapped in before: a second swap is simple."""
    swapped = {path: module for path, module in model.named_modules() if isinstance(module, SwappedPooling)}
    if where is not None:
        return swapped.get(where)
    if len(swapped) > 1:
        raise ValueError(
            f"pooling was replaced in {len(swapped)} places before: name one of {[*swapped]} with where=..."
        )
    return next(iter(swapped.values()), None)


def _read_layout(reduction: Reduction, pooling: PoolingLayer | str) -> None:
    """Let the layer tell the axis of the channels where the numbers do not: a named module may compute anything."""
    if reduction.kind == "unknown" and isinstance(pooling, PoolingLayer):
        last = reduction.takes[-1] == pooling.dim
        first = reduction.takes[1] == pooling.dim
        reduction.channels_last = last if last != first else reduction.channels_last


def _fitting_layer(
    pooling: PoolingLayer | str, dim: int, out_dim: int, found: str, options: dict[str, Any]
) -> PoolingLayer:
    """Make the layer if it came by name, and refuse one that does not fit."""
    layer = create(pooling, dim, **options) if isinstance(pooling, str) else pooling
    name = type(layer).__name__
    if layer.dim != dim:
        raise ValueError(
            f"{name} was made for {layer.dim} channels, but {dim} are pooled by {found}: make it with dim={dim}, "
            "or pass its name and let it be made"
        )
    if layer.out_dim != out_dim:
        raise ValueError(
            f"{name} gives vectors of {layer.out_dim} numbers, but the classifier reads {out_dim} from {found}. "
            f"Choose a layer or options that give {out_dim}, or build an embedding model, gspool.Embedder"
        )
    return layer
