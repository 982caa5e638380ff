"""What is noted of one forward pass of a network, and which of its reductions can be its global pooling."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gspool.models.replace.recognition import Kind

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor, nn


@dataclass
class Call:
    """One call of a module: when, the shapes that came and went, and the numbers where they are vectors."""

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

    ``source`` is the module call that gave what was reduced, ``skipped`` how many of its tokens are left out in front.
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
        """The features that were reduced, as tokens."""
        if self.channels_last:
            return self.taken.flatten(1, -2)[:, self.skipped :]
        return self.taken.flatten(2).transpose(1, 2)

    def __str__(self) -> str:
        """Say it as an error message wants it."""
        path = repr(self.owner.path) if self.owner.path else "the network itself"
        what = f"{path} ({type(self.owner.module).__name__})"
        call = f"the module {what}" if self.function is None else f"the call {self.function}() in the forward of {what}"
        return f"{call}, {self.kind}, {self.takes} -> {self.gives}"


@dataclass
class Observation:
    """What happened in one forward pass, in order, and the tensors that came out.

    ``reductions`` are those after which no module gave positions any more; squeeze-and-excitation, after which the
    network goes on with maps, is thus not among them. One can be asked for by name all the same.
    """

    calls: list[Call] = field(default_factory=list)
    reductions: list[Reduction] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    def reader(self, reduction: Reduction) -> Call | None:
        """The module that takes the pooled vector next; None if the vector is what the network gives."""
        return min((c for c in self.calls if c.started > reduction.ended), key=lambda c: c.started, default=None)

    def calls_of(self, module: nn.Module) -> list[Call]:
        """The calls of one module."""
        return [call for call in self.calls if call.module is module]
