"""What a training on resident data leaves behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

# Why training ended: no better evaluation for long, the last step, or the time that was given.
Ending = Literal["patience", "max_steps", "time"]


class Outcome(NamedTuple):
    """Figures on the test set of the best model, and how the run went.

    ``entropy`` is that of the pooling weights on the test set (1 is average pooling), None where there are none, and
    ``mean_weights`` what a place weighs on average there, relative to equal weights, row by row of the map.
    ``curve`` holds one row an evaluation. ``learned`` is what a GSP layer ended with, mu and epsilon. ``embeddings``
    are those of the test images, for averages over several models.
    """

    metrics: dict[str, float]
    validation: float | None
    steps: int
    best_step: int
    ending: Ending
    entropy: float | None
    seconds: float
    images_per_second: float
    curve: list[dict[str, Any]]
    learned: dict[str, float]
    embeddings: Float[Tensor, "N D"]
    gallery: Float[Tensor, "G D"] | None = None
    mean_weights: list[float] | None = None

    def record(self) -> dict[str, Any]:
        """Give everything but the embeddings as plain numbers, for JSON."""
        return {name: value for name, value in self._asdict().items() if name not in ("embeddings", "gallery")}
