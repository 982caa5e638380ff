"""Write docs/performance.md and its figures from the results of the GPU benchmarks.

    PYTHONPATH=src python benchmarks/render_performance.py

Every number of the page comes from results/gpu_*.json; what was not measured is not on it, and said so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from performance_figures import draw_growth, draw_iterations
from performance_tables import (
    EAGER,
    LARGE,
    MEMORY,
    NETWORK_LIMITS,
    SMALL,
    TIMES_PUBLISHED,
    comparison_table,
    goals_table,
    host_table,
    missed,
    missed_eager_table,
    missed_table,
    network_table,
    rows_table,
    setting_name,
    single_goals_table,
    sums_table,
    sweep_table,
)

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images"
RESULTS = ROOT / "results"
NAMES = ("pooling", "tiles", "sums", "host", "growth", "iterations", "resnet50")


def measured(result: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    note = f"; {result['note']}" if "note" in result else ""
    return f"one {result['device']} on {result['date']} ({versions}) by `{result['command']}`{note}"


def introduction(result: dict[str, Any]) -> list[str]:
    wrong = result.get("wrong", [])
    checked = "Every setting was checked against the plain version in float64 before it was timed"
    checked += f"; these failed and were not: {'; '.join(wrong)}." if wrong else "."
    settings = result["settings"]
    return [
        "# Performance on a GPU\n",
        '`backend="triton"` runs the kernels for tensors on a CUDA device of compute capability 8.0 or newer, in '
        "float32, bfloat16 or float16, with at most 1024 prototypes, outside `torch.func` transforms and exports. "
        '`backend="auto"` takes them wherever they can run. What a layer costs on your machine is measured by '
        "[`gspool bench`](bench.md).\n",
        f"The full tables: {measured(result)}; rendered from `results/gpu_*.json` by "
        "`benchmarks/render_performance.py`. Times are microseconds for forward and backward together, "
        f"mu {settings['mu']}, epsilon {settings['epsilon']}. *Eager* is the wall clock of ordinary calls, *one "
        "thread* the same under `torch.autograd.set_multithreading_enabled(False)`, *graph* the replay of a CUDA "
        f"graph: the GPU's share alone. {checked}\n",
        "The floor is the larger of *traffic*, the tokens read twice and their gradient written once at the "
        f"{result['copy TB/s']} TB/s of a copy in the same run, and *cuBLAS*, the three products that cannot be "
        "avoided, at the same precision (for bfloat16, one product; the kernels take two where they keep the digits of "
        "float32 prototypes). *Extra memory* is the peak beyond the inputs and their gradients, as a part of the "
        "features.\n",
    ]


def goals(results: dict[str, Any]) -> list[str]:
    rows, resnet50 = results["pooling"]["rows"], results["resnet50"]
    return [
        "## What was hoped for\n",
        "In how many settings (sizes times layouts) each goal is met, counted from the tables below.\n",
        goals_table(rows),
        single_goals_table(rows, None if resnet50 is None else resnet50["network"]),
        "## Against the published algorithm\n",
        f"float32, channels first, eager. The goal was {TIMES_PUBLISHED} times.\n",
        comparison_table([row for row in rows if "published" in row["eager"]]),
    ]


def network(result: dict[str, Any] | None) -> list[str]:
    if result is None:
        return ["GSP against GAP in a compiled ResNet50: `benchmarks/gpu_resnet50.py`, not measured yet.\n"]
    size = result["network"]
    limits = " and ".join(f"{limit:.0%} ({name})" for name, limit in NETWORK_LIMITS.items())
    parts = [
        "## In a whole network\n",
        f"timm's ResNet50 with {size['prototypes']} prototypes, {size['pixels']} pixels, batch {size['batch']}, "
        "bfloat16, channels last, compiled; a training step is forward, backward and SGD. Measured on "
        f"{measured(result)}. The goals were {limits}.\n",
        network_table(size),
    ]
    for name, kernels in size.get("kernels", {}).items():
        times = ", ".join(f"{kernel.replace('_', ' ')} {time:.0f}" for kernel, time in kernels.items())
        parts.append(f"Microseconds of GSP's kernels in one step, {name}: {times}.\n")
    return parts


def full_tables(rows: list[dict[str, Any]]) -> list[str]:
    parts = []
    kinds, layouts = (list(dict.fromkeys(row[key] for row in rows)) for key in ("kind", "layout"))
    for kind in kinds:
        parts.append(f"## {kind}\n")
        for layout in layouts:
            chosen = [row for row in rows if row["kind"] == kind and row["layout"] == layout]
            if chosen:
                parts += [f"{layout.capitalize()}:\n", rows_table(chosen)]
    return parts


def curves(growth: dict[str, Any] | None, iterations: dict[str, Any] | None) -> list[str]:
    parts = []
    if growth is None:
        parts.append("The sweeps over n, m, d and B: `benchmarks/gpu_growth.py`, not measured yet.\n")
    else:
        parts += [
            "## Growth\n",
            "GSP in bfloat16, channels last; GAP and timm's attention pooling alike; graph replays. The published "
            "algorithm in float32, eager, where its tensors of size B x M x N have room. Measured on "
            f"{measured(growth)}.\n",
            draw_growth(growth["growth"], IMAGES),
        ]
    if iterations is None:
        parts.append("The time against k: `benchmarks/gpu_iterations.py`, not measured yet.\n")
    else:
        parts += [
            "## Against the number of steps\n",
            "The transport alone, 32 images of 64 tokens and 64 prototypes, eager: the paper's figure with the exact "
            f"solver beside it, which has no k. Measured on {measured(iterations)}.\n",
            draw_iterations(iterations, IMAGES),
        ]
    return parts


def explanation(results: dict[str, Any]) -> list[str]:
    """For every goal that is missed: where the time went, and what was tried."""
    rows = results["pooling"]["rows"]
    parts = ["## Where the time goes, and what was tried\n"]
    for goal in (LARGE, SMALL):
        slow = missed(goal, rows)
        if slow:
            parts += [
                f"**{goal.name[0].upper()}{goal.name[1:]}** is missed here; after the goal, the microseconds of each "
                "kernel, as PyTorch's profiler sees them.\n",
                missed_table(goal, slow),
            ]
    large = missed(MEMORY, rows)
    if large:
        listed = "; ".join(f"{', '.join(setting_name(row))}: {100 * MEMORY.value(row):.1f} %" for row in large)
        parts.append(f"**Extra memory** is above the goal here: {listed}.\n")
    parts.append(TRIED)
    tiles, sums = results["tiles"], results["sums"]
    if tiles is not None:
        parts += [
            f"The sweep over tiles, graph replays of one pass in microseconds, measured on {measured(tiles)}.\n",
            sweep_table(tiles["trials"]),
        ]
    if sums is not None:
        parts += [
            "Both ways to sum, and other pipelines: (buffers, channels a step), for slices (buffers). Graph replays of "
            f"one pass in microseconds, measured on {measured(sums)}.\n",
            sums_table(sums["trials"]),
        ]
    return parts + host_share(results["host"], rows)


def host_share(host: dict[str, Any], rows: list[dict[str, Any]]) -> list[str]:
    slow = missed(EAGER, rows)
    parts = ["## The host\n"]
    if slow:
        parts += [
            f"**{EAGER.name[0].upper()}{EAGER.name[1:]}** is missed here. What an eager step takes beyond its graph is "
            "the host's.\n",
            missed_eager_table(slow),
        ]
    launch = host.get("one launch", host.get("one launch of nine arguments", {}))
    ways = " and ".join(f"{time} ({way})" for way, time in launch.items())
    return [
        *parts,
        f"Microseconds of the host in whole eager steps and their parts, measured on {measured(host)}; *nothing* is an "
        f"autograd function that only allocates its results. One launch took {ways}.\n",
        host_table(host["host"]),
        HOST,
    ]


def page(results: dict[str, Any]) -> str:
    if results["pooling"] is None or results["host"] is None:
        raise SystemExit("a result is missing; run benchmarks/gpu_pooling.py and gpu_host.py on a GPU")
    parts = introduction(results["pooling"]) + goals(results) + network(results["resnet50"])
    parts += full_tables(results["pooling"]["rows"]) + curves(results["growth"], results["iterations"])
    return "\n".join(parts + explanation(results))


TRIED = """\
**Both gradients in one kernel** (still used for small problems, float16, more than 128 prototypes, and bfloat16
maps, channels first, whose rows of tokens are not a multiple of 16 bytes): each tile adds its part to every entry
of the prototypes' gradient, by atomic additions that move more bytes than the tokens do. Elsewhere `pool backward`
writes the pulls where the tokens' gradient will stand, and `gradient slice` lets a program own 128 channels and
walk over the tokens: one addition a program instead of one a tile.

