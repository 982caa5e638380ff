"""Table 2 and the CUB columns of the pooling table: six losses, average pooling against GSP, on four benchmarks.

Paper, CUB, MAP@R of 128D models, BN-Inception: C2 20.58 with GAP, 21.52 with GSP; ProxyNCA++ 20.63 and 20.75.
Ours: results/benchmark_DATA.json, with the ResNet50 of Keras, from which the authors' reference can start as well.

    gspool reproduce benchmark --data cub --weights resnet50.safetensors --device cuda
    gspool reproduce benchmark --arms search --folds 0 --seeds 0       # the settings tried beyond the paper's
    gspool reproduce benchmark --protocol conventional
    gspool reproduce benchmark --seconds 500                           # what can be done in this time
    gspool reproduce benchmark --train false                           # figures of what has been trained
    gspool reproduce benchmark --quick

Every training is kept when it ends, and none is made twice: a later call adds folds, seeds, losses and layers. They are
made repeat by repeat, GAP and GSP of a fold together, so that whatever time allows is a comparison of pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from gspool.evaluation import PROTOCOLS
from gspool.experiments.benchmark.arms import COMPARED, DATA, POOLINGS, SEEDS, Arm, paper_arms, pooling_table_arms
from gspool.experiments.benchmark.checks import check_choice, check_study
from gspool.experiments.benchmark.choice import best_arms
from gspool.experiments.benchmark.figures import maps_of
from gspool.experiments.benchmark.missing import unfinished
from gspool.experiments.benchmark.names import benchmark_name
from gspool.experiments.benchmark.runs import Study, ground_of, labels_of, train_missing
from gspool.experiments.benchmark.search import BEST, named_variants, search_arms
from gspool.experiments.benchmark.section import headlines, judge, render, render_study
from gspool.experiments.benchmark.store import Store
from gspool.experiments.benchmark.written import take_over, write_figures, written_at_the_end
from gspool.experiments.experiment import Experiment, RunOptions
from gspool.experiments.numbers import numbers_of, refuse_twice
from gspool.provenance import read_result
from gspool.terminal.status import WrongArgumentsError, checking_arguments

# Words in the place of names of pooling layers.
GROUPS = {"all": "the layers of Table 2", "table": "those of the pooling table"}


@dataclass(frozen=True)
class BenchmarkSettings:
    """What may be chosen about the benchmark.

    Args:
        data: cub, cars196, sop or inshop.
        protocol: fair (four folds, early stopping on held-out classes) or conventional (watched on the test classes).
        losses: names with commas between; if none are named, c2,pnca in the fair protocol and xbm+c1 in the other, as
            in the paper.
        poolings: names with commas between; "all" for those of Table 2, "table" for those of the pooling table. If none
            are named, gap,gsp in the fair protocol and gap+gmp,gmp+gsp in the other, as in the paper.
        arms: paper (its settings), search (settings beyond them, for GSP), or both.
        variants: which of the settings of search, with semicolons between; all if none are named. "best" is that which
            is furthest ahead of GAP on validation classes.
        folds: which folds, with commas between; all of the protocol's if none are named.
        backbone: a name of gspool.models.list_backbones().
        weights: the file of its ImageNet weights.
        processes: trainings at a time.
        seconds: no training begins that would not end within this time, going by those that have ended; those under way
            then end at their next evaluation, and the next call goes on with them; 0 for no limit.
        max_steps: an end for runs that early stopping does not end; 0 for none.
        train: false trains nothing and writes the figures of what has been trained, here or elsewhere.
    """

    data: str = "cub"
    protocol: Literal["fair", "conventional"] = "fair"
    losses: str = ""
    poolings: str = ""
    arms: Literal["paper", "search", "both"] = "paper"
    variants: str = ""
    folds: str = ""
    backbone: str = "keras/resnet50"
    weights: str | None = None
    processes: int = 8
    seconds: float = 0.0
    max_steps: int = 0
    train: bool = True


def check(options: RunOptions) -> None:
    """Refuse wrong options before the benchmark is run.

    Raises:
        ValueError: if they cannot be meant.
        FileNotFoundError: if the file of the weights is not there.
    """
    check_choice(options)
    study_of(options)


def study_of(options: RunOptions) -> Study:
    """Turn what was chosen into the trainings that are wanted.

    Raises:
        WrongArgumentsError: if a name is not known, a number has no sense, or options do not go together.
        FileNotFoundError: if the file of the weights is not there.
    """
    chosen = options.settings or BenchmarkSettings()
    with checking_arguments():
        study = _study_of(chosen, options.seeds or SEEDS)
        check_study(study, chosen.train, options.quick)
    return study


def _study_of(chosen: BenchmarkSettings, seeds: tuple[int, ...]) -> Study:
    if chosen.data not in DATA:
        raise ValueError(f"the paper's benchmarks are {', '.join(DATA)}, got {chosen.data!r}")
    if chosen.variants and chosen.arms == "paper":
        raise ValueError("--variants names settings of the search: add --arms search, or both, or leave it out")
    if chosen.poolings and chosen.arms == "search":
        raise ValueError("the search is of GSP alone: leave --poolings out, or add the paper's rows with --arms both")
    losses = losses_of(chosen)
    arms: list[Arm] = []
    if chosen.arms != "search":
        named = names_of(chosen.poolings, "poolings") or COMPARED[chosen.protocol][1]
        for word in {*GROUPS} & {*named}:
            if len(named) > 1:
                raise ValueError(
                    f"--poolings {word} stands for {GROUPS[word]}, and alone: leave {word} out, or the other names, "
                    f"got {chosen.poolings!r}"
                )
        named = POOLINGS if named == ("all",) else named
        arms += pooling_table_arms(losses) if named == ("table",) else paper_arms(losses, named)
    if chosen.arms != "paper":
        # The best of them is known once finished trainings have been looked at.
        named = () if chosen.variants == BEST else tuple(named_variants(chosen.variants))
        arms += [arm for arm in search_arms(losses) if arm.variant in named]
    return Study(
        data=chosen.data,
        protocol=chosen.protocol,
        arms=tuple(arms),
        folds=folds_of(chosen.folds, chosen.protocol),
        seeds=seeds,
        backbone=chosen.backbone,
        weights=chosen.weights,
        processes=chosen.processes,
        seconds=chosen.seconds or None,
        max_steps=chosen.max_steps,
    )


def losses_of(chosen: BenchmarkSettings) -> tuple[str, ...]:
    """Give the losses that were named, or those that the paper shows for the protocol."""
    return names_of(chosen.losses, "losses") or COMPARED[chosen.protocol][0]


def names_of(text: str, what: str) -> tuple[str, ...]:
    """Read names with commas between, each of them once; ``what`` they are, in the plural.

    Raises:
        WrongArgumentsError: if a name stands there twice; it is a ValueError.

    Example:
        >>> names_of("c2, pnca", "losses"), names_of("", "losses")
        (('c2', 'pnca'), ())
    """
    found = tuple(word.strip() for word in text.split(",") if word.strip())
    refuse_twice(found, what, text)
    return found


def folds_of(text: str, protocol: str) -> tuple[int, ...]:
    """Read folds with commas between; none are all.

    Raises:
        WrongArgumentsError: if the protocol has no such fold, or one is named twice; it is a ValueError.

    Example:
        >>> folds_of("1,3", "fair"), folds_of("", "tuning")
        ((1, 3), (0,))
    """
    there = range(PROTOCOLS[protocol].folds)
    folds = numbers_of(text, "folds") or tuple(there)
    if any(fold not in there for fold in folds):
        known = f"folds 0 to {there[-1]}" if len(there) > 1 else "one fold, 0"
        raise WrongArgumentsError(f"the {protocol} protocol has {known}, got {text!r}")
    return folds


def store_of(study: Study, options: RunOptions) -> Store:
    """Open the folder of a benchmark's trainings, which all experiments on it share."""
    backbone = study.backbone.replace("/", "-")
    return Store(options.work / "benchmark" / f"{study.data}-{study.protocol}-{backbone}")


