"""Figure 2: what GSP selects, on a picture of 10 x 10 pixels.

Red and blue are looked for, green is the background, each half of the picture. Paper: the linear programme (P1) with mu
too small leaves out part of what it should find; the smoothed problem (P2) shares its mass among all of it.
Ours: results/toy.json, docs/images/toy.png.

    gspool reproduce toy                                # one CPU core, 2 seconds
    python -m gspool.experiments.toy [--out FOLDER]     # the same
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool.experiments.certificate import write_result
from gspool.experiments.experiment import Experiment, Headline, RunOptions
from gspool.experiments.report import section, table
from gspool.experiments.toy_picture import draw
from gspool.functional import distance, hard_selection, partial_transport

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

SEED = 0
SIDE = 10
RED, GREEN, BLUE = torch.eye(3)
PROTOTYPES = torch.stack([RED, BLUE])
MUS = (0.2, 0.5, 0.8)
EPSILONS = (0.5, 5.0, 20.0, 100.0)


class Toy(NamedTuple):
    """The picture as a feature map with three channels, and which of its pixels are worth finding."""

    pixels: Float[Tensor, "N 3"]
    informative: Bool[Tensor, N]


class Selection(NamedTuple):
    """The weights for one setting; epsilon None is the linear programme, the limit of a large epsilon."""

    mu: float
    epsilon: float | None
    weights: Float[Tensor, N]


def toy_picture(seed: int = SEED) -> Toy:
    """Draw the picture: red above left, blue below right, green elsewhere, no two pixels quite the same.

    Example:
        >>> int(toy_picture().informative.sum())
        50
    """
    row, column = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    above, left = row < SIDE // 2, column < SIDE // 2
    informative = above == left
    colour = torch.where((above & left)[..., None], RED, torch.where(informative[..., None], BLUE, GREEN))
    # Shades: among equal pixels the linear programme would have no single solution.
    shade = 0.15 * torch.rand(SIDE, SIDE, 3, generator=torch.Generator().manual_seed(seed))
    return Toy((colour - shade).abs().flatten(0, 1), informative.flatten())


def selections(toy: Toy) -> list[Selection]:
    """Solve the picture for every mu: smoothed with every epsilon, then as a linear programme."""
    cost = distance(PROTOTYPES, toy.pixels[None])
    found = []
    for mu in MUS:
        for epsilon in EPSILONS:
            found.append(Selection(mu, epsilon, partial_transport(cost, mu, epsilon).plan[0].sum(0) / mu))
        found.append(Selection(mu, None, hard_selection(cost, mu).plan[0].sum(0) / mu))
    return found


def summary(toy: Toy, selection: Selection) -> dict[str, float | str]:
    """Say where the weight went, and on how many pixels it rests: ``1 / sum_j p_j^2``, n for equal weights on n."""
    found = float(selection.weights[toy.informative].sum())
    return {
        "mu": selection.mu,
        "epsilon": "linear programme" if selection.epsilon is None else selection.epsilon,
        "weight on red and blue": round(found, 4),
        # Masses sum to one up to rounding, which may leave less than nothing.
        "weight on green": max(0.0, round(1 - found, 4)),
        "pixels in use": round(float(1 / selection.weights.square().sum()), 1),
    }


def run(options: RunOptions) -> None:
    """Solve, write the result, draw the figure, and print where the weight went."""
    toy = toy_picture()
    solved = selections(toy)
    rows = [summary(toy, selection) for selection in solved]
    write_result(
        options.results / "toy.json",
        rows,
        command=EXPERIMENT.command(options),
        seeds=[SEED],
        libraries=["matplotlib"],
    )
    picture = options.images / "toy.png"
    draw(toy.pixels, solved, picture, SIDE)
    for row in rows:
        print("   ".join(f"{name} {value}" for name, value in row.items()))
    print(f"written: {options.results / 'toy.json'}, {picture}")


def render(results: Path) -> str:
    """Write the section."""
    return section(results, "toy", written)


def written(record: dict[str, Any]) -> str:
    """Show the figure and the table under it."""
    return "\n\n".join(
        (
            "![Weights of the pixels for several mu and epsilon](images/toy.png)",
            "Red and blue are the prototypes, green is background, each half of the picture; the darker, the higher "
            "the weight. Paper: with mu too small the linear programme leaves out part of what it should find, and the "
            "smoothed problem shares its mass among all of it. *Pixels in use* is 1 / sum p².",
            table(record["value"], "g"),
        )
    )


def headlines(rows: list[dict[str, Any]]) -> list[Headline]:
    """Say how the linear programme and the smoothed problem differ where mu is too small."""
    few = {row["epsilon"]: row["pixels in use"] for row in rows if row["mu"] == 0.2}
    ours = f"{few[20.0]:g} of 50; linear programme {few['linear programme']:g}"
    return [Headline("pixels of the objects in use, mu 0.2, epsilon 20", "drawn only", ours)]


EXPERIMENT = Experiment(
    name="toy",
    promise="what GSP selects on a picture of 10 x 10 pixels: linear programme against smoothing",
    shows="Figure 2",
    cost="2 seconds on one CPU core",
    files=("toy",),
    run=run,
    render=render,
    headlines=headlines,
)


def main(arguments: list[str] | None = None) -> None:
    """Run the experiment into a folder with results/ and docs/images/."""
    parser = argparse.ArgumentParser(prog="python -m gspool.experiments.toy", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(), help="folder for results/ and docs/images/ (here)")
    out: Path = parser.parse_args(arguments).out
    run(RunOptions(results=out / "results", images=out / "docs" / "images"))


if __name__ == "__main__":
    main()
