"""Write docs/performance.md and its figures from the results of the GPU benchmarks.

    python benchmarks/render_performance.py

Every number of the page comes from results/gpu_*.json; what was not measured is not on it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images"
# The goals: eager against average pooling, microseconds of the small sizes, graph against floor, memory, a network.
TIMES_GAP, SMALL, TIMES_FLOOR, MEMORY, TIMES_PUBLISHED = 2, 60, 2.5, 0.05, 40
LARGE = 3


def table(head: list[str], lines: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines]) + "\n"


def size_name(size: list[int]) -> str:
    return ", ".join(str(part) for part in size)


def floor(row: dict[str, Any]) -> float:
    return float(max(row["floor"].values()))


def rows_table(rows: list[dict[str, Any]]) -> str:
    head = ["B, D, N, M", "GAP, eager", "GSP, eager", "GAP, graph", "GSP, graph", "traffic", "cuBLAS", "graph / floor"]
    lines = [
        [
            size_name(row["size"]),
            *(f"{row[how][name]:.0f}" for how in ("eager", "graph") for name in ("gap", "gsp")),
            f"{row['floor']['traffic']:.0f}",
            f"{row['floor']['cublas']:.0f}",
            f"{row['graph']['gsp'] / floor(row):.1f}",
            f"{100 * row['extra memory']['gsp']:.1f} %",
        ]
        for row in rows
    ]
    return table([*head, "extra memory"], lines)


def comparison_table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        eager, memory = row["eager"], row["extra memory"]
        lines.append(
            [
                size_name(row["size"]),
                *(f"{eager[name]:.0f}" for name in ("published", "plain", "gsp")),
                f"{eager['published'] / eager['gsp']:.0f}",
                *(f"{100 * memory[name]:.0f} %" for name in ("published", "plain", "gsp")),
            ]
        )
    head = ["B, D, N, M", "published, 100 steps", "plain", "kernels", "times faster"]
    return table([*head, "memory: published", "plain", "kernels"], lines)


def goals_table(rows: list[dict[str, Any]]) -> str:
    """Say for each goal in how many of its settings it is met; settings are sizes times layouts."""
    sizes = list(dict.fromkeys(tuple(row["size"]) for row in rows))
    lines = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        mine = [row for row in rows if row["kind"] == kind]
        first = [row for row in mine if tuple(row["size"]) in sizes[:LARGE]]
        last = [row for row in mine if tuple(row["size"]) in sizes[LARGE:]]
        from_third = [row for row in mine if tuple(row["size"]) in sizes[LARGE - 1 :]]
        met = (
            [row["eager"]["gsp"] <= TIMES_GAP * row["eager"]["gap"] for row in mine],
            [row["graph"]["gsp"] <= SMALL for row in first],
            [row["graph"]["gsp"] <= TIMES_FLOOR * floor(row) for row in last],
            [row["extra memory"]["gsp"] < MEMORY for row in from_third],
        )
        lines.append([kind, *(f"{sum(passes)} of {len(passes)}" for passes in met)])
    head = ["", f"eager at most {TIMES_GAP} x GAP", f"graph at most {SMALL} us, first three sizes"]
    return table(
        [*head, f"graph at most {TIMES_FLOOR} x floor, last three", f"extra memory under {MEMORY:.0%}, last four"],
        lines,
    )


def present_table(trials: list[dict[str, Any]], rows: list[dict[str, Any]]) -> str:
    """The chosen tiles: both passes, beside the whole of the last full run and its floor."""
    full = {(tuple(row["size"]), row["kind"], row["layout"]): row for row in rows}
    settings = dict.fromkeys((tuple(trial["size"]), trial["kind"], trial["layout"]) for trial in trials)
    lines = []
    for size, kind, layout in settings:
        mine = [t for t in trials if (tuple(t["size"]), t["kind"], t["layout"]) == (size, kind, layout)]
        passes = {t["pass"]: t for t in mine if t["chosen"]}
        one_kernel = next(t for t in mine if t["pass"] == "backward" and t["tile"]["slices"] is None)
        if len(passes) == 2:
            total = sum(t["graph"] for t in passes.values())
            row = full[(size, kind, layout)]
            lines.append(
                [
                    size_name(list(size)),
                    f"{kind}, {layout}",
                    f"{passes['forward']['graph']:.0f}",
                    f"{one_kernel['graph']:.0f}",
                    f"{passes['backward']['graph']:.0f}",
                    f"{total:.0f}",
                    f"{row['graph']['gsp']:.0f}",
                    f"{total / floor(row):.1f}",
                ]
            )
    head = ["B, D, N, M", "", "forward", "backward, one kernel", "backward, chosen", "together"]
    return table([*head, "first kernels", "together / floor"], lines)


def kernels_table(trials: list[dict[str, Any]]) -> str:
    chosen = [trial for trial in trials if trial["chosen"]]
    names = list(dict.fromkeys(name for trial in chosen for name in trial["kernels"]))
    lines = [
        [
            size_name(trial["size"]),
            f"{trial['kind']}, {trial['layout']}",
            *(f"{trial['kernels'][name]:.0f}" if name in trial["kernels"] else "" for name in names),
        ]
        for trial in chosen
    ]
    return table(["B, D, N, M", "", *(name.replace("_", " ") for name in names)], lines)


def host_table(records: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for record in records for name in record["times"]))
    lines = [
        [
            f"{record['version']} ({size_name(record['size'])}; {record['kind']}, {record['layout']})",
            *(f"{record['times'][name]:.0f}" if name in record["times"] else "" for name in names),
        ]
        for record in records
    ]
    return table(["", *names], lines)


def draw_growth(growth: dict[str, list[dict[str, Any]]]) -> str:
    import matplotlib.pyplot as plt

    position = {"B": 0, "d": 1, "n": 2, "m": 3}
    labels = {"gap": "GAP", "gsp": "GSP", "attention": "attention (timm)", "published": "published, 100 steps"}
    figure, axes = plt.subplots(1, len(growth), figsize=(3.6 * len(growth), 3.4), sharey=True)
    for axis, (name, points) in zip(axes, growth.items(), strict=True):
        for pool, label in labels.items():
            known = [point for point in points if pool in point]
            axis.loglog([p["size"][position[name]] for p in known], [p[pool] for p in known], marker="o", label=label)
        size = dict(zip("BdnM", points[0]["size"], strict=True))
        fixed = ", ".join(
            f"{key.lower() if key != 'B' else key} {value}"
            for key, value in size.items()
            if key.lower() != name.lower()
        )
        axis.set_title(fixed, fontsize="small")
        axis.set_xlabel(name)
    axes[0].set_ylabel("microseconds")
    axes[0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(IMAGES / "gpu_growth.png", dpi=110)
    return "![Time against n, m, d and B](images/gpu_growth.png)\n"


def draw_iterations(result: dict[str, Any]) -> str:
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5, 3.4))
    steps = [point["steps"] for point in result["steps"]]
    for name, label in (
        ("unrolled", "published, differentiated automatically"),
        ("closed form", "published, closed form"),
    ):
        axis.loglog(steps, [point[name] for point in result["steps"]], marker="o", label=label)
    for name, label in (("torch", "exact, plain"), ("triton", "exact, kernels")):
        axis.axhline(result["exact"][name], linestyle="--" if name == "torch" else "-", color="black", label=label)
    axis.set_xlabel("k, steps of the iteration")
    axis.set_ylabel("microseconds")
    axis.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(IMAGES / "gpu_iterations.png", dpi=110)
    return "![Time against the number of steps](images/gpu_iterations.png)\n"


def network_table(network: dict[str, Any]) -> str:
    lines = [
        [name, f"{times['gap']:.2f}", f"{times['gsp']:.2f}", f"{100 * (times['gsp'] / times['gap'] - 1):+.1f} %"]
        for name, times in network["milliseconds"].items()
    ]
    return table(["milliseconds", "GAP", "GSP", "difference"], lines)


def read(name: str) -> dict[str, Any] | None:
    path = ROOT / "results" / name
    return json.loads(path.read_text()) if path.exists() else None


def measured(result: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    note = f"; {result['note']}" if "note" in result else ""
    return f"one {result['device']} on {result['date']} ({versions}) by `{result['command']}`{note}"


def page() -> str:
    result, tiles, host = (read(f"gpu_{name}.json") for name in ("pooling", "tiles", "host"))
    if result is None or tiles is None or host is None:
        raise SystemExit("a result is missing; run benchmarks/gpu_pooling.py, gpu_tiles.py and gpu_host.py on a GPU")
    rows = result["rows"]
    kinds, layouts = (list(dict.fromkeys(row[key] for row in rows)) for key in ("kind", "layout"))
    parts = [
        "# Performance on a GPU\n",
        '`backend="triton"` runs the kernels for tensors on a CUDA device of compute capability 8.0 or newer, in '
        "float32, bfloat16 or float16, with at most 1024 prototypes, outside `torch.func` transforms and exports. At "
        "every size where both were timed (float32, channels first, below) they are faster than the plain version, "
        '`backend="torch"`. Their latest form has passed its tests by Triton\'s interpreter, and on a GPU only in part '
        '(docs/decisions.md says which); so `backend="auto"` is still the plain version.\n',
        f"The full tables: {measured(result)}; rendered from `results/gpu_*.json` by "
        "`benchmarks/render_performance.py`. Times are microseconds for forward and backward together, "
        f"mu {result['settings']['mu']}, epsilon {result['settings']['epsilon']}. *Eager* is the wall clock of "
        "ordinary calls, *graph* the replay of a CUDA "
        "graph: the GPU's share alone. Every setting was checked against the plain version in float64 before it was "
        "timed.\n",
        "The floor is the larger of *traffic*, the tokens read twice and their gradient written once at the "
        f"{result['copy TB/s']} TB/s of a copy in the same run, and *cuBLAS*, the three products that cannot be "
        "avoided, at the same precision (for bfloat16, one product; the kernels take two where they keep the digits of "
        "float32 prototypes). *Extra memory* is the peak beyond the inputs and their gradients, as a part of the "
        "features.\n",
        "## The present kernels\n",
        "Replays of CUDA graphs, in microseconds, of each pass by itself, for the settings that `gpu_tiles.py` sweeps; "
        "*first kernels* and the floor come from the full run.\n",
        present_table(tiles["trials"], rows),
        "## Against the published algorithm\n",
        f"float32, channels first, eager. The goal was {TIMES_PUBLISHED} times.\n",
        comparison_table([row for row in rows if "published" in row["eager"]]),
        "## What was hoped for\n",
        "In how many settings (sizes times layouts) each goal is met, counted from the full tables.\n",
        goals_table(rows),
    ]
    network = read("gpu_resnet50.json")
    if network is not None:
        size = network["network"]
        parts += [
            "## In a whole network\n",
            f"timm's ResNet50 with {size['prototypes']} prototypes, {size['pixels']} pixels, batch {size['batch']}, "
            "bfloat16, channels last, compiled; a training step is forward, backward and SGD. Measured on "
            f"{measured(network)}. The goals were 1 % and 2 %.\n",
            network_table(size),
        ]
    for kind in kinds:
        parts.append(f"## {kind}\n")
        for layout in layouts:
            chosen = [row for row in rows if row["kind"] == kind and row["layout"] == layout]
            if chosen:
                parts += [f"{layout.capitalize()}:\n", rows_table(chosen)]
    growth, iterations = read("gpu_growth.json"), read("gpu_iterations.json")
    if growth is not None:
        parts += [
            "## Growth\n",
            "GSP in bfloat16, channels last; GAP and timm's attention pooling alike; graph replays. The published "
            "algorithm in float32, eager, where its tensors of size B x M x N have room. Measured on "
            f"{measured(growth)}.\n",
            draw_growth(growth["growth"]),
        ]
    if iterations is not None:
        parts += [
            "## Against the number of steps\n",
            "The transport alone, 32 images of 64 tokens and 64 prototypes, eager: the paper's figure with the exact "
            f"solver beside it, which has no k. Measured on {measured(iterations)}.\n",
            draw_iterations(iterations),
        ]
    for name, script in (("sweeps over n, m, d and B", "growth"), ("time against k", "iterations")):
        if read(f"gpu_{script}.json") is None:
            parts.append(f"The {name}: `benchmarks/gpu_{script}.py`, not measured yet.\n")
    if network is None:
        parts.append("GSP against GAP in a compiled ResNet50: `benchmarks/gpu_resnet50.py`, not measured yet.\n")
    parts += [
        "## Where the time goes, and what was tried\n",
        f"Microseconds of the kernels with the tiles that the package chooses, measured on {measured(tiles)}.\n",
        kernels_table(tiles["trials"]),
        TRIED,
        f"Microseconds of the host in whole eager steps and their parts, measured on {measured(host)}; *nothing* is an "
        "autograd function that only allocates its results. One launch of nine arguments took "
        + " and ".join(f"{time} ({way})" for way, time in host["one launch of nine arguments"].items())
        + ".\n",
        host_table(host["host"]),
        HOST,
    ]
    return "\n".join(parts)


TRIED = """\
**Both gradients in one kernel** (still used for small problems, float16, more than 128 prototypes, and bfloat16
maps, channels first, whose rows of tokens are not a multiple of 16 bytes): each tile adds its part to every entry
of the prototypes' gradient, by atomic additions that move more bytes than the tokens do. Now `pool backward`
writes the pulls where the tokens' gradient will stand, and `gradient slice` lets a program own 128 channels and
walk over the tokens: one addition a program instead of one a tile.