**Larger tiles, more warps, deeper pipelines** were swept (below). What bounds the products is the traffic of the
prototypes from the L2 cache, read once a tile, in bfloat16 twice for their two halves; larger tiles halve it, but
leave one program a multiprocessor, whose waiting nobody hides.

**Sums of tokens by weight** (`tile sums`) cross all warps in every step of the loop where channels lie side by
side. As a product with the weights in three parts they do not, but the parts take shared memory, and by that the
second program of a multiprocessor where the pipeline is deep.

**Registers.** A loop over tiles that runs once, and a product that was summed apart, made the compiler keep what
nobody needs, and spill the rest; the first is now known to run once, the second is added to where it stands.

**Exact float32** splits both operands of every product in registers; the slices' kernel spills there.

**Waiting for the matrix unit in every step** is the price of a fault in Triton 3.6: a pipelined load that feeds
both the matrix unit and ordinary arithmetic gets one buffer fewer than it needs, and the result is fast and wrong,
differently in every run. A second product in the forward pass of images larger than a tile (the attributes need
all distances again once the threshold is known) and a third in the backward pass are the price of keeping nothing
of size B x M x N.
"""

HOST = """\
PyTorch runs the backward function in a thread of its own; *one thread* shows what the change of threads costs, and
`torch.autograd.set_multithreading_enabled(False)` is open to every user. What is known to cost is left out: eager
calls do not go through PyTorch's dispatcher, kernels are started without Triton's binder, and the backward function
finds ready what the forward pass can know. Average pooling has no Python in its backward pass; a CUDA graph or a
compiled model leaves it out here too.
"""


def read(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"gpu_{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page({name: read(name) for name in NAMES}))
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
