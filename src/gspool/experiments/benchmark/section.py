"""The section of the benchmarks in the report: a table for every data set and protocol, what is missing, verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gspool.evaluation import PROTOCOLS
from gspool.experiments.benchmark.arms import DATA, paper_arms
from gspool.experiments.benchmark.selection import FILE as SELECTION
from gspool.experiments.benchmark.selection import rendered as selection_table
from gspool.experiments.benchmark.tables import conventional_rows, fair_rows, table, verdicts
from gspool.experiments.certificate import read_result
from gspool.experiments.experiment import NOT_RUN
from gspool.experiments.report import caption

SEEDS = (0, 1, 2)
SELECTION_EXPLAINED = (
    "Prototypes are chosen by k-center on some training images, and the weights looked at on others: how flat they "
    "are, how they go with the length of the backbone's features, and how long, against the average, what is pooled is."
)
EXPLAINED = {
    "fair": "± is the standard deviation over the combinations of one repeat a fold where all folds have been trained, "
    "else over single runs. Differences from GAP are between runs of the same fold and seed, which see the same "
    "batches and crops. Entropy is that of the pooling weights on the test images, 1 where all weigh the same. Runs "
    "that time cut short, before early stopping had ended them, are counted and marked; a later call makes them again. "
    "The paper's values are those of BN-Inception.",
    "conventional": "The best of the repeats by R@1, as in the paper.",
}


def file_name(data: str, protocol: str) -> str:
    """Name the result.

    Example:
        >>> file_name("cub", "conventional")
        'benchmark_cub_conventional'
    """
    return f"benchmark_{data}" if protocol == "fair" else f"benchmark_{data}_{protocol}"


def render_study(value: dict[str, Any]) -> str:
    """Write the table of one benchmark, and its verdicts."""
    if value["protocol"] == "conventional":
        return table(conventional_rows(value["data"], value["backbone"], value["arms"]))
    parts = [table(fair_rows(value["data"], value["arms"])), verdicts(value["arms"])]
    left_out = [
        f"{run['arm']} on fold {run['fold']} ({run['steps']} steps, MAP@R {100 * run['map@r']:.2f})"
        for run in value.get("left_out", [])
    ]
    if left_out:
        parts.append(f"Not counted, because time cut them short and nothing stands beside them: {'; '.join(left_out)}.")
    return "\n\n".join(parts)


def render(results: Path) -> str:
    """Write the section: a table for every benchmark and protocol that has been run."""
    parts = []
    for data in DATA:
        for protocol in ("fair", "conventional"):
            name = file_name(data, protocol)
            if not (results / f"{name}.json").is_file():
                continue
            record = read_result(results / f"{name}.json")
            head = f"**{data}, {protocol} protocol, {record['value']['backbone']}.** {EXPLAINED[protocol]}"
            picture = f"![Validation, and differences from GAP](images/{name}.png)\n\n" if protocol == "fair" else ""
            parts.append(f"{head}\n\n{render_study(record['value'])}\n\n{picture}{caption(name, record)}")
    selection = results / f"{SELECTION}.json"
    if selection.is_file():
        record = read_result(selection)
        head = "**What GSP selects on CUB before any training.** " + SELECTION_EXPLAINED
        parts.append(f"{head}\n\n{selection_table(record['value'])}\n\n{caption(SELECTION, record)}")
    return "\n\n".join(parts) if parts else NOT_RUN


def unfinished(results: Path) -> str:
    """Say how many trainings of the promised table are missing: two losses, GAP and GSP, every fold, three repeats."""
    runs = read_result(results / f"{file_name('cub', 'fair')}.json")["value"]["runs"]
    done = {
        (run["asked"]["arm"], run["asked"]["fold"], run["asked"]["seed"])
        for run in runs
        if run["found"]["ending"] != "time"
    }
    folds = range(PROTOCOLS["fair"].folds)
    wanted = {(arm.name, fold, seed) for arm in paper_arms(("c2", "pnca")) for fold in folds for seed in SEEDS}
    left = len(wanted - done)
    return f"{left} of {len(wanted)} trainings of C2 and ProxyNCA++ with GAP and GSP on CUB" if left else ""
