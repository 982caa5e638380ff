"""A study on a benchmark: some arms, one protocol, one result; what has been trained for another study is not again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from gspool.evaluation import PROTOCOLS
from gspool.experiments.benchmark.arms import SEEDS, Arm
from gspool.experiments.benchmark.checks import check_choice
from gspool.experiments.benchmark.experiment import (
    BenchmarkSettings,
    folds_of,
    store_of,
    study_of,
)
from gspool.experiments.benchmark.names import result_name
from gspool.experiments.benchmark.runs import Study, ground_of, labels_of, train_missing
from gspool.experiments.benchmark.store import missing_of
from gspool.experiments.benchmark.written import take_over, write_figures, written_at_the_end
from gspool.experiments.experiment import RunOptions
from gspool.provenance import read_result


@dataclass(frozen=True)
class StudySettings:
    """What may be chosen about a study on a benchmark.

    Args:
        data: cub, cars196, sop or inshop.
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
    folds: str = ""
    backbone: str = "keras/resnet50"
    weights: str | None = None
    processes: int = 8
    seconds: float = 0.0
    max_steps: int = 0
    train: bool = True


def study_wanted(options: RunOptions, arms: tuple[Arm, ...], protocol: str) -> Study:
    """Turn what was chosen into the trainings of a study.

    Raises:
        WrongArgumentsError: if a name is not known or a number has no sense.
        FileNotFoundError: if the file of the weights is not there.
    """
    chosen = options.settings or StudySettings()
    shared = {each.name: getattr(chosen, each.name) for each in fields(StudySettings)}
    study = study_of(replace(options, settings=BenchmarkSettings(**{**shared, "folds": ""})))
    return replace(study, arms=arms, protocol=protocol, folds=folds_of(chosen.folds, protocol))


def check_of(protocol: str) -> Callable[[RunOptions], Any]:
    """Give what refuses wrong options before a study is run; its arms are not a person's choice."""

    def check(options: RunOptions) -> None:
        check_choice(options)
        study_wanted(options, (), protocol)

    return check


def run_study(
    options: RunOptions, chosen: StudySettings, arms: tuple[Arm, ...], protocol: str, name: str, command: str
) -> dict[str, Any]:
    """Train what is missing of these arms, write ``results/NAME.json``, and give its value.

    Args:
        options: of the run; its own settings are not looked at.
        chosen: settings of the study.
        arms: what is compared.
        protocol: "fair" or "tuning".
        name: of the result, on CUB with the usual backbone.
        command: what a person typed for it.
    """
    study = study_wanted(replace(options, settings=chosen), arms, protocol)
    path = options.results / f"{result_name(name, study.data, study.backbone)}.json"
    store = store_of(study, options)
    take_over(path, study, store, options.quick)
    ground = ground_of(study, options) if chosen.train else labels_of(study, options)

    def write() -> None:
        if {arm.name for arm in arms} & {run.asked["arm"] for run in store.runs()}:
            write_figures(path, study, store, ground, command, chosen.train, [arm.name for arm in arms])

    with written_at_the_end(write):
        if chosen.train:
            train_missing(study, ground, store, options)
    value: dict[str, Any] = read_result(path)["value"]
    return value


def still_missing(results: Path, name: str, arms: Sequence[Arm], seeds: Sequence[int] = SEEDS) -> str:
    """Count the trainings of ``results/NAME.json`` that its study promises and does not hold; empty where none is."""
    value = read_result(results / f"{name}.json")["value"]
    folds = range(PROTOCOLS[value["protocol"]].folds)
    left, wanted = missing_of((arm.name for arm in arms), folds, seeds, value["runs"])
    return f"{left} of {wanted} trainings" if left else ""
