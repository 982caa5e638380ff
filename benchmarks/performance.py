"""Fill docs/performance.md and draw its figures from the results of the benchmarks.

    PYTHONPATH=src python benchmarks/performance.py

The prose of the page is written by hand. What stands between ``<!-- benchmark: NAME -->`` and ``<!-- /benchmark -->``
is a table, figure or phrase of `BLOCKS` below, made of results/gpu_*.json and results/head_step_*.json.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images"
Row = dict[str, Any]


class Goal(NamedTuple):
    """A goal over the rows of gpu_pooling.json: the sizes it applies to, the measured value, and the limit of a row."""

    name: str
    sizes: slice
    value: Callable[[Row], float]
    limit: Callable[[Row], float]


def floor(row: Row) -> float:
    return float(max(row["floor"].values()))


EAGER = Goal("eager at most 2 x GAP", slice(0, 6), lambda r: r["eager"]["gsp"], lambda r: 2 * r["eager"]["gap"])
SMALL = Goal("graph at most 60 us, first three sizes", slice(0, 3), lambda r: r["graph"]["gsp"], lambda r: 60.0)
LARGE = Goal(
    "graph at most 2.5 x floor, last three", slice(3, 6), lambda r: r["graph"]["gsp"], lambda r: 2.5 * floor(r)
)
MEMORY = Goal("extra memory under 5 %, last four", slice(2, 6), lambda r: r["extra memory"]["gsp"], lambda r: 0.05)
GOALS = (EAGER, SMALL, LARGE, MEMORY)
TIMES_PUBLISHED = 40
# How much slower than with average pooling a network may be.
NETWORK_LIMITS = {"inference": 0.01, "training": 0.02}


def table(head: list[str], lines: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines])


def size_name(size: list[int]) -> str:
    return ", ".join(str(part) for part in size)


def setting_name(row: Row) -> list[str]:
    return [size_name(row["size"]), f"{row['kind']}, {row['layout']}"]


def concerned(goal: Goal, rows: list[Row]) -> list[Row]:
    """Return the rows that a goal applies to."""
    sizes = list(dict.fromkeys(tuple(row["size"]) for row in rows))
    return [row for row in rows if tuple(row["size"]) in sizes[goal.sizes]]


def missed(goal: Goal, rows: list[Row]) -> list[Row]:
    return [row for row in concerned(goal, rows) if not goal.value(row) <= goal.limit(row)]


def goals_table(rows: list[Row]) -> str:
    """Count for each goal the settings (sizes times layouts) in which it is met."""
    lines = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        mine = [row for row in rows if row["kind"] == kind]
        counts = [(len(concerned(goal, mine)), len(missed(goal, mine))) for goal in GOALS]
        lines.append([kind, *(f"{every - failed} of {every}" for every, failed in counts)])
    return table(["", *(goal.name for goal in GOALS)], lines)


def single_goals_table(rows: list[Row], network: dict[str, Any] | None) -> str:
    """The goals with one number: speed-up over the published algorithm, and slow-down in a network."""
    against = [row["eager"]["published"] / row["eager"]["gsp"] for row in rows if "published" in row["eager"]]
    faster = sum(ratio >= TIMES_PUBLISHED for ratio in against)
    span = f"{min(against):.0f} to {max(against):.0f} times"
    lines = [[f"eager, at least {TIMES_PUBLISHED} times faster than published", span, f"{faster} of {len(against)}"]]
    for name, times in network["milliseconds"].items() if network else ():
        slower = times["gsp"] / times["gap"] - 1
        met = "1 of 1" if slower <= NETWORK_LIMITS[name] else "0 of 1"
        lines.append([f"ResNet50, {name}, at most {NETWORK_LIMITS[name]:.0%} slower", f"{100 * slower:+.1f} %", met])
    return table(["goal", "measured", "met"], lines)


def rows_table(rows: list[Row]) -> str:
    ways = [way for way in ("eager", "one thread", "graph") if way in rows[0]]
    head = ["B, D, N, M", *(f"{name}, {way}" for way in ways for name in ("GAP", "GSP"))]
    lines = [
        [
            size_name(row["size"]),
            *(f"{row[way][name]:.0f}" for way in ways for name in ("gap", "gsp")),
            f"{row['floor']['traffic']:.0f}",
            f"{row['floor']['cublas']:.0f}",
            f"{row['graph']['gsp'] / floor(row):.1f}",
            f"{100 * row['extra memory']['gsp']:.1f} %",
        ]
        for row in rows
    ]
    return table([*head, "traffic", "cuBLAS", "graph / floor", "extra memory"], lines)


def comparison_table(rows: list[Row]) -> str:
    names = {"published": "published, 100 steps", "plain": "plain", "compiled": "plain, compiled", "gsp": "kernels"}
    names = {name: label for name, label in names.items() if any(name in row["eager"] for row in rows)}
    lines = []
    for row in rows:
        eager, memory = row["eager"], row["extra memory"]
        lines.append(
            [
                size_name(row["size"]),
                *(f"{eager[name]:.0f}" if name in eager else "" for name in names),
                f"{eager['published'] / eager['gsp']:.0f}",
                *(f"{100 * memory[name]:.0f} %" for name in ("published", "plain", "gsp")),
            ]
        )
    head = ["B, D, N, M", *names.values(), "times faster", "memory: published", "plain", "kernels"]
    return table(head, lines)


def missed_table(goal: Goal, rows: list[Row]) -> str:
    """The settings that miss a goal of time, with the goal and the time of each kernel."""
    names = list(dict.fromkeys(name for row in rows for name in row.get("kernels", {})))
    lines = []
    for row in rows:
        kernels = row.get("kernels", {})
        shares = (f"{kernels[name]:.0f}" if name in kernels else "" for name in names)
        lines.append([*setting_name(row), f"{goal.value(row):.0f}", f"{goal.limit(row):.0f}", *shares])
    return table(["B, D, N, M", "", "GSP", "goal", *(name.replace("_", " ") for name in names)], lines)


def missed_eager_table(rows: list[Row]) -> str:
    """The settings that miss the goal of eager steps; the difference between eager and graph is host time."""
    lines = [
        [
            *setting_name(row),
            f"{row['eager']['gsp']:.0f}",
            f"{EAGER.limit(row):.0f}",
            f"{row['graph']['gsp']:.0f}",
            f"{row['one thread']['gsp']:.0f}" if "one thread" in row else "",
            f"{row['eager']['gsp'] / row['eager']['gap']:.1f}",
        ]
        for row in rows
    ]
    return table(["B, D, N, M", "", "GSP, eager", "goal", "GSP, graph", "GSP, one thread", "times GAP"], lines)


def sweep_table(trials: list[Row]) -> str:
    """For each sweep over tiles: the number tried, the fastest and the slowest."""
    lines = []
    for key in dict.fromkeys((tuple(t["size"]), t["kind"], t["layout"], t["pass"]) for t in trials):
        mine = [t for t in trials if (tuple(t["size"]), t["kind"], t["layout"], t["pass"]) == key]
        times = [t["graph"] for t in mine]
        lines.append([*setting_name(mine[0]), key[3], str(len(mine)), f"{min(times):.0f}", f"{max(times):.0f}"])
    return table(["B, D, N, M", "", "pass", "tried", "fastest", "slowest"], lines)


def sums_table(trials: list[Row]) -> str:
    """Each way to sum tokens, in the order tried; (buffers, channels) where they differ from the default."""

    def choice(trial: Row) -> str:
        tile = "" if trial["tile"] is None else f" ({trial['tile'][0]}, {trial['tile'][1]})"
        slices = "" if trial["slices"] is None else f", slices ({trial['slices']})"
        return f"{trial['pass']}{', ' + trial['sums'] if trial['pass'] == 'forward' else ''}{tile}{slices}"

    names = list(dict.fromkeys(choice(trial) for trial in trials))
    lines = []
    for key in dict.fromkeys((tuple(t["size"]), t["kind"], t["layout"]) for t in trials):
        mine = {choice(t): t for t in trials if (tuple(t["size"]), t["kind"], t["layout"]) == key}
        times = {name: f"{t['graph']:.0f}" if "graph" in t else "wrong" for name, t in mine.items()}
        lines.append([*setting_name(next(iter(mine.values()))), *(times.get(name, "") for name in names)])
    return table(["B, D, N, M", "", *names], lines)


def host_table(records: list[Row]) -> str:
    names = list(dict.fromkeys(name for record in records for name in record["times"]))
    lines = [
        [
            f"{record['version']} ({size_name(record['size'])}; {record['kind']}, {record['layout']})",
            *(f"{record['times'][name]:.0f}" if name in record["times"] else "" for name in names),
        ]
        for record in records
    ]
    return table(["", *names], lines)


def network_table(network: dict[str, Any]) -> str:
    lines = [
        [name, f"{times['gap']:.2f}", f"{times['gsp']:.2f}", f"{100 * (times['gsp'] / times['gap'] - 1):+.1f} %"]
        for name, times in network["milliseconds"].items()
    ]
    return table(["milliseconds", "GAP", "GSP", "difference"], lines)


def head_table(results: list[Row]) -> str:
    """The training steps of heads, every row of every result; CPU time where one thread was measured."""
    heads = ("gap", "gap, embedding after", "gsp", "gsp, embedding after", "published")
    rows = [row for result in results for row in result["value"]["rows"]]
    # A head that was added later is shown once all results have it.
    names = [name for name in heads if all(name in row["milliseconds"] for row in rows)]
    lines = []
    for result in results:
        for row in result["value"]["rows"]:
            on_cpu = "--device" not in result["command"]
            times = row["cpu_milliseconds" if on_cpu and row["threads"] == 1 else "milliseconds"]
            lines.append(
                [
                    f"CPU, {row['threads']} thread{'s' * (row['threads'] > 1)}" if on_cpu else "GPU",
                    row["features"],
                    *(f"{times[name]:.1f}" for name in names),
                    f"{row['gsp_over_gap']:.2f}",
                    f"{row['published_over_gsp']:.2f}",
                ]
            )
    labels = [name.replace("gap", "GAP").replace("gsp", "GSP") for name in names]
    return table(["", "features", *labels, "GSP / GAP", "published / GSP"], lines)


def draw_growth(growth: dict[str, list[dict[str, Any]]]) -> str:
    """Draw time against each size, all else fixed; return the Markdown that shows the figure."""
    position = {"B": 0, "d": 1, "n": 2, "m": 3}
    labels = {"gap": "GAP", "gsp": "GSP", "attention": "attention (timm)", "published": "published, 100 steps"}
    figure, axes = plt.subplots(1, len(growth), figsize=(3.6 * len(growth), 3.6), sharey=True, layout="constrained")
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
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(labels), fontsize="small")
    figure.savefig(IMAGES / "gpu_growth.png", dpi=110)
    return "![Time against n, m, d and B](images/gpu_growth.png)"


def draw_iterations(result: dict[str, Any]) -> str:
    """Draw time against the number of steps; return the Markdown that shows the figure."""
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
    return "![Time against the number of steps](images/gpu_iterations.png)"


def measured(result: Row) -> str:
    """Say where and when a result was measured."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    note = f"; {result['note']}" if "note" in result else ""
    return f"one {result['device']} on {result['date']} ({versions}) by `{result['command']}`{note}"


