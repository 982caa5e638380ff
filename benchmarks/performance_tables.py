"""The tables of docs/performance.md, each from the JSON of a GPU benchmark; `render_performance` puts them in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

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
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines]) + "\n"


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
    names = {"gap": "GAP", "gap, embedding after": "GAP, embedding after", "gsp": "GSP", "published": "published"}
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
    return table(["", "features", *names.values(), "GSP / GAP", "published / GSP"], lines)
