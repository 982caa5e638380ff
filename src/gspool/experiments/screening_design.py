"""What the screening trains: eight corners of a factorial, and a grid of m and epsilon, with the paper's figures."""

from __future__ import annotations

from typing import NamedTuple

from gspool.experiments.benchmark.arms import Arm

LOSSES = ("c2", "pnca")
# What the paper's factorial and grid are of.
DATA = "cub"


class Corner(NamedTuple):
    """One run of the factorial: its four settings, and the paper's MAP@R with C2 and with ProxyNCA++."""

    prototypes: int
    mu: float
    epsilon: float
    zsr: float
    paper: tuple[float, float]


# Half of the sixteen corners, those whose signs multiply to +1: main effects are not mixed up with each other.
CORNERS = (
    Corner(16, 0.3, 0.5, 0.1, (40.63, 40.59)),
    Corner(16, 0.7, 0.5, 0.5, (40.41, 40.34)),
    Corner(128, 0.3, 0.5, 0.5, (40.22, 40.35)),
    Corner(128, 0.7, 0.5, 0.1, (40.07, 40.85)),
    Corner(16, 0.3, 20.0, 0.5, (36.11, 40.51)),
    Corner(16, 0.7, 20.0, 0.1, (39.11, 39.88)),
    Corner(128, 0.3, 20.0, 0.1, (39.61, 39.12)),
    Corner(128, 0.7, 20.0, 0.5, (35.36, 39.92)),
)
BASELINE = (39.77, 39.90)
FACTORS = {"prototypes": (16, 128), "mu": (0.3, 0.7), "epsilon": (0.5, 20.0), "zsr": (0.1, 0.5)}
GRID_PROTOTYPES, GRID_EPSILONS = (16, 32, 64, 128), (0.5, 1.0, 5.0, 10.0, 20.0)


def factorial_arms() -> tuple[Arm, ...]:
    """List the eight corners and the baseline, for both losses."""
    arms = []
    for loss in LOSSES:
        arms.append(Arm(loss, "gap"))
        for corner in CORNERS:
            options = {"prototypes": corner.prototypes, "mu": corner.mu, "epsilon": corner.epsilon}
            name = f"m {corner.prototypes}, mu {corner.mu:g}, epsilon {corner.epsilon:g}, zsr {corner.zsr:g}"
            arms.append(Arm(loss, "gsp", name, options, zsr=corner.zsr))
    return tuple(arms)


def corner_arms(loss: str) -> list[Arm]:
    """List the eight corners of one loss, in the order of `CORNERS`."""
    return [arm for arm in factorial_arms() if arm.loss == loss and arm.pooling == "gsp"]


def paper_figures(loss: str) -> dict[str, float]:
    """Give the paper's validation MAP@R by the name of the arm, average pooling included.

    Example:
        >>> paper_figures("c2")["c2 gap"]
        39.77
    """
    place = ("c2", "pnca").index(loss)
    figures = [BASELINE[place], *(corner.paper[place] for corner in CORNERS)]
    names = [arm.name for arm in factorial_arms() if arm.loss == loss]
    return dict(zip(names, figures, strict=True))


def grid_arms() -> tuple[Arm, ...]:
    """List the grid of m and epsilon at mu 0.3 and lambda 0.1, for both losses."""
    return tuple(
        Arm(
            loss,
            "gsp",
            f"m {count}, mu 0.3, epsilon {epsilon:g}, zsr 0.1",
            {"prototypes": count, "mu": 0.3, "epsilon": epsilon},
            zsr=0.1,
        )
        for loss in LOSSES
        for count in GRID_PROTOTYPES
        for epsilon in GRID_EPSILONS
    )


def all_arms(part: str) -> tuple[Arm, ...]:
    """List what a part of the study trains; a corner of the factorial may lie on the grid, and is there once."""
    arms = (factorial_arms() if part != "grid" else ()) + (grid_arms() if part != "factorial" else ())
    return tuple({arm.name: arm for arm in arms}.values())
