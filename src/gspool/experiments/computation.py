"""Figure 7, left, and the supplement's "Computational Analysis": what the number of iterations costs.

Paper: with automatic differentiation the cost of back-propagation grows with the number k of iterations; with the
closed-form gradient it is constant, and 25 to 50 iterations add less than 6 % to inference.
Ours: results/computation.json, docs/images/computation.png, and our solver, which has no k: it runs until convergence.
Only the solver is timed. What GSP adds to a whole network: docs/performance.md.

    gspool reproduce computation          # one CPU core, one minute
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gspool.experiments.experiment import Experiment, Headline, Record, RunOptions
from gspool.experiments.plots import curve, save, subplots
from gspool.experiments.tables import markdown_table
from gspool.functional import clip_norm, distance, partial_transport
from gspool.functional.published import closed_form_transport, fixed_point_transport
from gspool.provenance import write_result

MU, EPSILON = 0.3, 5.0
ITERATIONS = (1, 5, 10, 25, 50, 100)
REPEATS = 30
EXACT, CLOSED, UNROLLED = "exact solver", "closed form", "unrolled"
Rows = Sequence[Mapping[str, Any]]
Solver = Callable[[torch.Tensor], Any]


class Size(NamedTuple):
    """A batch of feature maps: CUB's is 32 images of 8 x 8 features against 64 prototypes."""

    images: int = 32
    tokens: int = 64
    prototypes: int = 64
    dim: int = 128


def costs(size: Size, device: str, seed: int = 0) -> torch.Tensor:
    """Draw features, and prototypes near some of them; return the distances."""
    generator = torch.Generator().manual_seed(seed)
    tokens = clip_norm(torch.randn(size.images, size.tokens, size.dim, generator=generator))
    prototypes = clip_norm(
        tokens.flatten(0, 1)[: size.prototypes] + 0.05 * torch.randn(size.prototypes, size.dim, generator=generator)
    )
    return distance(prototypes, tokens).to(device)


def seconds(step: Callable[[], Any], device: str, repeats: int) -> list[float]:
    """Time a step after two warm-up steps; on a CPU in process time, which other programs do not affect."""
    found = []
    clock = time.process_time if device == "cpu" else time.perf_counter
    for number in range(repeats + 2):
        if device != "cpu":
            torch.cuda.synchronize(device)
        start = clock()
        step()
        if device != "cpu":
            torch.cuda.synchronize(device)
        if number >= 2:
            found.append(clock() - start)
    return found


def measure(size: Size, device: str, iterations: tuple[int, ...], repeats: int) -> list[dict[str, Any]]:
    """Time forward, and forward with backward, of every solver, and compute its error against float64."""
    cost = costs(size, device)
    exact = partial_transport(cost.double(), MU, EPSILON).plan
    solvers: list[tuple[str, int | None, Solver]] = [(EXACT, None, partial(partial_transport, mu=MU, epsilon=EPSILON))]
    for count in iterations:
        for name, solve in ((CLOSED, closed_form_transport), (UNROLLED, fixed_point_transport)):
            solvers.append((name, count, partial(solve, mu=MU, epsilon=EPSILON, steps=count)))
    rows = []
    for name, steps, solver in solvers:
        leaf, weight = cost.clone().requires_grad_(), torch.randn_like(cost)
        inference = seconds(partial(forward, solver, cost), device, repeats)
        training = seconds(partial(forward_and_backward, solver, leaf, weight), device, repeats)
        error = float((forward(solver, cost) - exact).abs().max() / exact.max())
        rows.append(
            {
                "way": name,
                "k": steps,
                "forward_ms": 1e3 * statistics.median(inference),
                "forward_std_ms": 1e3 * statistics.stdev(inference),
                "step_ms": 1e3 * statistics.median(training),
                "step_std_ms": 1e3 * statistics.stdev(training),
                "relative_error": error,
            }
        )
    return rows


@torch.no_grad()
def forward(solver: Solver, cost: torch.Tensor) -> torch.Tensor:
    """Solve without a gradient, and return the plan."""
    plan: torch.Tensor = solver(cost).plan
    return plan


def forward_and_backward(solver: Solver, leaf: torch.Tensor, weight: torch.Tensor) -> None:
    """Solve, and compute the gradient of a weighted sum of the plan."""
    leaf.grad = None
    (solver(leaf).plan * weight).sum().backward()


