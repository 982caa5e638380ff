"""Write docs/performance.md and its figures from the results of the benchmarks.

    PYTHONPATH=src python benchmarks/render_performance.py

Every number on the page comes from results/gpu_*.json and results/head_step_*.json. Missing measurements are named as
missing.
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
    head_table,
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
    checked = "Every setting was compared with the plain version in float64 before it was timed"
    checked += f"; these failed and were not timed: {'; '.join(wrong)}." if wrong else "."
    settings = result["settings"]
    return [
        "# Performance\n",
        '`backend="triton"` runs the kernels for tensors on a CUDA device of compute capability 8.0 or newer, in '
        "float32, bfloat16 or float16, with at most 1024 prototypes, outside `torch.func` transforms and exports. "
        '`backend="auto"` uses them wherever they can run. Measure a layer on your own machine with '
        "[`gspool bench`](bench.md).\n",
        f"The full tables were measured on {measured(result)}. `benchmarks/render_performance.py` renders this page "
        "from `results/`. Times are in microseconds, forward and backward together, "
        f"mu {settings['mu']}, epsilon {settings['epsilon']}. *Eager* is the wall-clock time of ordinary calls, *one "
        "thread* the same under `torch.autograd.set_multithreading_enabled(False)`, *graph* the replay of a CUDA "
        f"graph, which is GPU time alone. {checked}\n",
        "The floor is a lower bound: the larger of *traffic* (the tokens read twice and their gradient written once, "
        f"at the {result['copy TB/s']} TB/s of a copy in the same run) and *cuBLAS* (the three necessary matrix "
        "products at the same precision; for bfloat16 one product, where the kernels need two to keep the precision of "
        "float32 prototypes). *Extra memory* is the peak beyond the inputs and their gradients, relative to the "
        "features.\n",
    ]


def goals(results: dict[str, Any]) -> list[str]:
    rows, resnet50 = results["pooling"]["rows"], results["resnet50"]
    return [
        "## Goals\n",
        "The number of settings (sizes times layouts) in which each goal is met, counted from the tables below.\n",
        goals_table(rows),
        single_goals_table(rows, None if resnet50 is None else resnet50["network"]),
        "## Comparison with the published algorithm\n",
        f"float32, channels first, eager. The goal was {TIMES_PUBLISHED} times.\n",
        comparison_table([row for row in rows if "published" in row["eager"]]),
    ]


def network(result: dict[str, Any] | None) -> list[str]:
    if result is None:
        return ["GSP and GAP in a compiled ResNet50 (`benchmarks/gpu_resnet50.py`): not measured yet.\n"]
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
        parts.append(f"Microseconds per kernel of GSP in one step, {name}: {times}.\n")
    return parts


def head_steps(results: list[dict[str, Any]]) -> list[str]:
    if not results:
        return ["Training steps of a head (`benchmarks/head_step.py`): not measured yet.\n"]
    size = results[0]["value"]
    loads = [row["load_per_core"] for result in results for row in result["value"]["rows"]]
    return [
        "## Training a head\n",
        f"Milliseconds of a training step: embedding from {size['dim']} to {size['out_dim']} channels, pooling "
        f"of {size['images']} images of {size['tokens']} tokens with {size['prototypes']} prototypes, ProxyNCA++, "
        "backward, Adam. GSP embeds every token, and so does the GAP it is compared with; *embedding after* is GAP as "
        "it is used by itself, which embeds one vector an image. *Learned* features pass a gradient on to a backbone. "
        "With one thread it is the CPU time, which changes little on a busy machine. Measured on "
        f"{'; '.join(map(measured, results))}, with a load per core of {min(loads):.1f} to {max(loads):.1f}.\n",
        head_table(results),
    ]


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
        parts.append("The sweeps over n, m, d and B (`benchmarks/gpu_growth.py`): not measured yet.\n")
    else:
        parts += [
            "## Scaling\n",
            "GSP, GAP and timm's attention pooling in bfloat16, channels last, graph replays. The published algorithm "
            "in float32, eager, where its tensors of size B x M x N fit. Measured on "
            f"{measured(growth)}.\n",
            draw_growth(growth["growth"], IMAGES),
        ]
    if iterations is None:
        parts.append("Time by number of steps k (`benchmarks/gpu_iterations.py`): not measured yet.\n")
    else:
        parts += [
            "## Time by number of steps\n",
            "The transport alone, 32 images of 64 tokens and 64 prototypes, eager: the figure of the paper, and the "
            f"exact solver, which has no k. Measured on {measured(iterations)}.\n",
            draw_iterations(iterations, IMAGES),
        ]
    return parts


def explanation(results: dict[str, Any]) -> list[str]:
    """For every missed goal: where the time goes, and what was tried."""
    rows = results["pooling"]["rows"]
    parts = ["## Where the time goes, and what was tried\n"]
    for goal in (LARGE, SMALL):
        slow = missed(goal, rows)
        if slow:
            parts += [
                f"Settings that miss **{goal.name}**, with the microseconds of each kernel from PyTorch's profiler.\n",
                missed_table(goal, slow),
            ]
    large = missed(MEMORY, rows)
    if large:
        listed = "; ".join(f"{', '.join(setting_name(row))}: {100 * MEMORY.value(row):.1f} %" for row in large)
        parts.append(f"Settings that miss the goal for **extra memory**: {listed}.\n")
    parts.append(TRIED)
    tiles, sums = results["tiles"], results["sums"]
    if tiles is not None:
        parts += [
            f"Sweep over tile sizes, graph replays of one pass in microseconds, measured on {measured(tiles)}.\n",
            sweep_table(tiles["trials"]),
        ]
    if sums is not None:
        parts += [
            "Two ways to sum, and other pipelines: (buffers, channels per step), for slices (buffers). Graph replays "
            f"of one pass in microseconds, measured on {measured(sums)}.\n",
            sums_table(sums["trials"]),
        ]
    return parts + host_share(results["host"], rows)


def host_share(host: dict[str, Any], rows: list[dict[str, Any]]) -> list[str]:
    slow = missed(EAGER, rows)
    parts = ["## Host time\n"]
    if slow:
        parts += [
            f"Settings that miss **{EAGER.name}**. The difference between eager and graph is host time.\n",
            missed_eager_table(slow),
        ]
    launch = host.get("one launch", host.get("one launch of nine arguments", {}))
    ways = " and ".join(f"{time} ({way})" for way, time in launch.items())
    return [
        *parts,
        f"Host time in microseconds of whole eager steps and their parts, measured on {measured(host)}; *nothing* is "
        f"an autograd function that only allocates its results. One launch took {ways}.\n",
        host_table(host["host"]),
        HOST,
    ]


def page(results: dict[str, Any], heads: list[dict[str, Any]]) -> str:
    if results["pooling"] is None or results["host"] is None:
        raise SystemExit("a result is missing; run benchmarks/gpu_pooling.py and gpu_host.py on a GPU")
    parts = introduction(results["pooling"]) + goals(results) + network(results["resnet50"])
    parts += (
        head_steps(heads) + full_tables(results["pooling"]["rows"]) + curves(results["growth"], results["iterations"])
    )
    return "\n".join(parts + explanation(results))


TRIED = """\
**Both gradients in one kernel** (used for small problems, float16, more than 128 prototypes, and bfloat16 maps,
channels first, whose token rows are not a multiple of 16 bytes): each tile adds its part to every entry of the
prototype gradient by atomic additions, which move more bytes than the tokens. Elsewhere `pool backward` writes the
pulls into the buffer of the token gradient, and in `gradient slice` each program owns 128 channels and loops over
the tokens: one addition per program instead of one per tile.

