"""Figure 2: what GSP selects, on a picture of 10 x 10 pixels.

Red and blue are looked for and together fill one half of the picture, green is the background and fills the other.
Paper: the linear programme (P1) with mu too small leaves out part of what it should find; the smoothed problem (P2)
shares its mass among all of it. Ours: results/toy.json, docs/images/toy.png.

    gspool reproduce toy                                # one CPU core, 2 seconds
    python -m gspool.experiments.toy [--out FOLDER]     # the same
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool.experiments.experiment import Experiment, Headline, RunOptions, Verdict
from gspool.experiments.folders import written_told
from gspool.experiments.pictured import pictured
from gspool.experiments.report import section, table
from gspool.experiments.toy_picture import draw
from gspool.functional import distance, hard_selection, partial_transport
from gspool.provenance import write_result

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

SEED = 0
SIDE = 10
# All pixels, and those of red and blue.
PIXELS = SIDE * SIDE
OBJECTS = PIXELS // 2
# Weight on the objects, and pixels in use as a part of theirs, from which on they count as found as a whole.
FOUND, MOST = 0.99, 0.9
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


def render(results: Path) -> str:
    """Write the section."""
    return section(results, "toy", written)


def written(record: dict[str, Any]) -> str:
    """Show the figure and the table under it."""
    return "\n\n".join(
        (
            pictured(
                "toy.png",
                "Weights of the pixels for several mu and epsilon",
                "The features, and the weights of their pixels, the darker the higher; grey scales differ by row.",
            ),
            "Red and blue are the prototypes, green is background: red and blue together fill one half of the picture, "
            "green the other. Paper: with mu too small the linear programme leaves out part of what it should find, "
            "and the smoothed problem shares its mass among all of it. *Pixels in use* is 1 / sum p² over all pixels, "
            "green ones too: n for equal weights on n.",
            table([shown(row) for row in record["value"]], "g"),
            told(record["value"]),
        )
    )


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """Say in the heading of the table that pixels in use are counted among all.

    Example:
        >>> shown({"mu": 0.2, "pixels in use": 20.0})
        {'mu': 0.2, 'pixels in use (of all 100)': 20.0}
    """
    return {f"{name} (of all {PIXELS})" if name == "pixels in use" else name: value for name, value in row.items()}


def too_small(rows: list[dict[str, Any]]) -> dict[str | float, dict[str, Any]]:
    """Give the rows of the mu that is too small for the objects, by epsilon."""
    return {row["epsilon"]: row for row in rows if row["mu"] == MUS[0]}


def told(rows: list[dict[str, Any]]) -> str:
    """Say how many pixels are in use where mu is too small, and how that changes with epsilon."""
    few = too_small(rows)
    used = ", ".join(f"{few[epsilon]['pixels in use']:g} with epsilon {epsilon:g}" for epsilon in EPSILONS[1:])
    return (
        f"With mu = {MUS[0]:g} the linear programme has {few['linear programme']['pixels in use']:g} pixels in use (of "
        f"all {PIXELS}; red and blue are {OBJECTS}). Smoothing has {used}: the smaller epsilon, the more, until "
        f"(epsilon {EPSILONS[0]:g}) {100 * few[EPSILONS[0]]['weight on green']:.0f} % of the weight lies on green."
    )


def best_smoothed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Give the row with most pixels in use where mu is too small, among those with 99 % of the weight on the objects.

    Where smoothing leaves all of them less than that, it is the linear programme's.
    """
    few = too_small(rows)
    clean = [few[epsilon] for epsilon in EPSILONS if few[epsilon]["weight on red and blue"] >= FOUND]
    return max(clean, key=lambda row: float(row["pixels in use"]), default=few["linear programme"])


def with_epsilon(row: dict[str, Any]) -> str:
    """Name the epsilon of a row, or the linear programme.

    Example:
        >>> with_epsilon({"epsilon": 5.0}), with_epsilon({"epsilon": "linear programme"})
        ('epsilon 5', 'linear programme')
    """
    return row["epsilon"] if isinstance(row["epsilon"], str) else f"epsilon {row['epsilon']:g}"


def seen(rows: list[dict[str, Any]]) -> Verdict:
    """Judge the promise where mu is too small: smoothing finds the objects as a whole, the linear programme does not.

    Found as a whole: 99 % of the weight lies on them, and at least nine tenths as many pixels as they have are in use.
    """
    linear = too_small(rows)["linear programme"]["pixels in use"]
    best = best_smoothed(rows)
    because = (
        f"mu {MUS[0]:g}, pixels in use (of all {PIXELS}; red and blue are {OBJECTS}): linear programme {linear:g}, "
        f"smoothing at best {best['pixels in use']:g} ({with_epsilon(best)}), with "
        f"{100 * best['weight on red and blue']:.0f} % of the weight on red and blue"
    )
    if linear >= MOST * OBJECTS or best["pixels in use"] <= linear:
        return Verdict("no", because)
    return Verdict("yes" if best["pixels in use"] >= MOST * OBJECTS else "partly", because)


def headlines(rows: list[dict[str, Any]]) -> list[Headline]:
    """Say how the linear programme and the smoothed problem that the verdict stands on differ where mu is too small."""
    best, linear = best_smoothed(rows), too_small(rows)["linear programme"]
    what = f"pixels in use (of all {PIXELS}; red and blue are {OBJECTS}), mu {MUS[0]:g}, {with_epsilon(best)}"
    return [
        Headline(what, "drawn only", f"{best['pixels in use']:g}; linear programme {linear['pixels in use']:g}"),
    ]


EXPERIMENT = Experiment(
    name="toy",
    promise="with mu too small the linear programme leaves out part of the objects, and smoothing finds them all",
    shows="Figure 2",
    cost="2 seconds on one CPU core",
    files=("toy",),
    run=run,
    render=render,
    headlines=headlines,
    verdict=lambda record: seen(record["value"]),
    seeded=False,
    on_gpu=False,
)


def main(arguments: list[str] | None = None) -> None:
    """Run the experiment into a folder with results/ and docs/images/."""
    parser = argparse.ArgumentParser(prog="python -m gspool.experiments.toy", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(), help="folder for results/ and docs/images/ (here)")
    out: Path = parser.parse_args(arguments).out
    options = RunOptions(results=out / "results", images=out / "docs" / "images")
    with written_told(EXPERIMENT.name, options.results, options.images):
        run(options)


if __name__ == "__main__":
    main()
