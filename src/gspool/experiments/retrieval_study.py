"""A study on a retrieval benchmark: which trainings it wants, those that are missing, and the result that it writes.

Studies of the same data, protocol and backbone share one store of finished runs, so that none is made twice.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jsonargparse.typing import NonNegativeInt

from gspool import losses
from gspool.data.splits import LARGEST_SEED
from gspool.evaluation import PROTOCOLS, RunResult
from gspool.executor.grid import run_grid
from gspool.executor.run_store import Run, RunStore
from gspool.experiments.experiment import Experiment, Record, RunOptions, numbers_of, result_name
from gspool.experiments.retrieval_figures import by_variant, joined_figures, place, runs_of, variant_figures
from gspool.experiments.retrieval_training import (
    SEEDS,
    SEEDS_APART,
    Variant,
    embeddings_of,
    make_worker,
    named_loss,
)
from gspool.files import sha256_of
from gspool.models import create_backbone
from gspool.pooling.registry import layer_class
from gspool.provenance import is_quick, read_result, write_result
from gspool.terminal.status import WrongArgumentsError

LIBRARIES = ("pytorch-metric-learning", "torchvision")
BACKBONE = "keras/resnet50"


@dataclass(frozen=True)
class StudySettings:
    """Options of a study on a retrieval benchmark.

    Args:
        data: cub, cars196, sop or inshop.
        folds: comma-separated folds; all of the protocol's by default.
        backbone: a name of gspool.models.list_backbones().
        weights: the file of its ImageNet weights.
        max_steps: last step of runs that early stopping does not end; 0 for no limit.
        train: false trains nothing and writes the figures of what has been trained.
    """

    data: Literal["cub", "cars196", "sop", "inshop"] = "cub"
    folds: str = ""
    backbone: str = BACKBONE
    weights: str | None = None
    max_steps: NonNegativeInt = 0
    train: bool = True


@dataclass(frozen=True)
class Study:
    """What is to be trained: every variant on every fold with every seed; ``name`` is that of its result."""

    name: str
    options: RunOptions
    settings: StudySettings
    protocol: str
    variants: tuple[Variant, ...]
    folds: tuple[int, ...]
    seeds: tuple[int, ...]

    @property
    def folder(self) -> Path:
        """The folder of finished runs, which all studies of the same data, protocol and backbone share."""
        names = (self.settings.data, self.protocol, self.settings.backbone.replace("/", "-"))
        return self.options.work / "benchmark" / "-".join(names)

    @property
    def result(self) -> Path:
        """The file of its result."""
        return self.options.results / f"{self.name}.json"

    @property
    def precision(self) -> str:
        """Precision of the training: mixed on a GPU."""
        return "bf16-mixed" if torch.device(self.options.device).type == "cuda" else "32-true"

    def open_store(self) -> RunStore:
        """Open its finished trainings, and those inside its result."""
        return RunStore(self.folder / "runs.jsonl", self.result, device=self.options.device, libraries=LIBRARIES)


def study_of(
    name: str,
    options: RunOptions,
    protocol: str,
    variants: Sequence[Variant],
    seeds: tuple[int, ...] = SEEDS,
    usual_data: str = "cub",
) -> Study:
    """Return the trainings that options ask for; data and backbone that are not the usual ones are in its name."""
    settings = options.settings or StudySettings()
    known = range(PROTOCOLS[protocol].folds)
    folds = numbers_of(settings.folds, "folds") or tuple(known)
    if any(fold not in known for fold in folds):
        raise WrongArgumentsError(f"the {protocol} protocol has folds 0 to {known[-1]}, got {settings.folds!r}")
    whole = result_name(name, (settings.data, settings.backbone), (usual_data, BACKBONE))
    return Study(whole, options, settings, protocol, tuple(variants), folds, options.seeds or seeds)


def check_study(study: Study, choosing: Sequence[str] = ("folds",)) -> None:
    """Refuse, before anything is read, a study that cannot be trained as it was meant.

    Args:
        study: what is wanted.
        choosing: options that choose trainings; they do not apply where nothing is trained.
    """
    chosen, quick = study.settings, study.options.quick
    if not chosen.train:
        default = type(chosen)()
        given = [name for name in choosing if getattr(chosen, name) != getattr(default, name)]
        flags = [f"--{name}" for name in (["seeds"] if study.options.seeds else []) + given]
        if flags:
            raise ValueError(
                f"--train false writes the figures of all finished trainings: leave out {' and '.join(flags)}"
            )
    largest = (LARGEST_SEED - max(study.folds)) // SEEDS_APART
    if max(study.seeds) > largest:
        raise ValueError(f"--seeds go up to {largest} here, got {max(study.seeds)}")
    if not chosen.train:
        return
    for name, options in (named_loss(each.loss) for each in study.variants):
        losses.create(name, num_classes=2, dim=2, **options)
    for pooling in {each.pooling for each in study.variants}:
        layer_class(pooling)
    if chosen.weights is None and not quick:
        raise ValueError(
            f"{chosen.backbone} would start from random weights, and the benchmarks start from ImageNet: give the file "
            "with --weights; docs/models.md says how to get it"
        )
    if chosen.weights is not None and not Path(chosen.weights).is_file():
        raise FileNotFoundError(f"there is no file {chosen.weights}; --weights is the file of the backbone's weights")
    _check_backbone(chosen.backbone, None if quick else chosen.weights)


@functools.cache
def _check_backbone(name: str, weights: str | None) -> None:
    """Refuse a backbone that does not exist, or weights that do not fit it; cached, because it takes seconds."""
    with torch.random.fork_rng(devices=[]):
        if weights is not None:
            create_backbone(name, weights=weights)
        else:
            with torch.device("meta"):
                create_backbone(name)


def jobs_of(study: Study) -> list[dict[str, Any]]:
    """List every training of a study in the order that tells most, wherever it is cut off.

    Repeat by repeat; in each, first the paper's settings over all folds, then other settings, fold by fold. The
    variants of a fold and seed follow each other: they see the same batches and crops, so that differences are paired.
    """
    weights = study.settings.weights
    shared = {
        "weights": None if weights is None or study.options.quick else sha256_of(Path(weights))[:12],
        "precision": study.precision,
        "max_steps": study.settings.max_steps,
    }
    rounds = [[each for each in study.variants if bool(each.setting) == other] for other in (False, True)]
    return [
        {
            "variant": variant.name,
            "loss": variant.loss,
            "pooling": variant.pooling,
            "setting": variant.setting,
            "changes": variant.differences,
            "fold": fold,
            "seed": seed,
            **shared,
        }
        for seed, variants, fold in itertools.product(study.seeds, rounds, study.folds)
        for variant in variants
    ]


def finished_runs(store: RunStore) -> dict[str, list[Run]]:
    """Return the finished trainings by variant: of several with the same fold and seed the last.

    One that early stopping ended counts before one that its number of steps ended.
    """
    best: dict[tuple[Any, ...], Run] = {}
    for run in store.runs():
        key = (run.asked["variant"], *place(run))
        if key not in best or run.found["ending"] == "patience" or best[key].found["ending"] != "patience":
            best[key] = run
    return by_variant(best.values())


def run_study(study: Study, command: str, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Train what is missing, write the result and return it."""
    before = read_result(study.result) if study.result.is_file() else {}
    if before and is_quick(before) and not study.options.quick:
        before = {}
    store = study.open_store()
    write = functools.partial(write_study, study, store, before, command, names)
    if study.settings.train:
        worker, options = functools.partial(make_worker, study), study.options
        try:
            run_grid(store, jobs_of(study), worker, options.executor, options.seconds)
        except RuntimeError:
            if store.runs():
                write()
            raise
    return write()