**Larger tiles, more warps, deeper pipelines** were swept (below). The products are bound by the traffic of the
prototypes from the L2 cache, which are read once per tile, in bfloat16 twice for their two halves. Larger tiles
halve this traffic, but leave one program per multiprocessor, whose latency is then not hidden.

**Weighted sums of tokens** (`tile sums`) cross all warps in every step of the loop if channels are contiguous. As a
matrix product with the weights in three parts they do not, but the parts take shared memory, which with a deep
pipeline costs the second program per multiprocessor.

**Registers.** A loop over tiles that runs once, and a product accumulated separately, made the compiler keep unused
values and spill others. The loop is now known at compile time to run once, and the product is accumulated in place.

**Exact float32** splits both operands of every product in registers; the kernel of the slices spills there.

**Waiting for the tensor cores in every step** works around a bug in Triton 3.6: a pipelined load that feeds both
the tensor cores and other arithmetic gets one buffer too few, and the result is fast, wrong and different in every
run. A second product in the forward pass of images larger than a tile (the attributes need all distances again once
the threshold is known) and a third in the backward pass are the price of keeping no tensor of size B x M x N.
"""

HOST = """\
PyTorch runs the backward function in a separate thread; *one thread* shows the cost of the thread switch, which
`torch.autograd.set_multithreading_enabled(False)` avoids. Known overheads are already removed: eager calls bypass
PyTorch's dispatcher, kernels are launched without Triton's binder, and the forward pass prepares the backward pass.
Average pooling has no Python in its backward pass; with a CUDA graph or a compiled model, GSP has none either.
"""


def read(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    heads = [result for place in ("cpu", "gpu") if (result := read(f"head_step_{place}")) is not None]
    PAGE.write_text(page({name: read(f"gpu_{name}") for name in NAMES}, heads))
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
