"""The section about computation: the times, how they grow, and from which k on the iterations are exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gspool.experiments.benchmark.tables import table
from gspool.experiments.certificate import read_result
from gspool.experiments.experiment import Headline, Verdict
from gspool.experiments.pictured import pictured

# What the repeats were before results said so.
USUAL_REPEATS = 30
# "Hardly grows": at most so many times, from the smallest k to the largest.
HARDLY = 2.0
# "As exact": an error of at most so many times that of the exact solver.
AS_EXACT = 2.0
NETWORK = "gpu_resnet50"


def rendered(value: dict[str, Any]) -> str:
    """Write the table."""
    return table(
        [
            {
                "solver": row["way"],
                "k": "" if row["k"] is None else str(row["k"]),
                "relative error": f"{row['relative_error']:.0e}",
                "forward, ms": f"{row['forward_ms']:.2f} ± {row['forward_std_ms']:.2f}",
                "forward and backward, ms": f"{row['step_ms']:.2f} ± {row['step_std_ms']:.2f}",
            }
            for row in value["rows"]
        ]
    )


def written(record: dict[str, Any]) -> str:
    """Write what was timed, the table, what it says, and the picture."""
    value = record["value"]
    size, rows = value["size"], value["rows"]
    own = "thread" in record["device"]
    clock = "in the process's own CPU time, which other programs do not take" if own else "by the clock on the wall"
    said = (
        f"{size['images']} images of {size['tokens']} features, {size['prototypes']} prototypes, mu = {value['mu']:g}, "
        f"epsilon = {value['epsilon']:g}; the solver alone, without a network around it. Medians and standard "
        f"deviations of {value.get('repeats', USUAL_REPEATS)} repeats, {clock}. The error is that of the plan in "
        "float32 against the solution in float64, relative to its largest entry. The unrolled and the closed-form "
        "version make the same iterations; the exact solver has no k."
    )
    picture = pictured(
        "computation.png",
        "Time of forward and backward against the number of iterations",
        "Forward and backward, medians with standard deviations, against the number k of iterations; the dashed line "
        "is the exact solver.",
    )
    return f"{said}\n\n{rendered(value)}\n\n{grown(rows)} {as_exact(rows)}".rstrip() + f"\n\n{picture}"


def growth(rows: list[dict[str, Any]], way: str) -> float:
    """Give how many times longer forward and backward take with the largest k than with the smallest.

    Example:
        >>> growth([{"way": "unrolled", "k": k, "step_ms": ms} for k, ms in ((1, 0.5), (10, 4.0))], "unrolled")
        8.0
    """
    own = sorted((row for row in rows if row["way"] == way), key=lambda row: int(row["k"]))
    return float(own[-1]["step_ms"] / own[0]["step_ms"])


def reach(rows: list[dict[str, Any]]) -> tuple[int, int]:
    """Give the smallest and the largest k."""
    steps = [row["k"] for row in rows if row["k"] is not None]
    return min(steps), max(steps)


def grown(rows: list[dict[str, Any]]) -> str:
    """Say how much a step grows from the smallest k to the largest, and whether that is hardly."""
    first, last = reach(rows)
    closed, unrolled = growth(rows, "closed form"), growth(rows, "unrolled")
    kept = closed <= HARDLY
    word = "**The cost hardly grows**" if kept else "**The cost does grow**"
    why = "" if kept else ": the closed form spares the backward pass the iterations, not the forward pass"
    return (
        f"{word} with the closed form, {closed:.0f} times from k = {first} to {last} (unrolled {unrolled:.0f} times), "
        f"forward and backward together{why}. The paper's figure is of training on CUB, where a network "
        "stands around the solver."
    )


def as_exact(rows: list[dict[str, Any]]) -> str:
    """Say from which k on the iterations are as exact as the exact solver, and what both take; nothing if none is."""
    exact = next(row for row in rows if row["way"] == "exact solver")
    enough = [
        row
        for row in rows
        if row["way"] == "closed form" and row["relative_error"] <= AS_EXACT * exact["relative_error"]
    ]
    if not enough:
        return ""
    first = min(enough, key=lambda row: int(row["k"]))
    return (
        f"From k = {first['k']} on, of those timed, the iterations are as exact as the exact solver, within a factor "
        f"of {AS_EXACT:g}; with that k the closed form takes {first['step_ms']:.1f} ms, the exact solver "
        f"{exact['step_ms']:.1f} ms."
    )


def on_gpu(results: Path) -> str:
    """Say what the exact solver adds to a whole network on a GPU, where that has been measured."""
    path = results / f"{NETWORK}.json"
    if not path.is_file():
        return ""
    record = read_result(path)
    network = record["network"]
    inference = network["milliseconds"]["inference"]
    added = 100 * (inference["gsp"] / inference["gap"] - 1)
    return (
        f"\n\nIn a whole network: ResNet50 at {network['pixels']} pixels takes {added:.1f} % longer at inference with "
        f"GSP, by the exact solver, on {record['device']} (results/{NETWORK}.json; more on "
        "[performance](performance.md)). The paper: less than 6 %, with 25 to 50 iterations."
    )


def headlines(value: dict[str, Any]) -> list[Headline]:
    """Give the time of a step at a hundred iterations, and that of the exact solver, which has none."""
    step = {(row["way"], row["k"]): row["step_ms"] for row in value["rows"]}
    exact, closed, unrolled = step["exact solver", None], step["closed form", 100], step["unrolled", 100]
    what = "forward and backward, ms: exact solver; 100 iterations with the closed form; unrolled"
    return [Headline(what, "drawn only", f"{exact:.1f}; {closed:.1f}; {unrolled:.1f}")]


def seen(rows: list[dict[str, Any]]) -> Verdict:
    """Judge the promise: with the closed form a step of the largest k takes at most twice that of the smallest.

    Example:
        >>> rows = [{"way": way, "k": k, "step_ms": 1.0 + k} for way in ("closed form", "unrolled") for k in (1, 99)]
        >>> seen(rows).holds
        'no'
    """
    first, last = reach(rows)
    closed, unrolled = growth(rows, "closed form"), growth(rows, "unrolled")
    because = (
        f"the solver alone takes {closed:.0f} times as long with k = {last} as with k = {first}, unrolled "
        f"{unrolled:.0f} times"
    )
    return Verdict("yes" if closed <= HARDLY else "no", because)