def checked(result: Row) -> str:
    wrong = result.get("wrong", [])
    return f"; these failed and were not timed: {'; '.join(wrong)}" if wrong else ""


def kernel_times(network: Row) -> str:
    return "\n\n".join(
        f"Microseconds per kernel of GSP in one step, {name}: "
        + ", ".join(f"{kernel.replace('_', ' ')} {time:.0f}" for kernel, time in kernels.items())
        + "."
        for name, kernels in network["kernels"].items()
    )


def full_tables(rows: list[Row]) -> str:
    """All rows, one section for each kind of numbers and a table for each layout."""
    parts = []
    kinds, layouts = (list(dict.fromkeys(row[key] for row in rows)) for key in ("kind", "layout"))
    for kind in kinds:
        parts.append(f"## {kind}")
        for layout in layouts:
            chosen = [row for row in rows if row["kind"] == kind and row["layout"] == layout]
            if chosen:
                parts += [f"{layout.capitalize()}:", rows_table(chosen)]
    return "\n\n".join(parts)


def memory_missed(rows: list[Row]) -> str:
    return "; ".join(f"{', '.join(setting_name(row))}: {100 * MEMORY.value(row):.1f} %" for row in missed(MEMORY, rows))


def load_range(results: list[Row]) -> str:
    loads = [row["load_per_core"] for result in results for row in result["value"]["rows"]]
    return f"{min(loads):.1f} to {max(loads):.1f}"


