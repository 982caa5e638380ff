"""The table of the main figures, the paper's beside ours, which README.md and the page of the reproduction share."""

from __future__ import annotations

from pathlib import Path

from gspool.experiments import registry
from gspool.experiments.report import commits_told
from gspool.experiments.run_status import status
from gspool.provenance import read_result

DEVIATIONS = (
    "Mean ± standard deviation over seeds (n - 1); in the rows of benchmark and components over all combinations of "
    "one repeat a fold (divided by their number), as in the paper. *And changes*: files differed from that commit."
)
# Levels invite a comparison that they cannot bear.
LEVELS = (
    "These are levels: rows of an experiment share folds or seeds, so that how many deviations two of them lie apart "
    "does not tell whether one is ahead. Differences in pairs with their 95 % intervals, and verdicts, stand in the "
    "sections of docs/reproduction.md."
)


def headline_table(results: Path) -> str:
    """Write the figures that stand for each experiment, where they come from, and how to read them."""
    lines = ["| experiment | figure | paper | ours | device, commit |", "|---|---|---:|---:|---|"]
    for name in registry.names():
        experiment = registry.find(name)
        path = results / f"{experiment.files[0]}.json"
        if experiment.headlines is None or not path.is_file():
            lines.append(f"| {name} | {experiment.promise} | | {status(experiment, results).text} | |")
            continue
        record = read_result(path)
        origin = ", ".join(word for word in (record["device"], commits_told(record, brief=True)) if word)
        for each in experiment.headlines(record["value"]):
            lines.append(f"| {name} | {each.what} | {each.paper} | {each.ours} | {origin} |")
    return "\n".join([*lines, "", DEVIATIONS, "", LEVELS])
