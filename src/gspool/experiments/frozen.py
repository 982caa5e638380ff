"""Heads on a frozen backbone: pooling layers on tokens that do not adapt to them, every layer tuned alike.

Not in the paper, which tunes the whole network. Tokens are computed once; then every layer gets the same number of
tries (learning rates, its own options) on two folds, the best try by validation is trained on all folds and seeds, and
judged on the test classes. "frozen" is the feature of the backbone with nothing learned.
Ours: results/frozen_DATA_BACKBONE_SIZE_LOSS.json.

    gspool reproduce frozen --weights resnet50.safetensors --device cuda --processes 16      # one H200, 4 minutes
    gspool reproduce frozen --weights resnet50.safetensors --size 448 --device cuda --processes 16
    gspool reproduce frozen --backbone timm/vit_small_patch14_dinov2 --weights dinov2.safetensors --size 224 --dim 0
    gspool reproduce frozen --data cub_collage --backbone timm/vit_small_patch14_dinov2 ... --size 448 --dim 0
    gspool reproduce frozen --data flowers --like frozen_cub_resnet50_227_pnca ...      # settings chosen elsewhere
    gspool reproduce frozen --data cifar100 --task classify --lr 1e-4 ...
    gspool reproduce frozen --layers "gap,gsp,gsp zsr,gemean+gsp keys,gemean+gsp keys zsr" ...      # ..._zsr.json
    gspool reproduce frozen --layers "gap,ep wide,delf wide,abmilp wide,gsp one each wide" ...      # ..._wide.json
    gspool reproduce frozen --classes 16 --like frozen_cub_resnet50_227_pnca ...      # ..._16classes.json
    gspool reproduce frozen --quick
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from gspool import data
from gspool.evaluation.statistics import with_interval
from gspool.executor.grid import run_grid
from gspool.executor.run_store import RunStore
from gspool.experiments.experiment import Experiment, FromFile, Record, RunOptions
from gspool.experiments.plots import save, subplots
from gspool.experiments.runs import plain_runs
from gspool.experiments.tables import markdown_table, plus_minus
from gspool.features import FeatureConfig, TokenLayout, extract_tokens
from gspool.models import create_backbone
from gspool.provenance import read_result, write_result
from gspool.training.compare import CompareConfig
from gspool.training.compare_data import TaskName, Tokens, create_sets, token_sets
from gspool.training.compare_runs import (
    Variant,
    asked_of,
    best_variants,
    finished_variants,
    hold_tokens,
    make_worker,
    summary,
)
from gspool.training.config import DataConfig, LossConfig, OptimiserConfig, TrainerConfig
from gspool.training.gpu_data import TensorSet
from gspool.training.heads import FROZEN
from gspool.training.processes import precision_of

# The first seed tunes.
FOLDS, SEEDS, TUNING_FOLDS = 4, (0, 1, 2), (0, 1)
METRIC_NAMES = {"embed": "MAP@R", "classify": "top-1"}
LIBRARIES = ("timm", "pytorch-metric-learning")
# Layers without parameters of their own, and factors on the learning rate of those that have some.
PLAIN = ("gap", "gmp", "gap+gmp", "crow", "tsmk", "weldon", "avgmax", "lse")
RATES = {
    "gemean": (1.0, 30.0),
    "gemax": (1.0, 10.0),
    "cbam": (1.0, 10.0),
    "delf": (0.3, 1.0),
    "gsop": (0.3, 1.0),
    "solar": (0.3, 1.0),
    "otp": (1.0, 10.0),
    "vlad": (1.0, 10.0),
    "tfm": (0.1, 1.0),
    "attention": (0.1, 1.0),
    "simpool": (0.1, 1.0),
    "abmilp": (1.0, 10.0),
    "aim": (0.1, 1.0),
    "map": (0.1, 1.0),
    "clip": (0.1, 1.0),
}
# Efficient Probing: queries, factors on the learning rate of the head and of the queries. The first list of a pair is
# for feature maps, the second for patch tokens, where exploration found more queries and faster ones to be better.
QUERIES = (
    [(4, 1, 30), (4, 1, 100), (8, 1, 30), (2, 1, 30), (4, 3, 30), (8, 1, 100)],
    [(16, 1, 100), (16, 1 / 3, 100), (32, 1 / 3, 100), (8, 1 / 3, 100), (8, 1, 30), (32, 1, 100)],
)
# GSP: mu, epsilon, and the factor on the learning rate of prototypes and keys.
SELECTION = (
    [(0.1, 10, 1), (0.1, 20, 1), (0.05, 10, 1), (0.05, 20, 1), (0.1, 20, 10), (0.03, 20, 1)],
    [(0.01, 20, 30), (0.01, 40, 30), (0.003, 20, 30), (0.003, 40, 30), (0.03, 40, 30), (0.01, 20, 10)],
)
KEYS = (
    [(0.1, 5, 1), (0.1, 10, 1), (0.05, 5, 1), (0.05, 10, 1), (0.1, 10, 10), (0.03, 10, 1)],
    [(0.01, 20, 1), (0.01, 10, 3), (0.003, 20, 1), (0.003, 10, 3), (0.01, 20, 3), (0.003, 20, 3)],
)
ONE_EACH = (
    [(0.05, 10, 1), (0.1, 20, 1), (0.05, 20, 10), (0.1, 20, 10), (0.03, 20, 10), (0.05, 20, 30)],
    [(0.01, 20, 100), (0.01, 20, 30), (0.003, 20, 100), (0.01, 40, 100), (0.003, 40, 100), (0.003, 20, 300)],
)
# ZSR: its weight, the factor on its logits, random splits of a batch.
REGULARISATION = [(0.1, 9.5, 1), (0.3, 9.5, 1), (0.5, 9.5, 1), (0.1, 1.0, 1), (0.1, 9.5, 4), (0.3, 1.0, 4)]
WITH_ZSR, WIDE = " zsr", " wide"
WITH_CLASS_TOKEN = ("gap", "delf", "abmilp", "ep", "gsp", "gsp groups keys", "gsp one each")
Try = tuple[dict[str, Any], dict[str, Any]]


def tries_of(lr: float, class_token: bool) -> dict[str, list[Try]]:
    """Return six tries for every row of the table, around one learning rate.

    Rows of GSP: "gsp" with 8 prototypes, "after" with the embedding after the pooling, "keys" with a key projection,
    "groups" with 32 prototypes in 8 groups, "one each" with one prototype in every group; rows "concat" have class
    token and patches side by side. Prototypes start from k-means on tokens. Rows "zsr" vary the regularisation at the
    settings that were chosen without it. Rows "wide" have 36 tries, see `wide_tries`.
    """
    three, six = [lr / 3, lr, 3 * lr], [lr / 10, lr / 3, lr, 3 * lr, 10 * lr, 30 * lr]
    rows: dict[str, list[Try]] = {name: [({}, {"lr": rate}) for rate in six] for name in PLAIN}
    for name, factors in RATES.items():
        rows[name] = [({}, {"lr": rate, "rate": factor}) for rate in three for factor in factors]
    rows["ep"] = [
        ({"queries": count}, {"lr": factor * lr, "rate": float(rate)}) for count, factor, rate in QUERIES[class_token]
    ]

    def gsp(settings: Sequence[tuple[float, float, float]], **options: Any) -> list[Try]:
        return [gsp_try({"mu": mu, "epsilon": float(epsilon), **options}, lr, rate) for mu, epsilon, rate in settings]

    for name, wide in wide_tries(lr, class_token).items():
        rows[name + WIDE] = wide
    own, with_keys = SELECTION[class_token], KEYS[class_token]
    rows["gsp"] = gsp(own, prototypes=8)
    rows["gsp after"] = gsp(own, prototypes=8, embedding="after")
    rows["gsp keys"] = gsp(with_keys, prototypes=8, keys=128)
    rows["gsp groups"] = gsp(own, prototypes=32, groups=8)
    rows["gsp groups after"] = gsp(own, prototypes=32, groups=8, embedding="after")
    rows["gsp groups keys"] = gsp(with_keys, prototypes=32, groups=8, keys=128)
    count = 32 if class_token else 8
    rows["gsp one each"] = gsp(ONE_EACH[class_token], prototypes=count, groups=count)
    rows["gmp+gsp"] = gsp(own, prototypes=64)
    if not class_token:  # powers need features that are not negative
        rows["gemean+gsp"] = gsp(own, prototypes=64)
        rows["gemean+gsp keys"] = gsp(with_keys, prototypes=64, keys=128)
        for name, ((options, head),) in {
            "gsp": gsp([(0.05, 10, 1)], prototypes=8),
            "gemean+gsp keys": gsp([(0.1, 5, 1)], prototypes=64, keys=128),
        }.items():
            rows[name + WITH_ZSR] = [
                (options, {**head, "zsr": weight, "zsr_scale": scale, "zsr_repeats": repeats})
                for weight, scale, repeats in REGULARISATION
            ]
        return rows
    del rows["gemean"]
    rows["cls"] = [({}, {"lr": rate}) for rate in six]
    # Added to the class token: half of the tries of the layer, each with two weights of the patch tokens. Side by side
    # with it all tries of the layer: there every evaluation on validation classes chooses the weight.
    for name in WITH_CLASS_TOKEN:
        layer, *words = name.split()
        rows[" ".join([f"{layer}+cls", *words])] = [
            ({**options, "patch_scale": scale}, head) for options, head in rows[name][:3] for scale in (0.3, 0.05)
        ]
        rows[" ".join([f"{layer}+cls", *words, "concat"])] = [
            ({**options, "patch_scale": 0.5, "join": "concat"}, head) for options, head in rows[name]
        ]
    return rows


def tries_to_classify(row: str, tries: list[Try], lr: float) -> list[Try]:
    """Return two settings of a layer, each at three learning rates: a classifier depends on the rate first of all.

    Rows whose tries are learning rates already stay as they are, and so do those with many tries.
    """
    distinct = [each for place, each in enumerate(tries) if each[0] not in [options for options, _ in tries[:place]]]
    if row.endswith((WITH_ZSR, WIDE)) or len(distinct) == 1:
        return tries
    chosen = distinct[:3:2] if len(distinct) > 2 else distinct
    return [(options, {**head, "lr": rate}) for options, head in chosen for rate in (lr / 3, lr, 3 * lr)]


def gsp_try(options: dict[str, Any], lr: float, rate: float) -> Try:
    """Return a try of GSP, whose prototypes start from k-means on tokens."""
    return options, {"lr": lr, "rate": float(rate), "prototypes_from": "kmeans"}


def wide_tries(lr: float, class_token: bool) -> dict[str, list[Try]]:
    """Return 36 tries for GSP and for its strongest rivals, so that no head gains from better placed tries."""
    factors, rates = (0.1, 1 / 3, 1.0, 3.0, 10.0, 30.0), (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
    own_rates = itertools.product(factors, rates)
    rows: dict[str, list[Try]] = {"delf": [({}, {"lr": factor * lr, "rate": rate}) for factor, rate in own_rates]}
    rows["abmilp"] = rows["delf"]
    queries, fast = ((8, 16, 32, 64), (30.0, 100.0, 300.0)) if class_token else ((2, 4, 8, 16), (10.0, 30.0, 100.0))
    rows["ep"] = [
        ({"queries": count}, {"lr": factor * lr, "rate": rate})
        for count, factor, rate in itertools.product(queries, (1 / 3, 1.0, 3.0), fast)
    ]

    if class_token:
        rows["gsp one each"] = [
            gsp_try({"mu": mu, "epsilon": epsilon, "prototypes": count, "groups": count}, lr, rate)
            for count, mu, epsilon, rate in itertools.product(
                (16, 32, 64), (0.003, 0.01, 0.03), (20.0, 40.0), (30.0, 100.0)
            )
        ]
        return rows
    for name, options in {"gsp": {"prototypes": 8}, "gemean+gsp keys": {"prototypes": 64, "keys": 128}}.items():
        rows[name] = [
            gsp_try({"mu": mu, "epsilon": epsilon, **options}, factor * lr, rate)
            for mu, epsilon, factor, rate in itertools.product(
                (0.03, 0.1, 0.3), (5.0, 10.0, 20.0), (1.0, 3.0), (1.0, 10.0)
            )
        ]
    return rows


@dataclass(frozen=True)
class FrozenSettings:
    """Settings of the study.

    Args:
        data: cub, cub_collage, flowers, cars196, sop, inshop, cifar10, cifar100 or folder.
        task: embed (unseen classes, MAP@R) or classify (held-out pictures, top-1).
        backbone: a name of gspool.models.list_backbones().
        weights: the file of its weights.
        size: side of the images in pixels.
        dim: length of the embedding; 0 keeps the channels of the backbone.
        loss: pnca or c2.
        lr: the learning rate that tries are spread around.
        layers: names with commas between; all but those with "zsr" or "wide" if none are named.
        start: how heads start: identity (principal directions where the embedding is shorter) or random.
        batch: pictures in one forward pass of the backbone.
        side: pictures in a row of a collage; 2 has three distractors, 3 has eight.
        draws: collages of every training picture.
        like: name of a result whose chosen settings are used unchanged, without tries.
        steps: steps of a training at most; trainings that a smaller limit cut off are done again.
        classes: classes to learn from, evenly spaced, a quarter of them for validation; 0 takes all.
        precision: of the heads; auto is bf16-mixed on a GPU, and on a CPU with instructions for it, else 32-true.
    """

    data: str = "cub"
    task: Literal["embed", "classify"] = "embed"
    backbone: str = "keras/resnet50"
    weights: str | None = None
    size: int = 227
    dim: int = 128
    loss: Literal["pnca", "c2"] = "pnca"
    lr: float = 3e-4
    layers: str = ""
    start: Literal["identity", "random"] = "identity"
    batch: int = 128
    side: int = 2
    draws: int = 3
    like: str | None = None
    steps: int = 1200
    classes: int = 0
    precision: Literal["auto", "bf16-mixed", "32-true"] = "auto"


def check(options: RunOptions) -> None:
    """Refuse a backbone without weights, a result to take settings from that is not there, and mixed settings."""
    chosen: FrozenSettings = options.settings or FrozenSettings()
    if options.quick:
        return
    if chosen.weights is None or not Path(chosen.weights).is_file():
        raise FileNotFoundError(
            f"--weights is the file of the backbone's weights (docs/models.md), got {chosen.weights}"
        )
    if chosen.like is not None and not (options.results / f"{chosen.like}.json").is_file():
        raise FileNotFoundError(f"--like names a result, and there is no {options.results / chosen.like}.json")
    path = options.results / f"{result_name(chosen)}.json"
    if path.is_file():
        before, now = read_result(path)["value"], shared_settings(options, chosen)
        other = [name for name in now if before.get(name) != now[name]]
        if other:
            raise ValueError(
                f"{path} has runs with {', '.join(f'{name} {before.get(name)}' for name in other)}, and this call asks "
                f"for {', '.join(f'{name} {now[name]}' for name in other)}; choose another --results to keep both"
            )


def shared_settings(options: RunOptions, chosen: FrozenSettings) -> dict[str, Any]:
    """Return settings of all runs of a result that neither its name nor what a run is asked for tells."""
    return {
        "start": chosen.start,
        "precision": config_of(options, chosen).trainer.precision,
        **({"dim": chosen.dim} if chosen.dim else {}),
        **({"validation": "one collage of a picture"} if chosen.data == "cub_collage" else {}),
    }


def config_of(options: RunOptions, chosen: FrozenSettings) -> CompareConfig:
    """Return what every head of the study shares."""
    quick = options.quick
    steps = (
        TrainerConfig(max_steps=20, evaluate_every=10)
        if quick
        else TrainerConfig(max_steps=chosen.steps, evaluate_every=50, patience=4)
    )
    steps.progress, steps.accelerator = False, "gpu" if options.device.startswith("cuda") else "cpu"
    # Tokens are stored in bf16, and products of 128 x 64 x 2048 tokens in full float32 would take most of the time.
    steps.precision = precision_of(replace(steps, precision=chosen.precision), options.device)
    name, preset = ("glyphs" if quick else chosen.data), None
    if chosen.data in ("cub", "cub_collage") and not quick:
        preset = "cub"
    config = CompareConfig(
        data=DataConfig(
            name=name,
            root=None if options.root is None else str(options.root),
            classes_per_batch=8 if quick else 32,
            images_per_class=4,
        ),
        task=chosen.task,
        dim=chosen.dim or None,
        folds=FOLDS,
        loss=LossConfig(name=chosen.loss, preset=preset),
        optimiser=OptimiserConfig(lr=chosen.lr, weight_decay=0.0, betas=(0.9, 0.999), eps=1e-8, proxies=100.0),
        trainer=steps,
    )
    if quick:
        config.data.options = {"images_per_class": 4}
    elif chosen.data == "cub_collage":
        config.data.options = {"side": chosen.side, "size": chosen.size}
    config.head.start = chosen.start
    if chosen.classes:  # batches of the same size
        config.data.classes_per_batch = min(32, chosen.classes * (FOLDS - 1) // FOLDS)
        config.data.images_per_class = 128 // config.data.classes_per_batch
    return config


def tokens_of(options: RunOptions, chosen: FrozenSettings, config: CompareConfig) -> Tokens:
    """Compute the tokens of all pictures, or read them where an earlier run has kept them."""
    learning, test = create_sets(config.data, chosen.task)
    features = FeatureConfig(folder=str(options.work / "features"), batch_size=chosen.batch)
    if options.quick:
        backbone, name = create_backbone("timm/test_vit", img_size=64), "timm/test_vit"
    else:
        extra: dict[str, Any] = {"weights": chosen.weights}
        if chosen.backbone.startswith("timm/vit"):
            extra["img_size"] = chosen.size
        backbone, name = create_backbone(chosen.backbone, **extra), chosen.backbone
        ratio = backbone.pixels.resize / max(backbone.pixels.crop)
        backbone.pixels = backbone.pixels.changed({"size": chosen.size, "resize": round(ratio * chosen.size)})
        if chosen.data == "cub_collage":  # other draws in place of mirror images
            more = {**config.data.options, "draws": chosen.draws}
            learning, features.views = data.create("cub_collage", options.root, "train", **more), ["centre"]
    if chosen.classes:
        kept = torch.linspace(0, learning.num_classes - 1, chosen.classes).round().long()
        learning = learning.of_classes(kept.tolist())
    print(f"tokens of {len(learning) + len(test):,} pictures", flush=True)
    return Tokens(*extract_tokens(backbone, [learning, test], features, name=name, device=options.device))


def variants_of(options: RunOptions, chosen: FrozenSettings, class_token: bool) -> dict[str, list[Variant]]:
    """Return the tries of every row of the table; ``like`` leaves one, chosen elsewhere.

    Raises:
        ValueError: if a row does not exist.
    """
    tries = tries_of(chosen.lr, class_token)
    if chosen.task == "classify":
        tries = {row: tries_to_classify(row, own, chosen.lr) for row, own in tries.items()}
    if chosen.like is not None:
        elsewhere = json.loads((options.results / f"{chosen.like}.json").read_text())["value"]["chosen"]
        tries = {row: [(each["options"], each["head"])] for row, each in elsewhere.items() if row in tries}
    named = [name.strip() for name in chosen.layers.split(",") if name.strip()]
    usual = ["gap", "gsp groups"] if options.quick else [name for name in tries if not name.endswith((WITH_ZSR, WIDE))]
    named = named or usual
    unknown = [name for name in named if name not in tries]
    if unknown:
        raise ValueError(f"the study has no row {', '.join(unknown)}; it has {', '.join(tries)}")
    found = {"frozen gap": [Variant("gap", learn=False)]}
    if class_token:
        found["frozen cls"] = [Variant("cls", learn=False)]
    for name in named:
        layer = name.split(" ", maxsplit=1)[0]
        found[name] = [Variant(layer, tuple(own.items()), tuple(head.items())) for own, head in tries[name]]
        if options.quick:
            del found[name][2:]
    return found


def result_name(chosen: FrozenSettings) -> str:
    """Return the name of the result: data, backbone, size and loss; rows "zsr" and "wide" have one of their own."""
    backbone = {"keras/resnet50": "resnet50"}.get(chosen.backbone, chosen.backbone.split("/")[-1])
    collage = f"{chosen.side}x{chosen.side}" if chosen.data == "cub_collage" else ""
    part = "".join(word.replace(" ", "_") for word in (WITH_ZSR, WIDE) if word in chosen.layers)
    part += f"_{chosen.classes}classes" if chosen.classes else ""
    metric = chosen.loss if chosen.task == "embed" else "top1"
    return f"frozen_{chosen.data}{collage}_{backbone}_{chosen.size}_{metric}{part}"


def run(options: RunOptions) -> None:
    """Compute tokens, tune every layer on two folds, train the choice on all folds and seeds, write the result.

    Where it is stopped, the result holds what is finished, and the same command goes on from there.
    """
    chosen = options.settings or FrozenSettings()
    config = config_of(options, chosen)
    tokens = tokens_of(options, chosen, config)
    name = result_name(chosen)
    settings = "-".join(map(str, shared_settings(options, chosen).values()))
    path = options.work / "frozen" / f"{name}-{settings}{'_quick' if options.quick else ''}.jsonl"
    result = options.results / f"{name}.json"
    store = RunStore(path, result, device=options.device, libraries=LIBRARIES)
    rows = variants_of(options, chosen, tokens.learning.layout.class_token)
    store.forget(lambda run: run.asked["row"] in rows and was_cut_off(run.found, config.trainer))
    seeds = options.seeds_or(SEEDS)
    in_memory = hold_tokens(tokens, options.device, options.executor)
    cut = functools.partial(study_sets, chosen.draws if chosen.data == "cub_collage" and not options.quick else 1)
    worker = functools.partial(make_worker, config, tokens, options.device, in_memory, sets_of=cut)
    tuning = [
        asked_of(row, variant, fold, seeds[0])
        for fold in TUNING_FOLDS
        for row, variants in rows.items()
        for variant in variants
    ]

    def final() -> list[dict[str, Any]]:
        best = best_variants(rows, store, TUNING_FOLDS, seeds[0])
        return [
            asked_of(row, variant, fold, seed)
            for fold in range(FOLDS)  # a worker cuts the tokens of one fold at a time
            for seed in seeds
            for row, variant in best.items()
            if variant.learn or seed == seeds[0]
        ]

    try:
        run_grid(store, tuning, worker, options.executor, options.seconds, name="heads", then=final)
    finally:
        write_record(options, chosen, tokens.learning.layout, rows, store)


def study_sets(draws: int, tokens: Tokens, folds: int, fold: int, task: TaskName) -> dict[str, TensorSet]:
    """Return the sets of a fold; of several collages of a picture, which would find each other, the first validates."""
    sets = token_sets(tokens, folds, fold, task)
    return {**sets, "validation": sets["validation"].subset(torch.arange(0, len(sets["validation"]), draws))}


def was_cut_off(found: Mapping[str, Any], trainer: TrainerConfig) -> bool:
    """Return whether a training ended at a limit that was smaller than today's, before its patience was spent."""
    patience = trainer.max_steps if trainer.patience is None else trainer.patience * trainer.evaluate_every
    return 0 < found["steps"] < trainer.max_steps and found["steps"] - found["best_step"] < patience


