"""The section about computation: the times, how they grow, and from which k on the iterations are exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gspool.experiments.benchmark.tables import table
from gspool.experiments.computation_growth import HARDLY, SPARED, Rows, backward, forward, growth, reach, seen, told
from gspool.experiments.experiment import Headline
from gspool.experiments.pictured import pictured
from gspool.provenance import read_result

# What the repeats were before results said so.
USUAL_REPEATS = 30
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
                "backward alone, ms": f"{backward(row):.2f}",
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
        "version make the same iterations; the exact solver has no k. *Backward alone* is the difference of the two "
        "medians beside it, and less certain than either."
    )
    picture = pictured(
        "computation.png",
        "Time of forward and backward against the number of iterations",
        "Forward and backward, medians with standard deviations, against the number k of iterations; the dashed line "
        "is the exact solver.",
    )
    return f"{said}\n\n{rendered(value)}\n\n{grown(rows)} {as_exact(rows)}".rstrip() + f"\n\n{picture}"


def grown(rows: Rows) -> str:
    """Say how backward and forward grow from the smallest k to the largest, by which rule that is judged, and what."""
    first, last = reach(rows)
    said = {
        "yes": "**Back-propagation does not grow with k**",
        "partly": "**Back-propagation grows far less with k**",
        "no": "**Back-propagation does grow with k**",
        "cannot tell": "**Whether back-propagation grows with k cannot be told**",
    }[seen(rows).holds]
    return (
        f"{said} by the closed form, from k = {first} to {last}: {told(rows)}. The paper speaks of a constant cost of "
        f'back-propagation; our rule: "yes" is at most {HARDLY:g} times as long with the largest k, "partly" more than '
        f'that but less than {100 * SPARED:g} % of the factor by which the unrolled one grows, "no" the rest. The '
        f"forward makes the iterations either way: {growth(rows, 'closed form', forward).shown} by the closed form, "
        f"{growth(rows, 'unrolled', forward).shown} unrolled. The paper's figure is of training on CUB, where a "
        "network stands around the solver; the share of the iterations in such a step is not measured here."
    )


def as_exact(rows: Rows) -> str:
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
    """Give how the backward grows with k, the time of a step at the largest k, and that of the exact solver."""
    rows = value["rows"]
    first, last = reach(rows)
    step = {(row["way"], row["k"]): row["step_ms"] for row in rows}
    exact, closed, unrolled = step["exact solver", None], step["closed form", last], step["unrolled", last]
    what = f"forward and backward, ms: exact solver; {last} iterations with the closed form; unrolled"
    grows = (growth(rows, way) for way in ("closed form", "unrolled"))
    return [
        Headline(
            f"backward alone, ms, from {first} to {last} iterations: closed form; unrolled",
            "drawn only",
            "; ".join(f"{each.first:.1f} to {each.last:.1f}" for each in grows),
        ),
        Headline(what, "drawn only", f"{exact:.1f}; {closed:.1f}; {unrolled:.1f}"),
    ]
