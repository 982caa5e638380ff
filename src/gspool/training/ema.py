"""The exponential moving average of the weights (EMA): it is evaluated and kept instead of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

# Buffers that follow the weights. Others, such as a memory, have no mean, and may change their size.
STATISTICS = ("running_mean", "running_var")


class WeightAverage:
    """Average the parameters of a module, and the running statistics of its normalisation layers, over the steps.

    In step t the average keeps ``min(decay, (1 + t) / (10 + t))`` of itself: it soon forgets the random start.

    Args:
        module: what learns; its tensors must stay the same objects.
        decay: share that the average keeps in a step, in (0, 1).

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> average = WeightAverage(layer, decay=0.5)
        >>> _ = layer.bias.data.fill_(1.0)  # a training step
        >>> average.update()
        >>> with average.in_place():
        ...     bool(layer.bias < 1)
        True
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        buffers = {name: value for name, value in module.named_buffers() if name.split(".")[-1] in STATISTICS}
        self.decay, self.steps = decay, 0
        self.weights = {name: value.detach() for name, value in (dict(module.named_parameters()) | buffers).items()}
        self.averages = {name: value.clone() for name, value in self.weights.items()}

    def update(self) -> None:
        """Add the weights after a step."""
        self.steps += 1
        kept = min(self.decay, (1 + self.steps) / (10 + self.steps))
        get_ema_multi_avg_fn(kept)([*self.averages.values()], [*self.weights.values()], self.steps)

    def exchange(self) -> None:
        """Exchange weights and averages in place."""
        for name, weight in self.weights.items():
            own = weight.clone()
            weight.copy_(self.averages[name])
            self.averages[name].copy_(own)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the module hold the averages for a while."""
        self.exchange()
        try:
            yield
        finally:
            self.exchange()

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps and the averages."""
        return {"steps": self.steps, "averages": self.averages}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state.

        Raises:
            KeyError, RuntimeError: if it belongs to another module.
        """
        self.steps = state["steps"]
        for name, average in self.averages.items():
            average.copy_(state["averages"][name])
