"""Run a network once and note where it turns a feature map into one vector per image.

Names say little about where a network pools: ``avgpool``, ``global_pool``, or a bare ``x.mean((2, 3))`` without a name.
What is computed says everything: the global pooling is the call after which no module returns positions any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Float
    from torch import Tensor

# "average and maximum" is the mean of both, "average beside maximum" has twice the channels.
Kind = Literal["average", "maximum", "average and maximum", "average beside maximum", "class token", "unknown"]

# What each kind computes of tokens [B, N, C].
POOLINGS: dict[Kind, Callable[[torch.Tensor], torch.Tensor]] = {
    "average": lambda tokens: tokens.mean(1),
    "maximum": lambda tokens: tokens.amax(1),
    "average and maximum": lambda tokens: 0.5 * (tokens.mean(1) + tokens.amax(1)),
    "average beside maximum": lambda tokens: torch.cat((tokens.mean(1), tokens.amax(1)), dim=1),
}

# Sums in another order differ by rounding; half precision rounds at every step.
RELATIVE_ERROR = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def recognise(taken: Tensor, given: Tensor) -> tuple[Kind, bool] | None:
    """Recognise how ``given`` was pooled from the positions of ``taken``, and whether the channels are the last axis.

    The axis of the channels is the one for which the numbers agree, so that [B, C, H, W], [B, H, W, C] and [B, N, D]
    need no hint. ``unknown`` is a vector that is none of the other kinds; None is no vector per image.
    """
    if not has_positions(taken.shape) or has_positions(given.shape) or not 2 <= given.ndim <= taken.ndim:
        return None
    if given.shape[0] != taken.shape[0] or not (taken.is_floating_point() and given.is_floating_point()):
        return None
    vector = given.flatten(1)
    for channels_last in (False, True):
        tokens = as_tokens(taken, channels_last)
        if vector.shape[1] not in (tokens.shape[2], 2 * tokens.shape[2]) or tokens.shape[1] < 2:
            continue
        for kind, pooling in POOLINGS.items():
            if close(vector, pooling(tokens)):
                return kind, channels_last
        if taken.ndim == 3 and channels_last and close(vector, tokens[:, 0]):
            return "class token", channels_last
    if given.numel() >= taken.numel():  # flattened, not pooled
        return None
    return "unknown", taken.ndim == 3


def as_tokens(features: Tensor, channels_last: bool) -> Float[Tensor, "B N C"]:
    """Return features of any number of axes as tokens."""
    return features.flatten(1, -2) if channels_last else features.flatten(2).transpose(1, 2)


def has_positions(shape: tuple[int, ...] | None) -> bool:
    """Return whether a tensor of this shape is a map, or tokens, with more than one position.

    >>> has_positions((2, 512, 7, 7)), has_positions((2, 512, 1, 1)), has_positions((2, 512))
    (True, False, False)
    """
    return shape is not None and len(shape) >= 3 and sum(size > 1 for size in shape[1:]) >= 2


def close(value: Tensor, expected: Tensor) -> bool:
    """Return whether two tensors agree to rounding, relative to the largest expected number."""
    if value.shape != expected.shape:
        return False
    error = (value - expected).abs().max()
    return bool(error <= RELATIVE_ERROR.get(value.dtype, 2e-5) * expected.abs().max())


class Inputs(NamedTuple):
    """What a network is called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __str__(self) -> str:
        return ", ".join(str(tuple(tensor.shape)) for tensor in _tensors_in([self.args, self.kwargs]))


@dataclass
class Call:
    """One call of a module: its time, the shapes of input and output, and their values where they are vectors."""

    path: str
    module: nn.Module
    started: int
    ended: int = -1
    takes: tuple[int, ...] | None = None
    gives: tuple[int, ...] | None = None
    vector_in: Tensor | None = None
    vector_out: Tensor | None = None


@dataclass
class Reduction:
    """A call that took all positions to one: of the module ``owner``, or of a ``function`` in its forward.

    ``source`` is the module call that returned what was reduced, ``skipped`` the number of leading tokens left out.
    """

    owner: Call
    function: str | None
    kind: Kind
    taken: Tensor
    gives: tuple[int, ...]
    channels_last: bool
    ended: int
    source: Call | None
    skipped: int = 0

    @property
    def takes(self) -> tuple[int, ...]:
        """The shape of what was reduced."""
        return tuple(self.taken.shape)

    @property
    def channels(self) -> int:
        """The number of channels that are pooled."""
        return self.takes[-1] if self.channels_last else self.takes[1]

    def tokens(self) -> Float[Tensor, "B N C"]:
        """Return the features that were reduced, as tokens."""
        return as_tokens(self.taken, self.channels_last)[:, self.skipped :]

    def __str__(self) -> str:
        path = repr(self.owner.path) if self.owner.path else "the network itself"
        what = f"{path} ({type(self.owner.module).__name__})"
        call = f"the module {what}" if self.function is None else f"the call {self.function}() in the forward of {what}"
        return f"{call}, {self.kind}, {self.takes} -> {self.gives}"


