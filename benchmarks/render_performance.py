"""Write docs/performance.md from results/gpu_pooling.json and results/gpu_pooling_trials.json.

    python benchmarks/render_performance.py

Every number of the page comes from those files; curves are drawn for the sweeps that they hold.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images"


def table(head: list[str], lines: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines]) + "\n"


def size_name(size: list[int]) -> str:
    return ", ".join(str(part) for part in size)


def floor(row: dict[str, Any]) -> float:
    return max(row["floor"].values())


def rows_table(rows: list[dict[str, Any]]) -> str:
    head = [
        "B, D, N, M",
        "GAP, eager",
        "GSP, eager",
        "GSP, graph",
        "traffic",
        "cuBLAS",
        "graph / floor",
        "extra memory",
    ]
    lines = [
        [
            size_name(row["size"]),
            f"{row['eager']['gap']:.0f}",
            f"{row['eager']['gsp']:.0f}",
            f"{row['graph']['gsp']:.0f}",
            f"{row['floor']['traffic']:.0f}",
            f"{row['floor']['cublas']:.0f}",
            f"{row['graph']['gsp'] / floor(row):.1f}",
            f"{100 * row['extra memory']['gsp']:.1f} %",
        ]
        for row in rows
    ]
    return table(head, lines)


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
    large = 3
    sizes = list(dict.fromkeys(tuple(row["size"]) for row in rows))
    lines = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        mine = [row for row in rows if row["kind"] == kind]
        first = [row for row in mine if tuple(row["size"]) in sizes[:large]]
        last = [row for row in mine if tuple(row["size"]) in sizes[large:]]
        from_third = [row for row in mine if tuple(row["size"]) in sizes[large - 1 :]]

        def met(chosen: list[dict[str, Any]], passes: list[bool]) -> str:
            return f"{sum(passes)} of {len(chosen)}"

        lines.append(
            [
                kind,
                met(mine, [row["eager"]["gsp"] <= 2 * row["eager"]["gap"] for row in mine]),
                met(first, [row["graph"]["gsp"] <= 60 for row in first]),
                met(last, [row["graph"]["gsp"] <= 2.5 * floor(row) for row in last]),
                met(from_third, [row["extra memory"]["gsp"] < 0.05 for row in from_third]),
            ]
        )
    head = ["", "eager at most 2 x GAP", "graph at most 60 us, first three sizes"]
    return table([*head, "graph at most 2.5 x floor, last three", "extra memory under 5 %, last four"], lines)


def trials_table(trials: list[dict[str, Any]]) -> str:
    """The best tile of each design for the largest size, with the error that came with it."""
    best: dict[tuple[str, ...], dict[str, Any]] = {}
    for trial in trials:
        if trial["size"] != [64, 768, 1024, 128]:
            continue
        key = (trial["design"], trial["kind"], trial["layout"], trial["pass"])
        if key not in best or trial["graph"] < best[key]["graph"]:
            best[key] = trial
    lines = []
    for (design, kind, layout, direction), trial in best.items():
        tile, error = trial.get("tile"), trial.get("error")
        lines.append(
            [
                design,
                f"{kind}, {layout}",
                direction,
                "as chosen"
                if tile is None
                else f"{tile['tokens']} tokens, {tile['warps']} warps, {tile['stages']} deep",
                f"{trial['graph']:.0f}",
                "" if error is None else f"{error['weights']:.0e}",
            ]
        )
    return table(["design", "", "pass", "fastest tile", "microseconds", "error of the weights"], lines)


def draw_growth(growth: dict[str, list[dict[str, Any]]]) -> str:
    if not growth:
        return "The sweeps over n, m, d and B are part of the script and have not been measured yet.\n"
    import matplotlib.pyplot as plt

    position = {"B": 0, "d": 1, "n": 2, "m": 3}
    figure, axes = plt.subplots(1, len(growth), figsize=(4 * len(growth), 3.2), sharey=True)
    for axis, (name, points) in zip(axes, growth.items(), strict=True):
        for pool in ("gap", "gsp", "published"):
            known = [point for point in points if pool in point]
            axis.loglog([p["size"][position[name]] for p in known], [p[pool] for p in known], marker="o", label=pool)
        axis.set_xlabel(name)
    axes[0].set_ylabel("microseconds")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(IMAGES / "gpu_growth.svg")
    return "![Time against n, m, d and B](images/gpu_growth.svg)\n"


def page(result: dict[str, Any], tried: dict[str, Any]) -> str:
    rows = result["rows"]
    kinds, layouts = (list(dict.fromkeys(row[key] for row in rows)) for key in ("kind", "layout"))
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    compared = [row for row in rows if "published" in row["eager"]]
    parts = [
        "# Performance on a GPU\n",
        'The kernels run by `backend="triton"`; `auto` does not choose them yet ([why](decisions.md#the-kernels)).\n',
        f"Measured on one {result['device']} on {result['date']} ({versions}) by `{result['command']}`; rendered from "
        "`results/gpu_pooling.json` by `benchmarks/render_performance.py`. Times are microseconds for forward and "
        f"backward together, mu {result['settings']['mu']}, epsilon {result['settings']['epsilon']}. *Eager* is the "
        "wall clock of ordinary calls, *graph* the replay of a CUDA graph: the GPU's share alone. Every setting was "
        "checked against the plain version in float64 before it was timed.\n",
        "The floor is the larger of *traffic*, the tokens read twice and their gradient written once at the "
        f"{result['copy TB/s']} TB/s of a copy in the same run, and *cuBLAS*, the three products that cannot be "
        "avoided, at the same precision (for bfloat16, one product; the kernels take two where they keep the digits of "
        "float32 prototypes). *Extra memory* is the peak beyond the inputs and their gradients, as a part of the "
        "features.\n",
        "## Against the published algorithm\n",
        "float32, channels first, eager.\n",
        comparison_table(compared),
        "## What was hoped for\n",
        "In how many settings (sizes times layouts) each goal is met.\n",
        goals_table(rows),
    ]
    for kind in kinds:
        parts.append(f"## {kind}\n")
        for layout in layouts:
            chosen = [row for row in rows if row["kind"] == kind and row["layout"] == layout]
            if chosen:
                parts += [f"{layout.capitalize()}:\n", rows_table(chosen)]
    host = tried["host"]
    parts += [
        "## Growth\n",
        draw_growth(result["growth"]),
        "## Where the time goes, and what was tried\n",
        "The largest size, the fastest tile of each design on the way to the present one (graph replays, from "
        "`results/gpu_pooling_trials.json`, which holds all of them with the times of the single kernels).\n",
        trials_table(tried["trials"]),
        "Where the matrix unit reads the tokens straight from shared memory (TF32 and bfloat16, channels last), the "
        "second design is fast and wrong: its error is far above rounding and changes from run to run. Triton 3.6 "
        "gives a pipelined load that feeds both the matrix unit and ordinary arithmetic one buffer fewer than the "
        "matrix unit, which runs on by itself, needs. The third design keeps the uses apart and reads the tokens once "
        "more for it; the present one waits for the matrix unit in every piece instead. What it does "
        "beyond the floor: that "
        "waiting; a second product and pass over the tokens in the forward pass of images larger than a tile (the "
        "attributes need all distances again once the threshold is known), and a third product in the backward pass; "
        "and one atomic addition a tile to every entry of the prototypes' gradient.\n",
        f"Eager calls are bound by the host. {host['what']}: launching takes `{json.dumps(host['launch'])}`; the "
        f"backward function takes {host['backward function inside the autograd thread']} inside the autograd thread; "
        f"whole steps take `{json.dumps(host['eager'])}` (forward alone without gradients). The rest of a step has not "
        "been located. "
        "A CUDA graph leaves all of it out.\n",
    ]
    return "\n".join(parts)


def main() -> None:
    result = json.loads((ROOT / "results" / "gpu_pooling.json").read_text())
    tried = json.loads((ROOT / "results" / "gpu_pooling_trials.json").read_text())
    PAGE.write_text(page(result, tried))
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
