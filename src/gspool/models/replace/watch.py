"""Watch one forward pass of a network, to learn where it turns a feature map into one vector an image.

Names say little about where a network pools: ``avgpool``, ``global_pool``, or a bare ``x.mean((2, 3))`` without a name.
What is computed says everything: a global pooling is the call after which nothing has positions any more.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from gspool.models.replace.observation import Call, Observation, Reduction
from gspool.models.replace.recognition import has_positions, recognise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor


class Watch(TorchFunctionMode):
    """Note the calls of a network while it runs, and the last ones that take all positions of a tensor to one.

    The reduction of the module ``named`` is noted even if it is not among the last.
    """

    def __init__(self, model: nn.Module, named: str | None = None) -> None:
        super().__init__()
        self.named = named
        self.paths = {module: path for path, module in model.named_modules()}
        self.clock = 0
        self.noting = False
        self.running: list[Call] = []
        self.seen = Observation()
        # Which module call a tensor came from. Weak: a network's activations must not be kept alive for this.
        self.origins: dict[int, tuple[weakref.ref[Tensor], Call]] = {}
        # The maps that modules gave, as they were then: the version counts what was done to a tensor in place.
        self.maps: dict[int, tuple[weakref.ref[Tensor], int, int]] = {}

    def run(self, model: nn.Module, images: Tensor) -> Observation:
        """Run the network once and tell what happened."""
        handles = []
        for module in self.paths:
            handles.append(module.register_forward_pre_hook(self._start, with_kwargs=True))
            handles.append(module.register_forward_hook(self._end, with_kwargs=True))
        try:
            with torch.no_grad(), self:
                output = model(images)
        finally:
            for handle in handles:
                handle.remove()
        self.seen.outputs = list(tensors_in(output))
        return self.seen

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the function and note what it did to the positions."""
        given = func(*args, **(kwargs or {}))
        taken = first_tensor(args, kwargs or {})
        if taken is not None and isinstance(given, torch.Tensor) and self.running and not self.noting:
            self._note(self.running[-1], getattr(func, "__name__", str(func)), taken, given)
            origin = self._origin(taken)
            if origin is not None and given.numel() == taken.numel() and viewed(given) is not viewed(taken):
                # Perhaps a copy or a permutation, so still what that module gave; if it is not, the proof fails later.
                self._remember(given, origin)
        return given

    def _start(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        taken = first_tensor(args, kwargs)
        call = Call(self.paths[module], module, self._tick())
        if taken is not None:
            call.takes, call.vector_in = tuple(taken.shape), vector(taken)
        self.running.append(call)

    def _end(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], given: Any) -> None:
        call = self.running.pop()
        call.ended = self._tick()
        self.seen.calls.append(call)
        for tensor in tensors_in(given):
            if has_positions(tensor.shape):
                self._forget(self._since(tensor))
                self.maps.setdefault(id(tensor), (weakref.ref(tensor), tensor._version, call.ended))
        if not isinstance(given, torch.Tensor):
            return
        call.gives, call.vector_out = tuple(given.shape), vector(given)
        taken = first_tensor(args, kwargs)
        if taken is not None:
            self._note(call, None, taken, given)
        self._remember(given, call)

    def _note(self, owner: Call, function: str | None, taken: Tensor, given: Tensor) -> None:
        self.noting = True  # what recognition itself computes is not the network's doing
        found = recognise(taken, given)
        self.noting = False
        if found is not None and (function is None or found.kind != "unknown"):
            shape = tuple(given.shape)
            source = self._origin(taken)
            self.seen.reductions.append(
                Reduction(owner, function, found.kind, taken, shape, found.channels_last, self._tick(), source)
            )

    def _forget(self, since: int) -> None:
        """Drop what was noted before: the network goes on with positions, so that was not its global pooling."""

        def stays(reduction: Reduction) -> bool:
            return reduction.ended > since or (reduction.function is None and reduction.owner.path == self.named)

        self.seen.reductions = [reduction for reduction in self.seen.reductions if stays(reduction)]

    def _since(self, tensor: Tensor) -> int:
        """Tell since when this map is there: a network may give the map that it has pooled beside the vector."""
        reference, version, ended = self.maps.get(id(tensor), (None, 0, 0))
        known = reference is not None and reference() is tensor and version == tensor._version
        if not known:
            self.maps.pop(id(tensor), None)
        return ended if known else self.clock

    def _tick(self) -> int:
        self.clock += 1
        return self.clock

    def _remember(self, tensor: Tensor, call: Call) -> None:
        seen = viewed(tensor)
        self.origins[id(seen)] = weakref.ref(seen), call

    def _origin(self, tensor: Tensor) -> Call | None:
        reference, call = self.origins.get(id(viewed(tensor)), (None, None))
        return call if reference is not None and reference() is viewed(tensor) else None


def viewed(tensor: Tensor) -> Tensor:
    """Give the tensor of which this one is a view, itself if it is none."""
    return tensor if tensor._base is None else tensor._base


def vector(tensor: Tensor) -> Tensor | None:
    """Keep the numbers of a tensor without positions (they are few, and a layer may work in place)."""
    return None if has_positions(tensor.shape) or tensor.ndim < 2 else tensor.detach().clone()


def first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Give the first argument if it is a tensor."""
    first = next(iter((*args, *kwargs.values())), None)
    return first if isinstance(first, torch.Tensor) else None


def tensors_in(output: Any) -> Iterator[Tensor]:
    """Give the tensors of an output: itself, or those in its lists, tuples and mappings."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from tensors_in(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from tensors_in(value)