def read(name: str) -> Any:
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def blocks() -> dict[str, str]:
    """Return what belongs between the markers of the page, by name."""
    names = ("pooling", "tiles", "sums", "host", "growth", "iterations", "resnet50")
    results = {name: read(f"gpu_{name}") for name in names}
    heads = [read(path.stem) for path in sorted((ROOT / "results").glob("head_step_*.json"))]
    rows, network, host = results["pooling"]["rows"], results["resnet50"]["network"], results["host"]
    launch = host.get("one launch", host.get("one launch of nine arguments", {}))
    return {
        **{f"measured {name}": measured(result) for name, result in results.items()},
        "measured heads": "; ".join(map(measured, heads)),
        "copy speed": str(results["pooling"]["copy TB/s"]),
        "failed checks": checked(results["pooling"]),
        "goals": goals_table(rows),
        "single goals": single_goals_table(rows, network),
        "times published": str(TIMES_PUBLISHED),
        "comparison": comparison_table([row for row in rows if "published" in row["eager"]]),
        "network limits": " and ".join(f"{limit:.0%} ({name})" for name, limit in NETWORK_LIMITS.items()),
        "network": network_table(network),
        "network kernels": kernel_times(network),
        "head load": load_range(heads),
        "heads": head_table(heads),
        "full tables": full_tables(rows),
        "growth": draw_growth(results["growth"]["growth"]),
        "iterations": draw_iterations(results["iterations"]),
        "missed large": missed_table(LARGE, missed(LARGE, rows)),
        "missed small": missed_table(SMALL, missed(SMALL, rows)),
        "missed memory": memory_missed(rows),
        "tiles": sweep_table(results["tiles"]["trials"]),
        "sums": sums_table(results["sums"]["trials"]),
        "missed eager": missed_eager_table(missed(EAGER, rows)),
        "one launch": " and ".join(f"{time} ({way})" for way, time in launch.items()),
        "host": host_table(host["host"]),
    }


def main() -> None:
    """Write every block of the page."""
    known = blocks()

    def fill(found: re.Match[str]) -> str:
        text = known[found["name"]]
        text = f"\n\n{text}\n\n" if "\n" in text or text.startswith("!") else text
        return f"<!-- benchmark: {found['name']} -->{text}<!-- /benchmark -->"

    marker = re.compile(r"<!-- benchmark: (?P<name>[^>]+) -->.*?<!-- /benchmark -->", re.DOTALL)
    PAGE.write_text(marker.sub(fill, PAGE.read_text()))
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
