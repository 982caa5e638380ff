"""Put a pooling layer into a network where it does what the old pooling did, and prove it before it stays there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gspool.functional.results import Pooled
from gspool.models.freezing import evaluating
from gspool.models.replace.observe import POOLINGS, Watch, close, has_positions
from gspool.pooling.layer import PoolingLayer, as_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jaxtyping import Bool, Float
    from torch import Tensor

    from gspool.models.replace.observe import Call, Inputs, Kind, Observation, Reduction

# The name of the layer in a module that it was put behind, and so in the state dict: "features.global_pooling.layer".
ADDED_NAME = "global_pooling"


class SwappedPooling(nn.Module):
    """A pooling layer in the place of a network's own global pooling; ``layer`` is the layer itself.

    Args:
        layer: the pooling layer.
        channels_last: whether the features come as [B, H, W, C] or [B, N, D] rather than [B, C, H, W] or [B, D, N].
        units: axes of length one before and after the channels of the result; (0, 2) gives [B, C, 1, 1].
        prefix: leading tokens (class token, registers) that are not pooled.
        keep_prefix: put those tokens in front of the result again, for a network that skips them itself.
        rectify: apply a ReLU first, for a network that applies its own after this place.
    """

    def __init__(
        self,
        layer: PoolingLayer,
        *,
        channels_last: bool = False,
        units: tuple[int, int] = (0, 0),
        prefix: int = 0,
        keep_prefix: bool = False,
        rectify: bool = False,
    ) -> None:
        super().__init__()
        self.layer = layer
        self.channels_last = channels_last
        self.units = units
        self.prefix = prefix
        self.keep_prefix = keep_prefix
        self.rectify = rectify

    def forward(self, x: Float[Tensor, "B ..."]) -> Float[Tensor, "B ..."]:
        """Pool the features and return the result in the shape that the network reads."""
        features = x[:, self.prefix :] if self.prefix else x
        if self.rectify:
            features = torch.relu(features)
        if features.ndim == 3:
            features = features if self.channels_last else features.transpose(1, 2)
        elif self.channels_last:
            features = features.movedim(-1, 1)
        if features.ndim == 5:  # video: time and height are both positions
            features = features.flatten(2, 3)
        before, after = self.units
        pooled = self.layer(features)
        pooled = pooled.reshape(pooled.shape[0], *(1,) * before, pooled.shape[1], *(1,) * after)
        if self.keep_prefix:
            return torch.cat((x[:, : self.prefix], pooled), dim=1)
        # Some networks go on in place (ReLU, dropout), which must not touch what the layer keeps for its gradient.
        return pooled.clone()

    # timm asks its pooling selector these three when `reset_classifier` changes the number of classes.
    @property
    def pool_type(self) -> str:
        """The name of the pooling, as timm asks for it."""
        return type(self.layer).__name__.lower()

    def feat_mult(self) -> int:
        """Return the ratio of output to input channels, as timm asks for it."""
        return self.layer.out_dim // self.layer.dim

    def is_identity(self) -> bool:
        """Return whether nothing is pooled, as timm asks for it."""
        return False

    def extra_repr(self) -> str:
        """Name only what differs from a plain [B, C, H, W] -> [B, C]."""
        usual = {"channels_last": False, "units": (0, 0), "prefix": 0, "keep_prefix": False, "rectify": False}
        return ", ".join(
            f"{name}={getattr(self, name)}" for name, value in usual.items() if getattr(self, name) != value
        )


class SamePooling(PoolingLayer):
    """The pooling that a network had, at the new place: if the outputs stay the same, the place is the right one."""

    def __init__(self, dim: int, kind: Kind) -> None:
        super().__init__(dim, 2 * dim if kind == "average beside maximum" else dim)
        self.pooling = POOLINGS.get(kind, POOLINGS["average"])
        self.saw: Float[Tensor, "B N C"] | None = None

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Pool as the network did, and keep what was seen."""
        self.saw = as_tokens(x, self.dim)
        return Pooled(self.pooling(self.saw))


