"""The section of the benchmarks in the report: a table for every data set and protocol, what is missing, verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gspool.evaluation import PROTOCOLS
from gspool.experiments.benchmark.arms import DATA, LOSSES, POOLINGS, SEEDS, paper_arms
from gspool.experiments.benchmark.paper import paper_values
from gspool.experiments.benchmark.search import search_arms
from gspool.experiments.benchmark.selection import FILE as SELECTION
from gspool.experiments.benchmark.selection import rendered as selection_table
from gspool.experiments.benchmark.store import ended
from gspool.experiments.benchmark.tables import concatenated, conventional_rows, fair_rows, in_order, separate, table
from gspool.experiments.benchmark.verdict import verdicts
from gspool.experiments.certificate import read_result
from gspool.experiments.experiment import NOT_RUN, Headline
from gspool.experiments.report import caption

SELECTION_EXPLAINED = (
    "Prototypes are chosen by k-center on some training images, and the weights looked at on others: how flat they "
    "are, how they go with the length of the backbone's features, and how long, against the average, what is pooled is."
)
EXPLAINED = {
    "fair": "± is the standard deviation over the combinations of one repeat a fold where all runs are there, else "
    "over single runs; 512D joins the models of all folds, of every repeat that is complete. Differences from GAP are "
    "between runs of the same fold and seed, which see the same batches and crops, with the standard error of their "
    "mean. GSP is called ahead or behind only where the 95 % interval of the mean difference leaves 0 out (Student's "
    "t). Entropy is that of the pooling weights on the test images, 1 where all weigh the same. Runs that time cut "
    "short, before early stopping had ended them, are counted and marked; a later call ends them. The paper's values "
    "are those of BN-Inception.",
    "conventional": "The best of the repeats by R@1, as in the paper.",
}

PICTURES = (
    "![Where each loss stands with GAP, and where GSP brings it](images/{name}_summary.png)\n\n"
    "![Validation, and differences from GAP](images/{name}.png)\n\n"
)


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
    promised = PROTOCOLS["fair"].folds * len(SEEDS)
    parts = [
        table(fair_rows(value["data"], in_order(value["arms"]), promised)),
        verdicts(in_order(value["arms"]), promised),
        untried(value["arms"]),
    ]
    left_out = [
        f"{run['arm']} on fold {run['fold']} ({run['steps']} steps, MAP@R {100 * run['map@r']:.2f})"
        for run in value.get("left_out", [])
    ]
    if left_out:
        parts.append(f"Not counted, because time cut them short and nothing stands beside them: {'; '.join(left_out)}.")
    return "\n\n".join(part for part in parts if part)


def untried(arms: list[dict[str, Any]]) -> str:
    """Say which settings of the search have not been trained yet; nothing where all have.

    Example:
        >>> untried([{"arm": arm.name, "loss": "c2"} for arm in search_arms(("c2",))[1:]])
        'Settings of the search that have not been tried yet: c2: epsilon 20.'
    """
    done = {arm["arm"] for arm in arms}
    told = []
    for loss in dict.fromkeys(arm["loss"] for arm in arms if arm["loss"] in ("c2", "pnca")):
        left = [arm.variant for arm in search_arms((loss,)) if arm.name not in done]
        told += [f"{loss}: {'; '.join(left)}"] if left else []
    return f"Settings of the search that have not been tried yet: {'. '.join(told)}." if told else ""


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
            picture = PICTURES.format(name=name) if protocol == "fair" else ""
            parts.append(f"{head}\n\n{render_study(record['value'])}\n\n{picture}{caption(name, record)}")
    selection = results / f"{SELECTION}.json"
    if selection.is_file():
        record = read_result(selection)
        head = "**What GSP selects on CUB before any training.** " + SELECTION_EXPLAINED
        parts.append(f"{head}\n\n{selection_table(record['value'])}\n\n{caption(SELECTION, record)}")
    return "\n\n".join(parts) if parts else NOT_RUN


def headlines(value: dict[str, Any]) -> list[Headline]:
    """Give MAP@R of single models and of the joined ones, for every loss and layer at the paper's settings."""
    found = []
    for arm in value["arms"]:
        paper = paper_values(value["data"], arm["loss"], arm["pooling"])
        if arm["variant"] or paper is None:
            continue
        where = f"{value['data']}, {arm['loss']}, {arm['pooling']}"
        found.append(Headline(f"MAP@R 128D, {where}", f"{paper.map:.2f}", separate(arm, "map")))
        found.append(Headline(f"MAP@R 512D, {where}", f"{paper.map_joined:.2f}", concatenated(arm) or "not run"))
    return found


def unfinished(results: Path) -> str:
    """Say what of the paper's table and of the search on CUB is missing; the other benchmarks need their data."""
    runs = read_result(results / f"{file_name('cub', 'fair')}.json")["value"]["runs"]
    done = ended(runs)
    folds = range(PROTOCOLS["fair"].folds)
    wanted = {(arm.name, fold, seed) for arm in paper_arms(("c2", "pnca")) for fold in folds for seed in SEEDS}
    left = len(wanted - done)
    arms = {arm for arm, _, _ in done}
    losses = [loss for loss in LOSSES if f"{loss} gsp" not in arms]
    layers = [layer for layer in POOLINGS if f"c2 {layer}" not in arms]
    searched = search_arms(("c2", "pnca"))
    untried_settings = sum(arm.name not in arms for arm in searched)
    missing = {
        f"{left} of {len(wanted)} trainings of C2 and ProxyNCA++ with GAP and GSP on CUB": left,
        f"losses {', '.join(losses)}": losses,
        f"layers {', '.join(layers)}": layers,
        f"{untried_settings} of {len(searched)} settings of the search": untried_settings,
        "the conventional protocol": not (results / f"{file_name('cub', 'conventional')}.json").is_file(),
    }
    return "; ".join(words for words, is_missing in missing.items() if is_missing)