**Larger tiles, more warps, deeper pipelines** were swept; `results/gpu_tiles.json` holds all of them and `tiling`
the fastest. What bounds the products is the traffic of the prototypes from the L2 cache, read once a tile, in
bfloat16 twice for their two halves; larger tiles halve it, but leave one program a multiprocessor, whose waiting
nobody hides.

**Sums of tokens by weight** (`tile sums`) cross all warps in every step of the loop where channels lie side by
side, and take twice the time of the product that they share the loop with. As a product with the weights in three
bfloat16 parts they would not; that has run in the interpreter only, and so is not in the package.

**Exact float32** splits both operands of every product in registers; the slices' kernel spills there, and still
wins.

**Waiting for the matrix unit in every step** is the price of a fault in Triton 3.6: a pipelined load that feeds
both the matrix unit and ordinary arithmetic gets one buffer fewer than it needs, and the result is fast and wrong,
differently in every run. A second product in the forward pass of images larger than a tile (the attributes need
all distances again once the threshold is known) and a third in the backward pass are the price of keeping nothing
of size B x M x N.
"""

HOST = """\
PyTorch runs the backward function in a thread of its own. At the smallest size a step with one thread for both
passes takes less than half of the time, as if Python's objects travelled between two cores twice a step; at the
larger ones it saves little, and the steps still take more than their parts by themselves. The rest has not been
located. What is known to cost is left out: eager calls do not go through PyTorch's dispatcher, kernels are started
without Triton's binder, and the backward function finds ready what the forward pass can know. Average pooling has
no Python in its backward pass; a CUDA graph or a compiled model leaves it out here too.
"""


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page())
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