def pool_output(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
    """Pool the output of a module: the forward hook for networks that pool by a function, not by a module.

    It leaves one position, and the network's own average over one position changes nothing. It asks the module for its
    layer, so that a copy of the module (deepcopy, pickle, a replica on another device) uses its own.
    """
    pooled: Tensor = module.get_submodule(ADDED_NAME)(output)
    return pooled


@dataclass(frozen=True)
class Place:
    """In the place of the child ``name`` of ``module``; or, without a name, behind the output of ``module``."""

    module: nn.Module
    name: str | None
    path: str
    shapes: dict[str, Any]

    def put(self, pooling: SwappedPooling) -> Callable[[], None]:
        """Put the layer there; calling what is returned takes it out again."""
        module, name = self.module, self.name
        if name is not None:
            old = getattr(module, name)
            setattr(module, name, pooling)
        else:
            module.add_module(ADDED_NAME, pooling)
        sequential = type(module).forward is nn.Sequential.forward
        hook = module.register_forward_hook(pool_output) if name is None and not sequential else None

        def undo() -> None:
            if hook is not None:
                hook.remove()
            if name is None:
                delattr(module, ADDED_NAME)
                return
            if old is None:
                delattr(module, name)  # so that None becomes the plain attribute again that it was
            setattr(module, name, old)

        return undo


def places(model: nn.Module, seen: Observation, reduction: Reduction) -> Iterator[Place]:
    """Yield the places where a layer would do what this reduction did, the least intrusive first."""
    owner = reduction.owner
    if reduction.function is None:
        parent_path, _, name = owner.path.rpartition(".")
        axis = reduction.gives.index(max(reduction.gives[1:]), 1)
        shapes = {"channels_last": reduction.channels_last, "units": (axis - 1, len(reduction.gives) - 1 - axis)}
        yield Place(model.get_submodule(parent_path), name, owner.path, shapes)
        return
    prefix = _prefix(reduction)
    if reduction.channels_last and getattr(owner.module, "attn_pool", "absent") is None:
        # timm's vision transformers keep a slot for attention pooling; some skip the class token before it.
        path = f"{owner.path}.attn_pool".lstrip(".")
        for skipped in sorted({prefix, 0}, reverse=True):
            yield Place(owner.module, "attn_pool", path, {"channels_last": True, "prefix": skipped})
    source = reduction.source
    if source is None or len(seen.calls_of(source.module)) > 1 or hasattr(source.module, ADDED_NAME):
        return
    for channels_last in _channel_axes(source, reduction):
        ones = len(source.gives or ()) - 2
        shapes = {"channels_last": channels_last, "units": (ones, 0) if channels_last else (0, ones)}
        if prefix and channels_last and ones == 1:
            shapes |= {"prefix": prefix, "keep_prefix": reduction.kind != "class token"}
        for rectify in (False, True):
            yield Place(source.module, None, source.path, {**shapes, "rectify": rectify})


def _prefix(reduction: Reduction) -> int:
    """Count the leading tokens that are not pooled."""
    if reduction.kind == "class token":
        return reduction.skipped
    gives = reduction.source.gives if reduction.source else None
    if gives is None or len(gives) != 3 or len(reduction.takes) != 3 or not reduction.channels_last:
        return 0
    return max(gives[1] - reduction.takes[1], 0)


def _channel_axes(source: Call, reduction: Reduction) -> list[bool]:
    """List where the channels of the source's output can be: last (True), first (False), or perhaps either."""
    gives = source.gives or ()
    if len(gives) < 3:
        return []
    likely = [len(gives) == 3, len(gives) != 3]
    return [last for last in likely if gives[-1 if last else 1] == reduction.channels]


def right_place(model: nn.Module, inputs: Inputs, before: Observation, reduction: Reduction) -> Place:
    """Find a place where the old pooling, put there as a layer, leaves the network as it was."""
    objections = []
    for place in places(model, before, reduction):
        same = SamePooling(reduction.channels, reduction.kind)
        try:
            objection = _objection(before, _trial(model, inputs, place, same), reduction, same)
        except ValueError as error:
            objection = str(error)
        if objection is None:
            return place
        objections.append(f"{place.path!r}: {objection}")
    reasons = "; ".join(objections) or "the map it pools is not the output of one module that runs once"
    owner = reduction.owner
    named = owner.path and has_positions(owner.takes)
    raise ValueError(
        f"found {reduction}, but no place where a layer would do the same ({reasons}). "
        + (f"To replace that module as a whole pass where={owner.path!r}, or give" if named else "Give")
        + " the network a pooling module, nn.AdaptiveAvgPool2d(1) for example, and try again"
    )


def put(model: nn.Module, inputs: Inputs, before: Observation, place: Place, layer: PoolingLayer) -> None:
    """Put the layer there for good, once it has run there.

    Raises:
        ValueError: if the layer refuses these features or its result does not fit; the network is then as it was.
    """
    after = _trial(model, inputs, place, layer)
    gives, gave = ([tuple(output.shape) for output in seen.outputs] for seen in (after, before))
    if gives != gave:
        raise ValueError(
            f"with {type(layer).__name__} at {place.path!r} the network returns {gives} instead of {gave}: "
            "its classifier does not read that vector"
        )
    if place.shapes.get("rectify"):
        check_signs(after, place.path, layer)
    place.put(SwappedPooling(layer, **place.shapes))


def check_signs(after: Observation, path: str, layer: PoolingLayer) -> None:
    """Check that a layer before a ReLU of the network has returned nothing that the ReLU would cut off."""
    result = after.calls_of(layer)[0].vector_out
    if result is not None and bool((result < 0).any()):
        raise ValueError(
            f"this network applies a ReLU to the output of {path!r}, and would cut off the negative numbers of "
            f"{type(layer).__name__}: choose a layer without negative outputs for such features, as gsp is"
        )


def _trial(model: nn.Module, inputs: Inputs, place: Place, layer: PoolingLayer) -> Observation:
    """Run the network with the layer in this place, and take it out again."""
    undo = place.put(SwappedPooling(layer, **place.shapes))
    try:
        return run_watched(model, inputs)
    finally:
        undo()


def _objection(before: Observation, after: Observation, reduction: Reduction, same: SamePooling) -> str | None:
    """Describe what differs with the old pooling in the new place; None if nothing does."""
    calls = after.calls_of(same)
    if len(calls) != 1 or calls[0].vector_out is None:
        return f"a layer there runs {len(calls)} times"
    if same.saw is None or not close(same.saw, reduction.tokens()):
        return "a layer there does not see what is pooled now"
    reader = before.reader(reduction)
    read = after.calls_of(reader.module)[-1].vector_in if reader is not None else None
    if reduction.kind == "class token":
        # The vector changes, so the only condition is that it is the one that is read.
        arrives = read is None or close(read.flatten(1), calls[0].vector_out)
        return None if arrives else "the output of a layer there is not what is read"
    if reduction.kind == "unknown":
        return None
    if reader is not None and reader.vector_in is not None and (read is None or not close(read, reader.vector_in)):
        return "the pooled vector becomes another one"
    pairs = zip(after.outputs, before.outputs, strict=True)
    return None if all(close(new, old) for new, old in pairs) else "the outputs of the network change"


def run_watched(model: nn.Module, inputs: Inputs, named: str | None = None) -> Observation:
    """Run the network in evaluation mode and note what happens; statistics and training flags stay as they are."""
    with evaluating(model):
        try:
            seen = Watch(model, named).run(model, inputs)
        except Exception as error:  # a network may raise anything for an input that does not fit
            raise ValueError(
                f"{type(model).__name__} did not run on inputs {inputs}: {error}. Pass a batch that it takes as "
                "example=..., or several inputs as a tuple or a dict"
            ) from error
    if not all(bool(output.isfinite().all()) for output in seen.outputs):
        raise ValueError(
            f"{type(model).__name__} returned numbers that are not finite on inputs {inputs}: "
            "pass a batch of real, normalised images as example=..."
        )
    return seen