def write_study(
    study: Study, store: RunStore, before: Mapping[str, Any], command: str, names: Sequence[str] | None
) -> dict[str, Any]:
    """Write the figures of all finished trainings, with the provenance of each; a note of the earlier result stays."""
    made = finished_runs(store)
    runs = {name: made[name] for name in names or made if name in made}
    if not runs:
        raise ValueError("no training has finished, nothing was written; the same command continues")
    variants = [figures_of_variant(study, own, runs.get(f"{own[0].asked['loss']} gap", own)) for own in runs.values()]
    if before:
        keep_earlier_figures(variants, runs, before["value"])
    chosen, every = study.settings, [run for own in runs.values() for run in own]
    return write_result(
        study.result,
        {
            "data": chosen.data,
            "protocol": study.protocol,
            "backbone": chosen.backbone,
            "variants": variants,
            "runs": [run._asdict() for run in every],
        },
        command=command if chosen.train else before.get("command", command),
        seeds=sorted({run.asked["seed"] for run in every}),
        origins=[run.origin for run in every],
        note=before.get("note"),
    )


def figures_of_variant(study: Study, runs: Sequence[Run], gap: Sequence[Run]) -> dict[str, Any]:
    """Compute the figures of a variant. Joining models takes minutes: its figures are kept beside the trainings."""
    figures, protocol = variant_figures(runs, gap), PROTOCOLS[study.protocol]
    if protocol.report != "combinations":
        return figures
    kept = {place(run): each for run in runs if (each := embeddings_of(study, run)) is not None}
    used = [[*place(run), run.found["metrics"]["map@r"]] for run in runs if place(run) in kept]
    cache, asked = RunStore(study.folder / "joined.jsonl"), {"variant": figures["variant"], "runs": sorted(used)}
    joined = cache.get(asked)
    if joined is None and kept:
        metrics, one = {place(run): run.found["metrics"] for run in runs}, next(iter(kept.values()))
        results = {
            where: RunResult(each["embeddings"], metrics[where], each.get("gallery")) for where, each in kept.items()
        }
        gallery = one.get("gallery_labels")
        joined = joined_figures(results, protocol.folds, one["labels"], gallery, study.options.device) or {}
        cache.put(asked, joined)
    return {**figures, "joined": joined or None}


