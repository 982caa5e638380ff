"""Prove the place of a pooling layer before it is used: with the old pooling there, the network must stay the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gspool.models.replace.adapter import SamePooling, SwappedPooling
from gspool.models.replace.example import watch
from gspool.models.replace.place import places
from gspool.models.replace.recognition import close, has_positions

if TYPE_CHECKING:
    from torch import Tensor, nn

    from gspool.models.replace.observation import Observation, Reduction
    from gspool.models.replace.place import Behind, Instead
    from gspool.pooling.layer import PoolingLayer


def right_place(model: nn.Module, images: Tensor, before: Observation, reduction: Reduction) -> Instead | Behind:
    """Find a place where the old pooling, put there as a layer, leaves the network as it was.

    Raises:
        ValueError: if there is none, with what was tried.
    """
    objections = []
    for place in places(model, before, reduction):
        same = SamePooling(reduction.channels, reduction.kind)
        try:
            objection = _objection(before, _trial(model, images, place, same), reduction, same)
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
        + " the network a pooling module of its own, nn.AdaptiveAvgPool2d(1) for example, and try again"
    )


def put(model: nn.Module, images: Tensor, before: Observation, place: Instead | Behind, layer: PoolingLayer) -> None:
    """Put the layer there for good, once it has run there.

    Raises:
        ValueError: if the layer refuses these features or its result does not fit; the network is then as it was.
    """
    after = _trial(model, images, place, layer)
    gives, gave = ([tuple(output.shape) for output in seen.outputs] for seen in (after, before))
    if gives != gave:
        raise ValueError(
            f"with {type(layer).__name__} at {place.path!r} the network gives {gives} instead of {gave}: "
            "its classifier does not read that vector"
        )
    result = after.calls_of(layer)[0].vector_out
    if place.shapes.get("rectify") and result is not None and bool((result < 0).any()):
        raise ValueError(
            f"this network applies a ReLU to what comes from {place.path!r}, and would cut off the negative numbers of "
            f"{type(layer).__name__}: choose a layer that gives none for features without any, as gsp does"
        )
    place.put(SwappedPooling(layer, **place.shapes))


def _trial(model: nn.Module, images: Tensor, place: Instead | Behind, layer: PoolingLayer) -> Observation:
    """Watch the network with the layer in this place, and take it out again."""
    undo = place.put(SwappedPooling(layer, **place.shapes))
    try:
        return watch(model, images)
    finally:
        undo()


def _objection(before: Observation, after: Observation, reduction: Reduction, same: SamePooling) -> str | None:
    """Say what differs with the old pooling in the new place; None if nothing does."""
    calls = after.calls_of(same)
    if len(calls) != 1 or calls[0].vector_out is None:
        return f"a layer there runs {len(calls)} times"
    if same.saw is None or not close(same.saw, reduction.tokens()):
        return "a layer there does not see what is pooled now"
    reader = before.reader(reduction)
    read = after.calls_of(reader.module)[-1].vector_in if reader is not None else None
    if reduction.kind == "class token":
        # The vector changes, so all that can be asked is that it is the one that is read.
        arrives = read is None or close(read.flatten(1), calls[0].vector_out)
        return None if arrives else "what a layer gives there is not what is read"
    if reduction.kind == "unknown":
        return None
    if reader is not None and reader.vector_in is not None and (read is None or not close(read, reader.vector_in)):
        return "the pooled vector becomes another one"
    pairs = zip(after.outputs, before.outputs, strict=True)
    return None if all(close(new, old) for new, old in pairs) else "the outputs of the network change"
