"""Figure 7, left, and the supplement's "Computational Analysis": what the number of iterations costs.

Paper: with automatic differentiation, the cost of back-propagation grows with the number k of iterations; with the
closed-form gradient it is constant, and 25 to 50 iterations add less than 6 % to inference. Ours:
results/computation.json, on the device of the run. Beside the two stands our solver, which has no k: it ends when it
has converged, to the last digit.

    gspool reproduce computation          # one CPU core, one minute
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gspool.experiments.computation_growth import seen
from gspool.experiments.computation_section import headlines, on_gpu, rendered, written
from gspool.experiments.experiment import Experiment, RunOptions
from gspool.experiments.report import section
from gspool.functional import clip_norm, distance, partial_transport
from gspool.functional.published import closed_form_transport, fixed_point_transport
from gspool.provenance import write_result

FILE = "computation"
MU, EPSILON = 0.3, 5.0
ITERATIONS = (1, 5, 10, 25, 50, 100)
REPEATS = 30


class Size(NamedTuple):
    """A batch of feature maps: CUB's is 32 images of 8 x 8 features against 64 prototypes."""

    images: int = 32
    tokens: int = 64
    prototypes: int = 64
    dim: int = 128


def costs(size: Size, device: str, seed: int = 0) -> torch.Tensor:
    """Draw features and prototypes near some of them, and give the distances."""
    generator = torch.Generator().manual_seed(seed)
    tokens = clip_norm(torch.randn(size.images, size.tokens, size.dim, generator=generator))
    prototypes = clip_norm(
        tokens.flatten(0, 1)[: size.prototypes] + 0.05 * torch.randn(size.prototypes, size.dim, generator=generator)
    )
    return distance(prototypes, tokens).to(device)


def seconds(step: Callable[[], Any], device: str, repeats: int) -> list[float]:
    """Time a step, after two that are not counted; on a CPU in its own time, which other programs do not take."""
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
    """Time forward, and forward with backward, of every way to solve; say how far each is from the solution."""
    cost = costs(size, device)
    exact = partial_transport(cost.double(), MU, EPSILON).plan
    ways: list[tuple[str, int | None, Callable[[torch.Tensor], Any]]] = [
        ("exact solver", None, functools.partial(partial_transport, mu=MU, epsilon=EPSILON))
    ]
    for count in iterations:
        for name, solve in (("closed form", closed_form_transport), ("unrolled", fixed_point_transport)):
            ways.append((name, count, functools.partial(solve, mu=MU, epsilon=EPSILON, steps=count)))
    rows = []
    for name, steps, solve_it in ways:
        leaf = cost.clone().requires_grad_()
        weight = torch.randn_like(cost)

        def both(leaf: torch.Tensor = leaf, solve_it: Any = solve_it, weight: torch.Tensor = weight) -> None:
            leaf.grad = None
            (solve_it(leaf).plan * weight).sum().backward()

        def forward(leaf: torch.Tensor = leaf, solve_it: Any = solve_it) -> None:
            with torch.no_grad():
                solve_it(leaf)

        inference, training = seconds(forward, device, repeats), seconds(both, device, repeats)
        with torch.no_grad():
            error = float((solve_it(cost).plan - exact).abs().max() / exact.max())
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


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the time of forward and backward against k, the exact solver as a line."""
    import matplotlib

    # Before pyplot, which would look for a screen.
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 3.2), layout="constrained")
    for name in ("unrolled", "closed form"):
        own = [row for row in rows if row["way"] == name]
        values, around = [row["step_ms"] for row in own], [row["step_std_ms"] for row in own]
        axes.errorbar([row["k"] for row in own], values, yerr=around, marker="o", capsize=3, label=name)
    exact = next(row for row in rows if row["way"] == "exact solver")
    axes.axhline(exact["step_ms"], linestyle="--", color="grey", label="exact solver")
    axes.set(xlabel="iterations k", ylabel="forward and backward, ms", ylim=(0, None))
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, metadata={"Software": None})
    pyplot.close(figure)


def run(options: RunOptions) -> None:
    """Measure, write, draw."""
    size = Size(4, 16, 8, 16) if options.quick else Size()
    iterations = (1, 5) if options.quick else ITERATIONS
    threads = torch.get_num_threads()
    # One thread: the time of a process is that of all its threads together.
    torch.set_num_threads(1)
    repeats = 3 if options.quick else REPEATS
    try:
        rows = measure(size, options.device, iterations, repeats)
    finally:
        torch.set_num_threads(threads)
    value = {"size": size._asdict(), "mu": MU, "epsilon": EPSILON, "repeats": repeats, "rows": rows}
    path = options.results / f"{FILE}.json"
    write_result(path, value, command=EXPERIMENT.command(options), seeds=[0], device=options.device)
    draw(rows, options.images / "computation.png")
    print(rendered(value))


def render(results: Path) -> str:
    """Write the section."""
    return section(results, FILE, lambda record: f"{written(record)}{on_gpu(results)}")


EXPERIMENT = Experiment(
    name="computation",
    promise="with the closed-form gradient the cost of back-propagation does not grow with the number of iterations",
    shows="Figure 7, left, and Computational Analysis (Supp.)",
    cost="a minute on one CPU core",
    files=(FILE,),
    run=run,
    render=render,
    headlines=headlines,
    verdict=lambda record: seen(record["value"]["rows"]),
    not_attempted="the share of k iterations in a whole training step of CUB, which the paper draws, and in inference "
    "(less than 6 % in the paper); the solver is timed alone",
    seeded=False,
)