def run(options: RunOptions) -> None:
    """Measure and write the result."""
    size = Size(4, 16, 8, 16) if options.quick else Size()
    iterations = (1, 5) if options.quick else ITERATIONS
    threads = torch.get_num_threads()
    # One thread: process time adds up the time of all threads.
    torch.set_num_threads(1)
    repeats = 3 if options.quick else REPEATS
    try:
        rows = measure(size, options.device, iterations, repeats)
    finally:
        torch.set_num_threads(threads)
    value = {"size": size._asdict(), "mu": MU, "epsilon": EPSILON, "repeats": repeats, "rows": rows}
    path = options.results / "computation.json"
    write_result(path, value, command=EXPERIMENT.command(options), seeds=[0], device=options.device)


def backward(row: Mapping[str, Any]) -> float:
    """Return the time of the backward pass alone: the difference of two medians, which noise may make negative."""
    return max(float(row["step_ms"] - row["forward_ms"]), 0.0)


def backward_growth(rows: Rows, way: str) -> str:
    """Write how the backward pass grows from the smallest k to the largest.

    Example:
        >>> rows = [{"way": "unrolled", "k": k, "forward_ms": 1.0, "step_ms": ms} for k, ms in ((10, 5.0), (1, 1.5))]
        >>> backward_growth(rows, "unrolled")
        '0.50 to 4.00 ms'
    """
    own = sorted((row for row in rows if row["way"] == way), key=lambda row: int(row["k"]))
    return f"{backward(own[0]):.2f} to {backward(own[-1]):.2f} ms"


def times(record: Record) -> str:
    """Write the table of all solvers."""
    return markdown_table(
        [
            {
                "solver": row["way"],
                "k": "" if row["k"] is None else row["k"],
                "relative error": f"{row['relative_error']:.0e}",
                "forward, ms": f"{row['forward_ms']:.2f} ± {row['forward_std_ms']:.2f}",
                "backward alone, ms": backward(row),
                "forward and backward, ms": f"{row['step_ms']:.2f} ± {row['step_std_ms']:.2f}",
            }
            for row in record["value"]["rows"]
        ],
        ".2f",
        text_columns=1,
    )


def draw(record: Record, path: Path) -> None:
    """Draw the time of forward and backward against k, the exact solver as a line."""
    rows = record["value"]["rows"]
    figure, ((axes,),) = subplots(width=5, height=3.2)
    for name in (UNROLLED, CLOSED):
        own = [row for row in rows if row["way"] == name]
        curve(
            axes,
            [row["k"] for row in own],
            [row["step_ms"] for row in own],
            [row["step_std_ms"] for row in own],
            label=name,
        )
    exact = next(row for row in rows if row["way"] == EXACT)
    axes.axhline(exact["step_ms"], linestyle="--", color="grey", label=EXACT)
    axes.set(xlabel="iterations k", ylabel="forward and backward, ms", ylim=(0, None))
    axes.legend()
    save(figure, path, dpi=150)


def headlines(value: dict[str, Any]) -> list[Headline]:
    """Return how the backward pass grows with k, and the time of a step at the largest k and of the exact solver."""
    rows = value["rows"]
    steps = [row["k"] for row in rows if row["k"] is not None]
    step = {(row["way"], row["k"]): row["step_ms"] for row in rows}
    last = max(steps)
    return [
        Headline(
            f"backward alone, from {min(steps)} to {last} iterations: closed form; unrolled",
            "drawn only",
            f"{backward_growth(rows, CLOSED)}; {backward_growth(rows, UNROLLED)}",
        ),
        Headline(
            f"forward and backward, ms: exact solver; {last} iterations with the closed form; unrolled",
            "drawn only",
            f"{step[EXACT, None]:.1f}; {step[CLOSED, last]:.1f}; {step[UNROLLED, last]:.1f}",
        ),
    ]


EXPERIMENT = Experiment(
    name="computation",
    claim="with the closed-form gradient the cost of back-propagation does not grow with the number of iterations",
    shows="Figure 7, left, and Computational Analysis (Supp.)",
    cost="a minute on one CPU core",
    files=("computation",),
    run=run,
    tables={
        "times": times,
        "closed_form": lambda record: backward_growth(record["value"]["rows"], CLOSED),
        "unrolled": lambda record: backward_growth(record["value"]["rows"], UNROLLED),
    },
    plots={"computation": draw},
    headlines=headlines,
    seeded=False,
)