@dataclass
class Observation:
    """What happened in one forward pass, in order, and its outputs.

    ``reductions`` are those after which no module returned positions any more; squeeze-and-excitation, after which the
    network goes on with maps, is thus not among them. One can be asked for by name all the same.
    """

    calls: list[Call] = field(default_factory=list)
    reductions: list[Reduction] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    def reader(self, reduction: Reduction) -> Call | None:
        """Return the module that takes the pooled vector next; None if the vector is an output of the network."""
        return min((c for c in self.calls if c.started > reduction.ended), key=lambda c: c.started, default=None)

    def calls_of(self, module: nn.Module) -> list[Call]:
        """Return the calls of one module."""
        return [call for call in self.calls if call.module is module]


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
        self.origins = WeakTensorKeyDictionary()
        # When a module first returned a map, and its version, which counts what was done to a tensor in place.
        self.maps = WeakTensorKeyDictionary()

    def run(self, model: nn.Module, inputs: Inputs) -> Observation:
        """Run the network once and return what happened."""
        handles = []
        for module in self.paths:
            handles.append(module.register_forward_pre_hook(self._start, with_kwargs=True))
            handles.append(module.register_forward_hook(self._end, with_kwargs=True))
        try:
            with torch.no_grad(), self:
                output = model(*inputs.args, **inputs.kwargs)
        finally:
            for handle in handles:
                handle.remove()
        self.seen.outputs = list(_tensors_in(output))
        return self.seen

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the function and note what it did to the positions."""
        given = func(*args, **(kwargs or {}))
        taken = _first_tensor(args, kwargs or {})
        if taken is not None and isinstance(given, torch.Tensor) and self.running and not self.noting:
            self._note(self.running[-1], getattr(func, "__name__", str(func)), taken, given)
            origin = self.origins.get(viewed(taken))
            if origin is not None and given.numel() == taken.numel() and viewed(given) is not viewed(taken):
                # Perhaps a copy or a permutation, so still the output of that module; if it is not, the proof fails.
                self.origins[viewed(given)] = origin
        return given

    def _start(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        taken = _first_tensor(args, kwargs)
        call = Call(self.paths[module], module, self._tick())
        if taken is not None:
            call.takes, call.vector_in = tuple(taken.shape), _vector(taken)
        self.running.append(call)

    def _end(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], given: Any) -> None:
        call = self.running.pop()
        call.ended = self._tick()
        self.seen.calls.append(call)
        for tensor in _tensors_in(given):
            if has_positions(tensor.shape):
                # A network may return the map that it has pooled beside the vector: that one is not new.
                version, since = self.maps.get(tensor, (-1, 0))
                if version != tensor._version:
                    since = self.clock
                    self.maps[tensor] = tensor._version, since
                self._forget(since)
        if not isinstance(given, torch.Tensor):
            return
        call.gives, call.vector_out = tuple(given.shape), _vector(given)
        taken = _first_tensor(args, kwargs)
        if taken is not None:
            self._note(call, None, taken, given)
        self.origins[viewed(given)] = call

    def _note(self, owner: Call, function: str | None, taken: Tensor, given: Tensor) -> None:
        self.noting = True  # what recognition itself computes is not part of the network
        found = recognise(taken, given)
        self.noting = False
        if found is not None and (function is None or found[0] != "unknown"):
            kind, channels_last = found
            source = self.origins.get(viewed(taken))
            self.seen.reductions.append(
                Reduction(owner, function, kind, taken, tuple(given.shape), channels_last, self._tick(), source)
            )

    def _forget(self, since: int) -> None:
        """Drop what was noted before: the network goes on with positions, so that was not its global pooling."""
        self.seen.reductions = [
            reduction
            for reduction in self.seen.reductions
            if reduction.ended > since or (reduction.function is None and reduction.owner.path == self.named)
        ]

    def _tick(self) -> int:
        self.clock += 1
        return self.clock


def viewed(tensor: Tensor) -> Tensor:
    """Return the tensor of which this one is a view, itself if it is none."""
    return tensor if tensor._base is None else tensor._base


def _vector(tensor: Tensor) -> Tensor | None:
    """Copy a tensor without positions: it is small, and a layer may work in place."""
    return None if has_positions(tensor.shape) or tensor.ndim < 2 else tensor.detach().clone()


def _first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    first = next(iter((*args, *kwargs.values())), None)
    return first if isinstance(first, torch.Tensor) else None


def _tensors_in(output: Any) -> Iterator[Tensor]:
    """Yield the tensors of an output: itself, or those in its lists, tuples and mappings."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict | list | tuple):
        for value in output.values() if isinstance(output, dict) else output:
            yield from _tensors_in(value)