def write_record(
    options: RunOptions,
    chosen: FrozenSettings,
    layout: TokenLayout,
    rows: Mapping[str, Sequence[Variant]],
    store: RunStore,
) -> None:
    """Write the finished runs and the choice of every row, and print the table."""
    seeds = options.seeds_or(SEEDS)
    tried = finished_variants(rows, store, TUNING_FOLDS, seeds[0])
    best = best_variants(rows, store, TUNING_FOLDS, seeds[0])
    # With the rows of earlier calls.
    runs, path = store.runs(), options.results / f"{result_name(chosen)}.json"
    before = read_result(path)["value"] if path.is_file() and not options.quick else {}
    value = {
        "data": chosen.data,
        "task": chosen.task,
        "backbone": chosen.backbone,
        "size": chosen.size,
        "loss": chosen.loss,
        "dim": chosen.dim or layout.channels,
        "tokens": layout.tokens,
        "steps": chosen.steps,
        **shared_settings(options, chosen),
        "tries": max([before.get("tries", 1), *map(len, rows.values())]),
        "like": chosen.like,
        "chosen": {
            **{row: choice for row, choice in before.get("chosen", {}).items() if row not in best},
            **{
                row: {"options": dict(variant.options), "head": dict(variant.head), "tries": len(tried[row])}
                for row, variant in best.items()
            },
        },
        "runs": plain_runs(runs),
    }
    if not chosen_runs(value):
        return
    write_result(
        path,
        value,
        command=EXPERIMENT.command(options),
        seeds=sorted({run.asked["seed"] for run in runs}),
        origins=[run.origin for run in runs],
    )


