"""Where a pooling layer can go in a network, how it is put there, and how it is taken out again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from gspool.models.replace.adapter import ADDED_NAME, pool_output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gspool.models.replace.adapter import SwappedPooling
    from gspool.models.replace.observation import Call, Observation, Reduction


@dataclass(frozen=True)
class Instead:
    """In the place of the module ``name`` of ``parent``, or in a place of that name that the network keeps free."""

    parent: nn.Module
    name: str
    path: str
    shapes: dict[str, Any]

    def put(self, pooling: SwappedPooling) -> Callable[[], None]:
        """Put the layer there; calling what comes back undoes it."""
        parent, name, old = self.parent, self.name, getattr(self.parent, self.name)
        setattr(parent, name, pooling)

        def undo() -> None:
            if old is None:
                delattr(parent, name)  # so that None becomes the plain attribute again that it was
            setattr(parent, name, old)

        return undo


@dataclass(frozen=True)
class Behind:
    """Behind the module ``source``, which gives the map that the network then pools by a function of its own."""

    source: nn.Module
    path: str
    shapes: dict[str, Any]

    def put(self, pooling: SwappedPooling) -> Callable[[], None]:
        """Put the layer there; calling what comes back undoes it."""
        self.source.add_module(ADDED_NAME, pooling)
        if type(self.source).forward is nn.Sequential.forward:
            return lambda: delattr(self.source, ADDED_NAME)
        hook = self.source.register_forward_hook(pool_output)

        def undo() -> None:
            hook.remove()
            delattr(self.source, ADDED_NAME)

        return undo


def places(model: nn.Module, seen: Observation, reduction: Reduction) -> Iterator[Instead | Behind]:
    """Give the places where a layer would do what this reduction did, the least intrusive first."""
    owner = reduction.owner
    if reduction.function is None:
        parent_path, _, name = owner.path.rpartition(".")
        axis = reduction.gives.index(max(reduction.gives[1:]), 1)
        shapes = {"channels_last": reduction.channels_last, "units": (axis - 1, len(reduction.gives) - 1 - axis)}
        yield Instead(model.get_submodule(parent_path), name, owner.path, shapes)
        return
    prefix = _prefix(reduction)
    if reduction.channels_last and getattr(owner.module, "attn_pool", "absent") is None:
        # timm's vision transformers keep a slot for attention pooling; some skip the class token before it.
        path = f"{owner.path}.attn_pool".lstrip(".")
        for skipped in sorted({prefix, 0}, reverse=True):
            yield Instead(owner.module, "attn_pool", path, {"channels_last": True, "prefix": skipped})
    source = reduction.source
    if source is None or len(seen.calls_of(source.module)) > 1 or hasattr(source.module, ADDED_NAME):
        return
    for channels_last in _channel_axes(source, reduction):
        ones = len(source.gives or ()) - 2
        shapes = {"channels_last": channels_last, "units": (ones, 0) if channels_last else (0, ones)}
        if prefix and channels_last and ones == 1:
            shapes |= {"prefix": prefix, "keep_prefix": reduction.kind != "class token"}
        for rectify in (False, True):
            yield Behind(source.module, source.path, {**shapes, "rectify": rectify})


def _prefix(reduction: Reduction) -> int:
    """Count the leading tokens that are not pooled."""
    if reduction.kind == "class token":
        return reduction.skipped
    gives = reduction.source.gives if reduction.source else None
    if gives is None or len(gives) != 3 or len(reduction.takes) != 3 or not reduction.channels_last:
        return 0
    return max(gives[1] - reduction.takes[1], 0)


def _channel_axes(source: Call, reduction: Reduction) -> list[bool]:
    """Tell on which axis of the source's output the channels can lie: last (True), first (False), or perhaps either."""
    gives = source.gives or ()
    if len(gives) < 3:
        return []
    likely = [len(gives) == 3, len(gives) != 3]
    return [last for last in likely if gives[-1 if last else 1] == reduction.channels]
