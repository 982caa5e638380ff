"""What has not been trained yet is counted, setting by setting."""

from __future__ import annotations

from pathlib import Path

from finished_runs import finished
from gspool.experiments.benchmark.arms import LOSSES, POOLINGS, SEEDS, Arm, paper_arms, pooling_table_arms
from gspool.experiments.benchmark.figures import arm_figures
from gspool.experiments.benchmark.missing import unfinished
from gspool.experiments.benchmark.search import search_arms
from gspool.provenance import write_result

MAIN = ("c2", "pnca")
# The first of the search stands for what validation chose: it alone has all seeds.
BEST = [search_arms((loss,))[0].name for loss in MAIN]


def seeds_of(arm: Arm) -> tuple[int, ...]:
    return SEEDS if arm.name in BEST or arm in paper_arms(LOSSES) else (0,)


def left_of_a_whole_table(folder: Path, without: tuple[str, int, int] | None = None) -> str:
    """Write a result that holds everything that is wanted, but for one training, and say what is missing."""
    runs, arms = [], []
    extra = [arm for arm in paper_arms(MAIN, POOLINGS) if arm not in paper_arms(MAIN)]
    rare = [arm for arm in pooling_table_arms(MAIN) if arm.pooling not in POOLINGS]
    for arm in [*paper_arms(LOSSES), *extra, *rare, *search_arms(MAIN)]:
        folds = range(1) if arm in rare else range(4)
        places = [(fold, seed) for fold in folds for seed in seeds_of(arm) if (arm.name, fold, seed) != without]
        if not places:
            continue
        made = finished(arm, dict.fromkeys(places, 0.2))
        runs += [run._asdict() for run in made]
        arms.append(arm_figures(made, finished(Arm(arm.loss, "gap"), dict.fromkeys(places, 0.19))))
    write_result(folder / "benchmark_cub.json", {"runs": runs, "arms": arms}, command="gspool reproduce", seeds=[0])
    return unfinished(folder)


def make_conventional(folder: Path, seeds: tuple[int, ...] = SEEDS) -> None:
    """Write a result of the other protocol, whose layers have max pooling added."""
    made = [finished(Arm("xbm+c1", layer), {(0, seed): 0.2 for seed in seeds}) for layer in ("gap+gmp", "gmp+gsp")]
    runs = [run._asdict() for arm in made for run in arm]
    write_result(folder / "benchmark_cub_conventional.json", {"runs": runs}, command="gspool reproduce", seeds=seeds)


def test_of_a_whole_table_only_the_other_protocol_is_missing(tmp_path: Path) -> None:
    assert left_of_a_whole_table(tmp_path) == "6 of 6 trainings of the conventional protocol"
    make_conventional(tmp_path, SEEDS[:2])
    assert left_of_a_whole_table(tmp_path) == "2 of 6 trainings of the conventional protocol"
    make_conventional(tmp_path)
    assert left_of_a_whole_table(tmp_path) == ""


def test_a_missing_training_is_named_by_what_it_belongs_to(tmp_path: Path) -> None:
    make_conventional(tmp_path)
    searched = search_arms(("c2",))[4].name
    for training, told in {
        ("c2 gap", 1, 2): "1 of 48 trainings of C2 and ProxyNCA++ with GAP and GSP",
        ("ms gsp", 3, 0): "1 of 96 trainings of the other losses with GAP and GSP",
        ("c2 gmp", 3, 0): "1 of 48 trainings of the other layers of Table 2",
        ("pnca tfm 8 layers", 0, 0): "1 of 30 trainings of the layers that the pooling table alone has, one fold",
        (BEST[1], 2, 1): "1 of 12 trainings of epsilon 20, which validation chose with pnca",
        (searched, 1, 0): "1 of 88 trainings of the search",
    }.items():
        assert left_of_a_whole_table(tmp_path, training) == told