def keep_earlier_figures(
    variants: Sequence[dict[str, Any]], runs: Mapping[str, Sequence[Run]], earlier: Mapping[str, Any]
) -> None:
    """Keep figures of an earlier result that need what is not here: test embeddings, and maps in full precision.

    They are kept where the trainings behind them are still the same.
    """
    known, made = {row["variant"]: row for row in earlier["variants"]}, runs_of(earlier)
    for figures in variants:
        name = figures["variant"]
        if name in known:
            then, now = ({place(run): run.found["metrics"]["map@r"] for run in own[name]} for own in (made, runs))
            had, has = ((row["joined"] or {"repeats": 0})["repeats"] for row in (known[name], figures))
            if had > has and then.items() <= now.items():
                figures["joined"] = known[name]["joined"]
            if then == now:
                figures["mean_weights"] = known[name]["mean_weights"]


def missing_of(record: Record, variants: Sequence[Variant], seeds: Sequence[int] = SEEDS) -> str:
    """Return how many trainings of a study a record lacks, in words; empty where it has all."""
    value = record["value"]
    folds = range(PROTOCOLS[value["protocol"]].folds)
    wanted = {*itertools.product((each.name for each in variants), folds, seeds)}
    left = wanted - {(run["asked"]["variant"], run["asked"]["fold"], run["asked"]["seed"]) for run in value["runs"]}
    return f"{len(left)} of {len(wanted)} trainings" if left else ""


def study_experiment(
    name: str,
    protocol: str,
    variants: Callable[[Any], Sequence[Variant]],
    *,
    seeds: tuple[int, ...] = SEEDS,
    settings: type[StudySettings] = StudySettings,
    choosing: Sequence[str] = ("folds",),
    **more: Any,
) -> Experiment:
    """Return an experiment that is one study.

    Args:
        name: of the experiment and its result.
        protocol: a name of `gspool.evaluation.PROTOCOLS`.
        variants: takes the settings and returns what they ask for; None asks for all that the result shows.
        seeds: unless others are asked for.
        settings: the options of the experiment.
        choosing: options that choose trainings.
        more: other fields of the `Experiment`.
    """

    def study(options: RunOptions) -> Study:
        return study_of(name, options, protocol, variants(options.settings), seeds)

    def run(options: RunOptions) -> None:
        run_study(study(options), experiment.command(options), [each.name for each in variants(None)])

    experiment = Experiment(
        name=name,
        files=(name,),
        needs=("cub",),
        run=run,
        settings=settings,
        check=lambda options: check_study(study(options), choosing),
        missing=lambda record: missing_of(record, variants(None), seeds),
        parallel=True,
        **more,
    )
    return experiment
