"""What of the benchmark on CUB has not been trained yet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gspool.evaluation import PROTOCOLS
from gspool.experiments.benchmark.arms import COMPARED, LOSSES, POOLINGS, SEEDS, Arm, paper_arms, pooling_table_arms
from gspool.experiments.benchmark.choice import chosen_by_validation
from gspool.experiments.benchmark.names import benchmark_name
from gspool.experiments.benchmark.search import search_arms
from gspool.experiments.benchmark.store import missing_of, runs_of
from gspool.provenance import read_result


def unfinished(results: Path) -> str:
    """Say what of the paper's table and of the search on CUB is missing; the other benchmarks need their data."""
    value = read_result(results / f"{benchmark_name('cub', 'fair')}.json")["value"]

    def count(arms: Sequence[Arm], folds: range, seeds: tuple[int, ...]) -> tuple[int, int]:
        return missing_of((arm.name for arm in arms), folds, seeds, value["runs"])

    folds = range(PROTOCOLS["fair"].folds)
    main, both = COMPARED["fair"]
    others = tuple(loss for loss in LOSSES if loss not in main)
    layers = tuple(layer for layer in POOLINGS if layer not in both)
    rare = [arm for arm in pooling_table_arms(main) if arm.pooling not in POOLINGS]
    groups = {
        "C2 and ProxyNCA++ with GAP and GSP": count(paper_arms(main), folds, SEEDS),
        "the other losses with GAP and GSP": count(paper_arms(others), folds, SEEDS),
        "the other layers of Table 2": count(paper_arms(main, layers), folds, SEEDS[:1]),
        "the layers that the pooling table alone has, one fold": count(rare, range(1), SEEDS[:1]),
    }
    missing = [f"{left} of {of} trainings of {what}" for what, (left, of) in groups.items() if left]
    left, of = count(search_arms(main), folds, SEEDS[:1])
    if left:
        missing.append(f"{left} of {of} trainings of the search")
    for loss in main:
        choice = chosen_by_validation(runs_of(value), loss)
        if choice is None:
            continue
        left, of = count([choice.arm], folds, SEEDS)
        if left:
            missing.append(f"{left} of {of} trainings of {choice.arm.variant}, which validation chose with {loss}")
    usual = results / f"{benchmark_name('cub', 'conventional')}.json"
    made = read_result(usual)["value"]["runs"] if usual.is_file() else []
    names = [arm.name for arm in paper_arms(*COMPARED["conventional"])]
    left, of = missing_of(names, range(PROTOCOLS["conventional"].folds), SEEDS, made)
    if left:
        missing.append(f"{left} of {of} trainings of the conventional protocol")
    return "; ".join(missing)
