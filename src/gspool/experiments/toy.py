"""Figure 2: what GSP selects, on an image of 10 x 10 pixels.

The prototypes are red and blue, which together fill half of the image; green is background and fills the other half.
Paper: with mu too small the linear programme (P1) leaves out part of the objects; the smoothed problem (P2) shares its
mass among all of it. Ours: results/toy.json, docs/images/toy.png.

    gspool reproduce toy                                # one CPU core, 2 seconds
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool.experiments.experiment import Experiment, Headline, Record, RunOptions
from gspool.experiments.plots import save, subplots
from gspool.experiments.tables import markdown_table
from gspool.functional import distance, hard_selection, partial_transport
from gspool.provenance import write_result

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

SEED = 0
SIDE = 10
RED, GREEN, BLUE = torch.eye(3)
PROTOTYPES = torch.stack([RED, BLUE])
MUS = (0.2, 0.5, 0.8)
EPSILONS = (0.5, 5.0, 20.0, 100.0)
LINEAR = "linear programme"


class Toy(NamedTuple):
    """The image as a feature map with three channels, and which of its pixels belong to objects."""

    pixels: Float[Tensor, "N 3"]
    informative: Bool[Tensor, N]


class Selection(NamedTuple):
    """The weights for one setting; epsilon None is the linear programme, the limit of a large epsilon."""

    mu: float
    epsilon: float | None
    weights: Float[Tensor, N]


def toy_picture(seed: int = SEED) -> Toy:
    """Draw the image: red above left, blue below right, green elsewhere, no two pixels quite the same."""
    row, column = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    above, left = row < SIDE // 2, column < SIDE // 2
    informative = above == left
    colour = torch.where((above & left)[..., None], RED, torch.where(informative[..., None], BLUE, GREEN))
    # Shades: among equal pixels the linear programme would have no single solution.
    shade = 0.15 * torch.rand(SIDE, SIDE, 3, generator=torch.Generator().manual_seed(seed))
    return Toy((colour - shade).abs().flatten(0, 1), informative.flatten())


def selections(toy: Toy) -> list[Selection]:
    """Solve the image for every mu: smoothed with every epsilon, then as a linear programme."""
    cost = distance(PROTOTYPES, toy.pixels[None])
    found = []
    for mu in MUS:
        for epsilon in EPSILONS:
            found.append(Selection(mu, epsilon, partial_transport(cost, mu, epsilon).plan[0].sum(0) / mu))
        found.append(Selection(mu, None, hard_selection(cost, mu).plan[0].sum(0) / mu))
    return found


def summary(toy: Toy, selection: Selection) -> dict[str, float | str]:
    """Compute how much weight lies where, and on how many pixels: ``1 / sum_j p_j^2``, n for equal weights on n."""
    found = float(selection.weights[toy.informative].sum())
    return {
        "mu": selection.mu,
        "epsilon": LINEAR if selection.epsilon is None else selection.epsilon,
        "weight on red and blue": round(found, 4),
        # Masses sum to 1 up to rounding, which may leave less than 0.
        "weight on green": max(0.0, round(1 - found, 4)),
        "pixels in use": round(float(1 / selection.weights.square().sum()), 1),
    }


def run(options: RunOptions) -> None:
    """Solve every setting and write the result."""
    toy = toy_picture()
    rows = [summary(toy, selection) for selection in selections(toy)]
    write_result(options.results / "toy.json", rows, command=EXPERIMENT.command(options), seeds=[SEED])


def draw(record: Record, path: Path) -> None:
    """Draw a row of weights for each mu, the darker the higher, beside the image itself.

    Every row has its own grey scale, from 0 to its largest weight, so that shapes show and not levels.
    """
    toy = toy_picture()
    solved = selections(toy)
    columns = len(EPSILONS) + 1
    figure, grid = subplots(len(MUS), columns + 1, 1.45 * (columns + 1), 1.55 * len(MUS))
    for row, mu in enumerate(MUS):
        own = [selection for selection in solved if selection.mu == mu]
        darkest = max(float(selection.weights.max()) for selection in own)
        for axes, selection in zip(grid[row][1:], own, strict=True):
            axes.imshow(selection.weights.view(SIDE, SIDE).numpy(), cmap="Greys", vmin=0, vmax=darkest)
            if row == 0:
                linear = selection.epsilon is None
                axes.set_title(
                    "linear\nprogramme" if linear else f"$\\varepsilon$ = {selection.epsilon:g}", fontsize=10
                )
        grid[row][1].set_ylabel(f"$\\mu$ = {mu:g}", fontsize=10)
    middle = grid[len(MUS) // 2][0]
    middle.imshow(toy.pixels.view(SIDE, SIDE, 3).numpy())
    middle.set_title("features", fontsize=10)
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[])
        axes.set_frame_on(axes.has_data())
    save(figure, path, dpi=150)


def weights(record: Record) -> str:
    """Write the table of all settings."""
    return markdown_table(record["value"], "g", text_columns=2)


def headlines(rows: list[dict[str, Any]]) -> list[Headline]:
    """Compare the linear programme and epsilon 5 where mu is too small."""
    used = {row["epsilon"]: row["pixels in use"] for row in rows if row["mu"] == MUS[0]}
    what = f"pixels in use of {SIDE * SIDE} (objects have {SIDE * SIDE // 2}), mu {MUS[0]:g}, epsilon 5"
    return [Headline(what, "drawn only", f"{used[5.0]:g}; {LINEAR} {used[LINEAR]:g}")]


EXPERIMENT = Experiment(
    name="toy",
    claim="with mu too small the linear programme leaves out part of the objects, smoothing finds all of them",
    shows="Figure 2",
    cost="2 seconds on one CPU core",
    files=("toy",),
    run=run,
    tables={"weights": weights},
    plots={"toy": draw},
    headlines=headlines,
    seeded=False,
    on_gpu=False,
)