def run(options: RunOptions) -> None:
    """Train what is missing, and write the figures of all that has been trained."""
    study = study_of(options)
    path = options.results / f"{benchmark_name(study.data, study.protocol, study.backbone)}.json"
    store = store_of(study, options)
    take_over(path, study, store, options.quick)
    chosen = options.settings or BenchmarkSettings()
    if chosen.arms != "paper" and chosen.variants == BEST:
        best = best_arms(losses_of(chosen), store.runs())
        study = replace(study, arms=(*study.arms, *best))
    ground = ground_of(study, options) if chosen.train else labels_of(study, options)

    def write() -> None:
        if store.runs():
            write_figures(path, study, store, ground, EXPERIMENT.command(options), chosen.train)

    with written_at_the_end(write):
        if chosen.train:
            train_missing(study, ground, store, options)
    value = read_result(path)["value"]
    if study.protocol == "fair":
        picture = options.images / f"{path.stem}.png"
        draw_where_possible(picture, lambda: _draw(value, picture))
    print(render_study(value))


def draw_where_possible(path: Path, draw: Callable[[], None]) -> None:
    """Draw, or say how to do it later: a machine that trains need not have matplotlib."""
    if find_spec("matplotlib") is None:
        print(f"{path.name} is not drawn, for want of matplotlib; `--train false` draws it where there is one")
    else:
        draw()


def _draw(value: dict[str, Any], path: Path) -> None:
    from gspool.experiments.benchmark.forest import forests
    from gspool.experiments.benchmark.forest_picture import draw_forest
    from gspool.experiments.benchmark.looks import draw_looks
    from gspool.experiments.benchmark.picture import draw
    from gspool.experiments.benchmark.summary_picture import draw_summary

    def ending(word: str) -> Path:
        return path.with_name(f"{path.stem}_{word}.png")

    draw(value, path)
    draw_summary(value, ending("summary"))
    for end, (beside, panels) in forests(value).items():
        draw_forest(panels, beside, ending(end))
    maps = maps_of(value["arms"])
    if maps:
        draw_looks(maps, ending("looks"))


EXPERIMENT = Experiment(
    name="benchmark",
    promise="GSP in the place of average pooling improves every loss on every benchmark by about a point of MAP@R",
    shows="Table 2, Figure 6, and the supplement's tables of pooling methods, of the conventional setting and of R@K",
    cost="two losses, GAP and GSP, four folds and three repeats of CUB: 48 trainings, some 12 minutes of "
    "one H200 with ten side by side under MPS",
    files=("benchmark_cub",),
    needs=("cub",),
    run=run,
    render=render,
    settings=BenchmarkSettings,
    why_not_run="needs a GPU, the data set, and the backbone's ImageNet weights",
    check=check,
    unfinished=unfinished,
    verdict=judge,
    not_attempted="repeats two and three of the layers beside GAP and GSP; folds beside the first of the layers that "
    "the pooling table alone has; the rows of C1 without XBM and of LIBC; "
    "Cars196, SOP, In-shop and BN-Inception, whose data and weights are not to be had here (`--data`, "
    "`--backbone` and `--weights` take them where they are)",
    headlines=headlines,
)