def chosen_runs(value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the runs of the chosen try of every row, on the folds and seeds that all rows have."""
    own: dict[str, dict[tuple[int, int], Mapping[str, Any]]] = {row: {} for row in value["chosen"]}
    for run in value["runs"]:
        asked = run["asked"]
        choice = value["chosen"].get(asked["row"])
        if choice and (choice["options"], choice["head"]) == (asked["options"], asked["head"]):
            own[asked["row"]][asked["fold"], asked["seed"]] = run
    learned = [{*runs} for row, runs in own.items() if not row.startswith(FROZEN)]
    shared = set.intersection(*learned) if learned else set()
    folds = {fold for fold, _ in shared}
    return [
        run
        for row, runs in own.items()
        for pair, run in sorted(runs.items())
        if pair in shared or (row.startswith(FROZEN) and pair[0] in folds)
    ]


def heads_table(record: Record) -> str:
    """Write the heads, best validation first, with paired 95 % intervals against learned average pooling."""
    chosen = record["value"]["chosen"]
    metric = METRIC_NAMES[record["value"].get("task", "embed")]
    return markdown_table(
        [
            {
                "head": line["row"],
                "chosen by validation": _settings(chosen.get(line["row"], {}), record["value"]["tries"]),
                f"validation {metric}": f"{line['validation']:.2f}",
                f"test {metric}": plus_minus(line["test"], line["std"] if line["runs"] > 1 else None),
                **({} if line["p@1"] is None else {"P@1": f"{line['p@1']:.1f}"}),
                "against gap": with_interval(line["against_gap"]),
                "entropy": "" if line["entropy"] is None else f"{line['entropy']:.3f}",
                "best step": f"{line['best_step']:.0f}",
                "parameters": f"{line['parameters']:,}",
            }
            for line in summary(chosen_runs(record["value"]))
        ],
        text_columns=2,
    )


def lead_table(record: Record) -> str:
    """Write how far the best head with GSP is ahead of the best without it, each the best by validation.

    Where there is a class token, once more for the heads on patch tokens alone.
    """
    runs = chosen_runs(record["value"])
    learned = [line for line in summary(runs) if not line["row"].startswith(FROZEN)]
    patches = [line for line in learned if "cls" not in line["row"]]
    rows = []
    for tokens, lines in {"all": learned, "patches": patches}.items():
        ours, other = (
            next((line for line in lines if ("gsp" in line["row"]) is with_gsp), None) for with_gsp in (True, False)
        )
        if ours and other and (tokens == "all" or patches != learned):
            rows.append(
                {
                    "tokens": tokens,
                    "best with GSP": ours["row"],
                    "best without": other["row"],
                    "validation": f"{ours['validation'] - other['validation']:+.2f}",
                    "test": with_interval(_against(runs, ours["row"], other["row"])),
                }
            )
    return markdown_table(rows, text_columns=3)


def class_token_table(record: Record) -> str:
    """Write the heads that join class token and patches against the class token alone, best validation first."""
    runs = chosen_runs(record["value"])
    rows = [
        {
            "head": line["row"],
            "validation": f"{line['validation']:.2f}",
            "against cls": with_interval(_against(runs, line["row"], "cls")),
        }
        for line in summary(runs)
        if "+cls" in line["row"]
    ]
    return markdown_table(rows) if rows else "not run"


def zsr_table(record: Record) -> str:
    """Write every head without and with ZSR, each at its best try by validation, and the paired difference."""
    value, runs = record["value"], chosen_runs(record["value"])
    lines, rows = {line["row"]: line for line in summary(runs)}, []
    for name, line in lines.items():
        base = name.removesuffix(WITH_ZSR)
        if name == base or base not in lines:
            continue
        rows.append(
            {
                "head": base,
                "chosen by validation": _settings(value["chosen"][name], value["tries"]),
                "validation, without": lines[base]["validation"],
                "with": line["validation"],
                "test, without": plus_minus(lines[base]["test"], lines[base]["std"]),
                "test, with": plus_minus(line["test"], line["std"]),
                "with − without": with_interval(_against(runs, name, base)),
                "pairs": line["runs"],
            }
        )
    return markdown_table(rows, ".2f", text_columns=2) if rows else "not run"


def _against(runs: Sequence[Mapping[str, Any]], row: str, other: str) -> dict[str, Any] | None:
    """Return the paired difference of two rows on test: `summary` pairs with the row that is called gap."""
    names = {other: "gap", row: "ours"}
    pair = [
        {**run, "asked": {**run["asked"], "row": names[run["asked"]["row"]]}}
        for run in runs
        if run["asked"]["row"] in names
    ]
    return next(line["against_gap"] for line in summary(pair) if line["row"] == "ours")


def _settings(chosen: Mapping[str, Any], tries: int) -> str:
    merged = {**chosen.get("options", {}), **chosen.get("head", {})}
    kept = {name: value for name, value in merged.items() if name != "prototypes_from" and (name, value) != ("rate", 1)}
    words = [f"{name} {value}" if isinstance(value, str) else f"{name} {value:g}" for name, value in kept.items()]
    if 1 < chosen.get("tries", tries) < tries:
        words.append(f"of {chosen['tries']} tries")
    return ", ".join(words)


def draw(record: Record, path: Path) -> None:
    """Draw the test MAP@R of every head, best validation on top."""
    lines = summary(chosen_runs(record["value"]))[::-1]
    figure, axes = subplots(width=6.0, height=0.8 + 0.28 * len(lines))
    axis = axes[0, 0]
    colours = ["tab:orange" if "gsp" in line["row"] else "tab:blue" for line in lines]
    axis.barh([line["row"] for line in lines], [line["test"] for line in lines], color=colours, height=0.7)
    axis.errorbar(
        [line["test"] for line in lines],
        range(len(lines)),
        xerr=[line["std"] for line in lines],
        fmt="none",
        ecolor="black",
    )
    axis.set_xlabel(f"test {METRIC_NAMES[record['value'].get('task', 'embed')]}, percent; heads sorted by validation")
    save(figure, path)


# Tables of docs/frozen_study.md, by the name of their result.
RESULTS = {
    "resnet50_227": "frozen_cub_resnet50_227_pnca",
    "resnet50_227_16": "frozen_cub_resnet50_227_pnca_16classes",
    "resnet50_227_c2": "frozen_cub_resnet50_227_c2",
    "resnet50_448": "frozen_cub_resnet50_448_pnca",
    "resnet50_448_c2": "frozen_cub_resnet50_448_c2",
    "flowers": "frozen_flowers_resnet50_227_pnca",
    "flowers_dinov2": "frozen_flowers_vit_small_patch14_dinov2_224_pnca",
    "dinov2": "frozen_cub_vit_small_patch14_dinov2_224_pnca",
    "collage": "frozen_cub_collage2x2_vit_small_patch14_dinov2_448_pnca",
    "collage_3x3": "frozen_cub_collage3x3_vit_small_patch14_dinov2_448_pnca",
    "lite0": "frozen_cub_tf_efficientnet_lite0_224_pnca",
    "cifar100": "frozen_cifar100_tf_efficientnet_lite0_224_top1",
}
# Those with a figure there.
PLOTTED = ("resnet50_448", "dinov2")

ZSR_RESULT = "frozen_cub_resnet50_227_pnca_zsr"

EXPERIMENT = Experiment(
    name="frozen",
    claim="on tokens of a frozen backbone, selecting tokens beats averaging them",
    shows="not in the paper, which tunes the whole network",
    cost="tokens once, then 6 tries x 2 folds and 12 final trainings for each head: minutes on one H200",
    files=(*RESULTS.values(), ZSR_RESULT),
    run=run,
    tables={
        **{table: FromFile(name, heads_table) for table, name in RESULTS.items()},
        **{f"{table}_lead": FromFile(name, lead_table) for table, name in RESULTS.items()},
        "dinov2_class_token": FromFile(RESULTS["dinov2"], class_token_table),
        "flowers_dinov2_class_token": FromFile(RESULTS["flowers_dinov2"], class_token_table),
        "zsr": FromFile(ZSR_RESULT, zsr_table),
    },
    plots={f"frozen_{table}": FromFile(RESULTS[table], draw) for table in PLOTTED},
    needs=("cub",),
    settings=FrozenSettings,
    check=check,
    parallel=True,
)
