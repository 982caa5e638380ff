"""A first training: two prototypes, started anywhere, learn what is worth pooling.

Pictures of coloured pixels come in three kinds, red, green and blue, in parts that change from picture to picture. The
layer is asked for the average colour of the red and blue pixels alone; nobody tells it which pixels those are.
Promise: average pooling cannot do it, because green is everywhere; GSP learns to look at red and blue.

    python -m gspool.experiments.toy_training           # one CPU core, 3 seconds
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from gspool.pooling import GSP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Bool, Float
    from torch import Tensor

SEED = 0
STEPS = 120
IMAGES, TOKENS = 64, 100
RED, GREEN, BLUE = range(3)


class Pictures(NamedTuple):
    """A batch of pictures as tokens, which of them are red or blue, and the average colour of those."""

    tokens: Float[Tensor, "B N 3"]
    informative: Bool[Tensor, "B N"]
    target: Float[Tensor, "B 3"]


class Progress(NamedTuple):
    """One line of the table: after ``step`` steps, the error and the part of the weight on red and blue pixels."""

    step: int
    error: float
    found: float


def random_pictures(generator: torch.Generator) -> Pictures:
    """Draw pictures that are half green; the other half is red and blue in any proportion."""
    rank = torch.rand(IMAGES, TOKENS, generator=generator).argsort(1)
    half = TOKENS // 2
    red = torch.rand(IMAGES, 1, generator=generator) * half
    kind = torch.where(rank >= half, GREEN, torch.where(rank < red, RED, BLUE))
    shade = 0.15 * torch.rand(IMAGES, TOKENS, 3, generator=generator)
    tokens = (torch.eye(3)[kind] - shade).abs()
    informative = kind != GREEN
    wanted = informative / informative.sum(1, keepdim=True)
    return Pictures(tokens, informative, torch.einsum("bn,bnd->bd", wanted, tokens))


def train(seed: int = SEED, steps: int = STEPS, every: int = 20) -> Iterator[Progress]:
    """Train the layer on ever new pictures and report now and then, before the first step and after the last."""
    generator = torch.Generator().manual_seed(seed)
    layer = GSP(dim=3, prototypes=2, mu=0.5, epsilon=10.0)
    with torch.no_grad():
        layer.prototypes.copy_(0.1 * torch.randn(2, 3, generator=generator))
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.05)
    for step in range(steps + 1):
        pictures = random_pictures(generator)
        pooled, weights, _ = layer.pool(pictures.tokens)
        error = (pooled - pictures.target).square().sum(1).mean()
        if step % every == 0 and weights is not None:
            found = (weights.detach() * pictures.informative).sum(1).mean()
            yield Progress(step, float(error.detach().sqrt()), float(found))
        if step < steps:
            optimiser.zero_grad()
            error.backward()
            optimiser.step()


def average_pooling_error(seed: int = SEED) -> float:
    """Measure what plain averaging leaves on the same task."""
    pictures = random_pictures(torch.Generator().manual_seed(seed))
    return float((pictures.tokens.mean(1) - pictures.target).square().sum(1).mean().sqrt())


def main() -> None:
    """Train and print the table."""
    print("Task: the average colour of the red and blue pixels, from pictures that are half green.\n")
    print("  step   error   weight on red and blue")
    for progress in train():
        print(f"  {progress.step:4d}   {progress.error:.3f}   {progress.found:.3f}")
    print(f"\nAverage pooling, which must take green along: error {average_pooling_error():.3f}.")


if __name__ == "__main__":
    main()
