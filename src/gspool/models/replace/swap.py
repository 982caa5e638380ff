"""Replace the global pooling of a classifier by another pooling layer, in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import nn

from gspool.models.replace.choose import choose, choose_class_token, choose_named
from gspool.models.replace.observe import Inputs
from gspool.models.replace.place import ADDED_NAME, SwappedPooling, check_signs, put, right_place, run_watched
from gspool.pooling.layer import PoolingLayer
from gspool.pooling.registry import create

if TYPE_CHECKING:
    from torch import Tensor

    from gspool.models.replace.observe import Observation, Reduction

USUAL_SIZE = 224

Model = TypeVar("Model", bound=nn.Module)


def replace_pooling(
    model: Model,
    pooling: PoolingLayer | str,
    *,
    example: Tensor | Sequence[Any] | Mapping[str, Any] | None = None,
    where: str | None = None,
    tokens: Literal["patches"] | None = None,
    **options: Any,
) -> Model:
    """Replace the global pooling of a classifier by ``pooling``, and keep everything else, weights included.

    The network runs on a few example images, in evaluation mode, and its global pooling is found by what it computes:
    the average or maximum after which nothing has positions any more. It may be a module or a bare ``x.mean((2, 3))``.
    The place is proved before it is used: with the old pooling put there, the network must return the same outputs. A
    network that pools by a module gets the layer instead of it, one that pools by a function gets it behind the module
    that returns the map. With ``mu=1`` GSP is average pooling, and the outputs of an averaging network stay the same.

    Args:
        model: a classifier of timm, of torchvision, or your own. It is changed in place. Compile it afterwards.
        pooling: the layer, or its name in `gspool.pooling.list`, then created for the right number of channels.
        example: images [B, 3, H, W] to run on, if the network does not take the size that it seems to ask for; for a
            network with several inputs, a tuple of its arguments or a dict of its keyword arguments.
        where: path of the module to replace (``"head.global_pool"``), if it cannot be found automatically.
        tokens: ``"patches"`` to pool the patch tokens of a transformer that reads its class token. That is another
            model: its classifier was trained on class tokens, and has to be trained again.
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
        _exchange(model, swapped, layer.to(**_device_and_dtype(model)).train(swapped.training), example)
        return model
    inputs, before = _first_run(model, example, where)
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
    place = right_place(model, inputs, before, reduction)
    put(model, inputs, before, place, layer.to(**_device_and_dtype(model)))
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
            f"model is already compiled ({type(model).__name__}): replace its pooling first, then compile it"
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


def _exchange(model: nn.Module, swapped: SwappedPooling, layer: PoolingLayer, example: Any) -> None:
    """Put another layer in the place of one that was swapped in before; where it fails, the former one stays."""
    former, swapped.layer = swapped.layer, layer
    if not swapped.rectify:
        return
    path = next(path for path, module in model.named_modules() if module is swapped)
    try:
        check_signs(_first_run(model, example, None)[1], path.removesuffix(f".{ADDED_NAME}"), layer)
    except ValueError:
        swapped.layer = former
        raise


def _read_layout(reduction: Reduction, pooling: PoolingLayer | str) -> None:
    """Take the axis of the channels from the layer where the numbers do not show it: a named module may do anything."""
    if reduction.kind == "unknown" and isinstance(pooling, PoolingLayer):
        last = reduction.takes[-1] == pooling.dim
        first = reduction.takes[1] == pooling.dim
        reduction.channels_last = last if last != first else reduction.channels_last


def _fitting_layer(
    pooling: PoolingLayer | str, dim: int, out_dim: int, found: str, options: dict[str, Any]
) -> PoolingLayer:
    """Create the layer if it was given by name, and refuse one that does not fit."""
    layer = create(pooling, dim, **options) if isinstance(pooling, str) else pooling
    name = type(layer).__name__
    if layer.dim != dim:
        raise ValueError(
            f"{name} was created for {layer.dim} channels, but {dim} are pooled by {found}: create it with dim={dim}, "
            "or pass its name"
        )
    if layer.out_dim != out_dim:
        raise ValueError(
            f"{name} returns vectors of {layer.out_dim} numbers, but the classifier reads {out_dim} from {found}. "
            f"Choose a layer or options with {out_dim} outputs, or build an embedding model, gspool.Embedder"
        )
    return layer


def _first_run(model: nn.Module, example: Any, named: str | None) -> tuple[Inputs, Observation]:
    """Run the network on the user's example, or on two images of noise in the size that it asks for."""
    like = _device_and_dtype(model)
    if like["device"].type == "meta":
        raise ValueError("the network is on the meta device and computes nothing: give it real weights, to_empty(...)")
    if example is not None:
        inputs = _as_inputs(example, like)
        return inputs, run_watched(model, inputs, named)
    refusals = []
    for size in image_sizes(model):
        images = torch.randn(2, *size, generator=torch.Generator().manual_seed(0))
        inputs = _as_inputs(images, like)
        try:
            return inputs, run_watched(model, inputs, named)
        except ValueError as error:
            refusals.append(error)
    raise refusals[0]


def _as_inputs(example: Any, like: dict[str, Any]) -> Inputs:
    """Return an example as arguments on the device of the network, floating point in its precision."""

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(like["device"], like["dtype"] if value.is_floating_point() else None)

    inputs = Inputs((), {})
    if isinstance(example, torch.Tensor) and example.ndim >= 3 and example.is_floating_point():
        inputs = Inputs((moved(example),), {})
    elif isinstance(example, tuple | list):
        inputs = Inputs(tuple(map(moved, example)), {})
    elif isinstance(example, Mapping):
        inputs = Inputs((), {name: moved(value) for name, value in example.items()})
    if not str(inputs):
        came = [getattr(example, "dtype", type(example).__name__), tuple(getattr(example, "shape", ()))]
        raise ValueError(
            "example must be a floating point batch that the network takes, [B, 3, H, W], or a tuple or dict of its "
            f"inputs, got {came}"
        )
    return inputs


def image_sizes(model: nn.Module) -> list[tuple[int, int, int]]:
    """Read the image size a network asks for from where timm and torchvision write it; 224 pixels otherwise.

    The channels are those of the first convolution. Some stems fold blocks of pixels into channels before it, so three
    channels are the second guess.

    >>> image_sizes(nn.Conv2d(1, 4, 3))
    [(1, 224, 224), (3, 224, 224)]
    """
    settings = getattr(model, "pretrained_cfg", None) or {}
    written = getattr(getattr(model, "patch_embed", None), "img_size", None) or getattr(model, "image_size", None)
    size = written or tuple(settings.get("input_size") or ())[1:] or USUAL_SIZE
    height, width = (size, size) if isinstance(size, int) else size[-2:]
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    channels = 3 if first is None else first.in_channels
    return [(guess, height, width) for guess in dict.fromkeys((channels, 3))]


def _device_and_dtype(model: nn.Module) -> dict[str, Any]:
    """Return device and precision of a network, those of its first floating point parameter."""
    first = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    return {"device": first.device, "dtype": first.dtype}
