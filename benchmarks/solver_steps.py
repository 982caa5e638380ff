"""Measure the error of the threshold by number of Newton steps, and the error of the published fixed point.

Claim: with the steps that `gspool.functional.threshold` takes, the error of the weights is at most 1e-12 (float64) and
2e-6 (float32) of the largest one, times max(1, epsilon / 10) for the rounding of the cost. Problems beyond that are
counted and the worst is named. The reference is a float64 bisection that shares no code with the solver.

    python benchmarks/solver_steps.py [--out results/solver_steps.json]     # one CPU core, 20 seconds
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from gspool.functional import distance, partial_transport
from gspool.functional.published import closed_form_transport, fixed_point_transport
from gspool.functional.threshold import NEWTON_STEPS
from gspool.provenance import write_result

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKENS = (1, 2, 7, 49, 196, 1024)
PROTOTYPES = (1, 8, 65)
EPSILONS = (0.0, 0.1, 0.5, 5.0, 20.0, 100.0, 1000.0, 1e4)
MUS = (1e-4, 0.01, 0.3, 0.5, 0.7, 0.95, 0.999)
KINDS = ("random", "clustered", "duplicate")
STEPS = range(max(NEWTON_STEPS.values()) + 1)
ALLOWED = {torch.float64: 1e-12, torch.float32: 2e-6}
DIM = 16
SEED = 0
PUBLISHED_STEPS = 100
PUBLISHED_MUS = (0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99, 0.999)
PUBLISHED_EPSILONS = (0.5, 5.0, 20.0)


def problem(kind: str, n: int, m: int, generator: torch.Generator) -> torch.Tensor:
    """Return a cost [m, n] in float64: tokens that are random, clustered around prototypes, or duplicates."""
    prototypes = torch.randn(m, DIM, generator=generator, dtype=torch.float64) / DIM**0.5
    tokens = torch.randn(n, DIM, generator=generator, dtype=torch.float64) / DIM**0.5
    if kind == "clustered":
        near = prototypes[torch.randint(min(m, 3), (n,), generator=generator)] + 1e-3 * tokens
        tokens = torch.where(torch.arange(n)[:, None] % 2 == 0, near, tokens)
    if kind == "duplicate":
        # Every third token equals a prototype; the rest repeat two others.
        tokens = torch.where(torch.arange(n)[:, None] % 3 == 0, prototypes[:1], tokens[torch.arange(n) % 2 % n])
    return distance(prototypes, tokens[None])[0]


def bisected_weights(cost: np.ndarray, mu: float, epsilon: float) -> np.ndarray:
    """Solve mean sigmoid(tau + l) = mu by bisection to the last digit, without gspool code."""
    logits = -epsilon * cost
    highest = logits.max(0)
    affinity = highest + np.log(np.exp(logits - highest).sum(0))
    low = np.log(mu) - np.log1p(-mu) - affinity.max()
    high = np.log(mu) - np.log1p(-mu) - affinity.min()
    with np.errstate(over="ignore"):
        while True:
            tau = low + (high - low) / 2
            if not low < tau < high:
                break
            # The transported mass, or for a large mu the residual: the smaller of the two is precise.
            given, kept = 1 / (1 + np.exp(-tau - affinity)), 1 / (1 + np.exp(tau + affinity))
            too_much = given.mean() > mu if mu <= 0.5 else kept.mean() < 1 - mu
            low, high = (low, tau) if too_much else (tau, high)
        given = 1 / (1 + np.exp(-tau - affinity))
    return given / given.sum()


@contextlib.contextmanager
def newton_steps(steps: int):
    """Make the solver take another number of steps."""
    usual = dict(NEWTON_STEPS)
    NEWTON_STEPS.update(dict.fromkeys(usual, steps))
    try:
        yield
    finally:
        NEWTON_STEPS.update(usual)


class Solved(NamedTuple):
    """One problem and its error in units of max(1, epsilon / 10), by dtype and number of steps."""

    name: str
    epsilon: float
    error: dict[tuple[torch.dtype, int], float]


def solve_grid() -> Iterator[Solved]:
    """Solve every problem of the grid with every number of steps."""
    generator = torch.Generator().manual_seed(SEED)
    cases = [*itertools.product(KINDS, MUS)]
    mu = torch.tensor([share for _, share in cases], dtype=torch.float64)
    for n, m, epsilon in itertools.product(TOKENS, PROTOTYPES, EPSILONS):
        cost = torch.stack([problem(kind, n, m, generator) for kind, _ in cases])
        errors = {}
        for dtype in ALLOWED:
            rounded = cost.to(dtype)
            pairs = zip(rounded.double().numpy(), mu.tolist(), strict=True)
            exact = torch.from_numpy(np.stack([bisected_weights(each, share, epsilon) for each, share in pairs]))
            for steps in STEPS:
                with newton_steps(steps):
                    plan = partial_transport(rounded, mu, epsilon).plan
                off = (plan.double().sum(-2) / mu[:, None] - exact).abs().amax(-1) / exact.amax(-1)
                errors[dtype, steps] = (off / max(1, epsilon / 10)).tolist()
        for i, (kind, share) in enumerate(cases):
            name = f"{kind} tokens, n = {n}, m = {m}, epsilon = {epsilon:g}, mu = {share:g}"
            yield Solved(name, epsilon, {key: each[i] for key, each in errors.items()})


def measure_newton() -> dict:
    """Summarise the grid: worst error by number of steps, steps needed by epsilon, problems beyond the bound."""
    solved = [*solve_grid()]
    by_dtype = {}
    for dtype, allowed in ALLOWED.items():
        steps = NEWTON_STEPS[dtype]
        hardest = max(solved, key=lambda each: each.error[dtype, steps])
        by_dtype[named(dtype)] = {
            "steps_taken": steps,
            "allowed": allowed,
            "worst_error": hardest.error[dtype, steps],
            "worst_problem": hardest.name,
            "median_error": float(np.median([each.error[dtype, steps] for each in solved])),
            "problems_beyond": sum(each.error[dtype, steps] > allowed for each in solved),
        }

    def worst(dtype: torch.dtype, steps: int, part: list[Solved]) -> float:
        return max(each.error[dtype, steps] for each in part)

    def needed(dtype: torch.dtype, epsilon: float) -> int | str:
        part = [each for each in solved if each.epsilon == epsilon]
        enough = [steps for steps in STEPS if worst(dtype, steps, part) <= ALLOWED[dtype]]
        return enough[0] if enough else f"more than {max(STEPS)}"

    return {
        "problems": len(solved),
        **by_dtype,
        "by_steps": [{"steps": k, **{named(dtype): worst(dtype, k, solved) for dtype in ALLOWED}} for k in STEPS],
        "steps_needed": [
            {"epsilon": f"{e:g}", **{named(dtype): needed(dtype, e) for dtype in ALLOWED}} for e in EPSILONS
        ],
    }


def named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def measure_published() -> list[dict]:
    """Compare the fixed point and its closed-form gradient after 100 steps with the exact ones, in float64."""
    generator = torch.Generator().manual_seed(SEED)
    cost = torch.stack([problem("random", 49, 64, generator) for _ in range(32)])
    direction = torch.randn(cost.shape[0], cost.shape[-1], generator=generator, dtype=torch.float64)
    rows = []
    for mu, epsilon in itertools.product(PUBLISHED_MUS, PUBLISHED_EPSILONS):
        exact = torch.from_numpy(np.stack([bisected_weights(c, mu, epsilon) for c in cost.numpy()]))
        residual, _ = fixed_point_transport(cost, mu, epsilon, PUBLISHED_STEPS)
        error = ((1 / cost.shape[-1] - residual) / mu - exact).abs().amax(-1) / exact.amax(-1)
        published = gradient(
            lambda c, mu=mu, e=epsilon: closed_form_transport(c, mu, e, PUBLISHED_STEPS), cost, direction
        )
        ours = gradient(lambda c, mu=mu, e=epsilon: partial_transport(c, mu, e), cost, direction)
        rows.append(
            {
                "mu": f"{mu:g}",
                "epsilon": f"{epsilon:g}",
                "error of the weights": error.max().item(),
                "error of the gradient": ((published - ours).abs().max() / ours.abs().max()).item(),
            }
        )
    return rows


def gradient(transport, cost: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    """Differentiate a fixed linear function of the residual with respect to the cost."""
    variable = cost.clone().requires_grad_()
    (transport(variable).residual * direction).sum().backward()
    return variable.grad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/solver_steps.json"))
    out = parser.parse_args().out
    value = {"newton": measure_newton(), "published": measure_published()}
    write_result(out, value, command="python benchmarks/solver_steps.py", seeds=[SEED], libraries=["numpy"])
    for row in value["newton"]["by_steps"] + value["newton"]["steps_needed"] + value["published"]:
        print(row)
    for dtype in ALLOWED:
        print(named(dtype), value["newton"][named(dtype)])


if __name__ == "__main__":
    main()
