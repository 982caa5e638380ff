"""Heads on a frozen backbone: pooling layers on tokens that do not adapt to them, every layer tuned alike.

Not in the paper, which tunes the whole network. Tokens are computed once; then every layer gets the same number of
tries (learning rates, its own options) on some folds, the best try by validation classes is trained on all folds and
seeds, and judged on the test classes. "frozen" is the feature of the backbone with nothing learned.
Ours: results/frozen_DATA_BACKBONE_SIZE_LOSS.json.

    gspool reproduce frozen --weights resnet50.safetensors --device cuda --processes 8      # one H200, 5 minutes
    gspool reproduce frozen --weights resnet50.safetensors --size 448 --device cuda --processes 6
    gspool reproduce frozen --backbone timm/vit_small_patch14_dinov2 --weights dinov2.safetensors --size 224 --dim 0
    gspool reproduce frozen --quick
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gspool import data
from gspool.evaluation.statistics import with_interval
from gspool.executor.grid import run_grid
from gspool.executor.run_store import RunStore
from gspool.experiments.experiment import Experiment, FromFile, Record, RunOptions
from gspool.experiments.plots import save, subplots
from gspool.experiments.tables import markdown_table, plus_minus
from gspool.features import FeatureConfig, extract_tokens
from gspool.models import create_backbone
from gspool.provenance import write_result
from gspool.training.compare_config import CompareConfig, Variant
from gspool.training.compare_runs import Tokens, asked_of, best_variants, make_worker, summary
from gspool.training.config import DataConfig, LossConfig, OptimiserConfig, TrainerConfig

FOLDS, SEEDS, TUNING_FOLDS = 4, (0, 1, 2), (0, 1)
RESNET50, LARGE = "frozen_cub_resnet50_227_pnca", "frozen_cub_resnet50_448_pnca"
DINOV2 = "frozen_cub_vit_small_patch14_dinov2_224_pnca"
LIBRARIES = ("timm", "pytorch-metric-learning")
Try = tuple[dict[str, Any], dict[str, Any]]


def rates(lr: Sequence[float], rate: Sequence[float] = (1.0,)) -> list[Try]:
    """List tries that differ in the learning rate of the embedding, and in the factor of the layer's own parameters.

    Example:
        >>> rates([1e-3], [1.0, 10.0])
        [({}, {'lr': 0.001, 'rate': 1.0}), ({}, {'lr': 0.001, 'rate': 10.0})]
    """
    return [({}, {"lr": a, "rate": b}) for a, b in itertools.product(lr, rate)]


def gsp_tries(lr: float, settings: Sequence[tuple[float, float, float]], **options: Any) -> list[Try]:
    """List tries of GSP: mu, epsilon, and the factor on the learning rate of the prototypes."""
    return [({"mu": mu, "epsilon": epsilon, **options}, {"lr": lr, "rate": rate}) for mu, epsilon, rate in settings]


SHARP = [
    (0.1, 20.0, 1.0),
    (0.05, 20.0, 1.0),
    (0.03, 20.0, 1.0),
    (0.1, 10.0, 1.0),
    (0.05, 20.0, 10.0),
    (0.1, 20.0, 10.0),
]


def tries_of(lr: float) -> dict[str, list[Try]]:
    """Return six tries for every layer around one learning rate."""
    three, six = [lr / 3, lr, 3 * lr], [lr / 10, lr / 3, lr, 3 * lr, 10 * lr, 30 * lr]
    queries = [(4, 1.0), (4, 10.0), (4, 30.0), (4, 100.0), (2, 30.0), (2, 100.0)]
    return {
        "gap": rates(six),
        "gmp": rates(six),
        "gemean": rates(three, [1.0, 30.0]),
        "delf": rates(three, [0.3, 1.0]),
        "abmilp": rates(three, [1.0, 10.0]),
        "ep": [({"queries": count}, {"lr": lr, "rate": rate}) for count, rate in queries],
        "aim": rates(three, [0.1, 1.0]),
        "gsp": gsp_tries(lr, SHARP),
        "gsp keys": gsp_tries(lr, [(mu, epsilon / 2, rate) for mu, epsilon, rate in SHARP], keys=128),
        "gemean+gsp": gsp_tries(lr, SHARP),
    }


def class_token_tries(lr: float) -> dict[str, list[Try]]:
    """Return six tries for the class token, alone and added to layers."""
    with_patches = {
        f"{name}+cls": [(options, head) for options, head in tries]
        for name, tries in tries_of(lr).items()
        if name in ("gap", "delf", "ep", "gsp")
    }
    return {"cls": rates([lr / 10, lr / 3, lr, 3 * lr, 10 * lr, 30 * lr]), **with_patches}


@dataclass(frozen=True)
class FrozenSettings:
    """Settings of the study.

    Args:
        data: cub, cars196, sop, inshop or folder.
        backbone: a name of gspool.models.list_backbones().
        weights: the file of its weights.
        size: side of the images in pixels.
        dim: length of the embedding; 0 keeps the channels of the backbone.
        loss: pnca or c2.
        lr: the learning rate that tries are spread around.
        layers: names with commas between; all if none are named.
        start: how heads start: identity (principal directions where the embedding is shorter) or random.
        batch: pictures in one forward pass of the backbone.
    """

    data: str = "cub"
    backbone: str = "keras/resnet50"
    weights: str | None = None
    size: int = 227
    dim: int = 128
    loss: Literal["pnca", "c2"] = "pnca"
    lr: float = 3e-4
    layers: str = ""
    start: Literal["identity", "random"] = "identity"
    batch: int = 128


def config_of(options: RunOptions, chosen: FrozenSettings) -> CompareConfig:
    """Return what every head of the study shares."""
    quick = options.quick
    steps = (
        TrainerConfig(max_steps=20, evaluate_every=10)
        if quick
        else TrainerConfig(max_steps=600, evaluate_every=25, patience=8)
    )
    steps.progress, steps.accelerator = False, "gpu" if options.device.startswith("cuda") else "cpu"
    config = CompareConfig(
        data=DataConfig(
            name="glyphs" if quick else chosen.data,
            root=None if options.root is None else str(options.root),
            classes_per_batch=8 if quick else 32,
            images_per_class=4,
        ),
        dim=chosen.dim or None,
        folds=FOLDS,
        loss=LossConfig(name=chosen.loss, preset=None if quick or chosen.data == "folder" else chosen.data),
        optimiser=OptimiserConfig(lr=chosen.lr, weight_decay=0.0, betas=(0.9, 0.999), eps=1e-8, proxies=100.0),
        trainer=steps,
    )
    config.head.start = chosen.start
    return config


def tokens_of(options: RunOptions, chosen: FrozenSettings) -> Tokens:
    """Compute the tokens of all pictures, or read them where an earlier run has kept them."""
    if options.quick:
        sets = [data.create("glyphs", split=split, images_per_class=4) for split in ("train", "test")]
        backbone, name = create_backbone("timm/test_vit", img_size=64), "timm/test_vit"
    else:
        extra: dict[str, Any] = {"weights": chosen.weights}
        if chosen.backbone.startswith("timm/"):
            extra["img_size"] = chosen.size
        backbone, name = create_backbone(chosen.backbone, **extra), chosen.backbone
        ratio = backbone.pixels.resize / max(backbone.pixels.crop)
        backbone.pixels = backbone.pixels.changed({"size": chosen.size, "resize": round(ratio * chosen.size)})
        sets = [data.create(chosen.data, options.root, split) for split in ("train", "test")]
    config = FeatureConfig(folder=str(options.work / "features"), batch_size=chosen.batch)
    print(f"tokens of {sum(map(len, sets)):,} pictures", flush=True)
    return Tokens(*extract_tokens(backbone, sets, config, name=name, device=options.device))


def variants_of(chosen: FrozenSettings, class_token: bool) -> dict[str, list[Variant]]:
    """Return the tries of every row of the table."""
    tries = {**tries_of(chosen.lr), **(class_token_tries(chosen.lr) if class_token else {})}
    named = [name.strip() for name in chosen.layers.split(",") if name.strip()] or list(tries)
    unknown = [name for name in named if name not in tries]
    if unknown:
        raise ValueError(f"the study has no layer {', '.join(unknown)}; it has {', '.join(tries)}")
    found = {"frozen gap": [Variant("gap", learn=False)]}
    if class_token:
        found["frozen cls"] = [Variant("cls", learn=False)]
    for name in named:
        layer = name.split(" ", maxsplit=1)[0]
        found[name] = [Variant(layer, tuple(options.items()), tuple(head.items())) for options, head in tries[name]]
    return found


def result_name(chosen: FrozenSettings) -> str:
    """Return the name of the result: data, backbone, size and loss."""
    backbone = {"keras/resnet50": "resnet50"}.get(chosen.backbone, chosen.backbone.split("/")[-1])
    return f"frozen_{chosen.data}_{backbone}_{chosen.size}_{chosen.loss}"


def run(options: RunOptions) -> None:
    """Compute tokens, tune every layer on two folds, train the choice on all folds and seeds, write the result."""
    chosen = options.settings or FrozenSettings()
    config, tokens = config_of(options, chosen), tokens_of(options, chosen)
    name = result_name(chosen)
    path = options.work / "frozen" / f"{name}{'_quick' if options.quick else ''}.jsonl"
    store = RunStore(path, device=options.device, libraries=LIBRARIES)
    rows = variants_of(chosen, tokens.learning.layout.class_token)
    seeds = options.seeds or (SEEDS[:1] if options.quick else SEEDS)
    worker = functools.partial(make_worker, config, tokens, options.device)
    tuning = [
        asked_of(row, variant, fold, seeds[0])
        for fold in TUNING_FOLDS
        for row, variants in rows.items()
        for variant in variants
    ]
    run_grid(store, tuning, worker, options.executor, options.seconds, name="heads")
    best = best_variants(rows, store, TUNING_FOLDS, seeds[:1])
    final = [
        asked_of(row, variant, fold, seed)
        for seed in seeds
        for fold in range(FOLDS)
        for row, variant in best.items()
        if variant.learn or seed == seeds[0]
    ]
    run_grid(store, final, worker, options.executor, options.seconds, name="heads")
    layout = tokens.learning.layout
    value = {
        "data": config.data.name,
        "backbone": chosen.backbone,
        "size": chosen.size,
        "loss": chosen.loss,
        "dim": chosen.dim or layout.channels,
        "tokens": layout.tokens,
        "start": chosen.start,
        "tries": max(map(len, rows.values())),
        "chosen": {
            row: {"options": dict(variant.options), "head": dict(variant.head)} for row, variant in best.items()
        },
        "tuning": [{"asked": asked, "found": store.get(asked)} for asked in tuning if store.get(asked)],
        "runs": [{"asked": asked, "found": store.get(asked)} for asked in final if store.get(asked)],
    }
    write_result(
        options.results / f"{name}.json",
        value,
        command=EXPERIMENT.command(options),
        seeds=list(seeds),
        origins=[run.origin for run in store.runs([*tuning, *final])],
    )
    print(heads_table({"value": value}))


def heads_table(record: Record) -> str:
    """Write the heads, best validation first, with paired 95 % intervals against learned average pooling."""
    lines = summary(record["value"]["runs"])
    chosen = record["value"]["chosen"]
    return markdown_table(
        [
            {
                "head": line["row"],
                "chosen by validation": _settings(chosen.get(line["row"], {})),
                "validation MAP@R": f"{line['validation']:.2f}",
                "test MAP@R": plus_minus(line["test"], line["std"] if line["runs"] > 1 else None),
                "P@1": f"{line['p@1']:.1f}",
                "against gap": with_interval(line["against_gap"]),
                "entropy": "" if line["entropy"] is None else f"{line['entropy']:.3f}",
                "parameters": f"{line['parameters']:,}",
            }
            for line in lines
        ],
        text_columns=2,
    )


def _settings(chosen: Mapping[str, Any]) -> str:
    merged = {**chosen.get("options", {}), **chosen.get("head", {})}
    return ", ".join(f"{name} {value:g}" for name, value in merged.items() if not (name == "rate" and value == 1))


def draw(record: Record, path: Path) -> None:
    """Draw the test MAP@R of every head, best validation on top."""
    lines = summary(record["value"]["runs"])[::-1]
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
    axis.set_xlabel("MAP@R on test classes, percent; heads sorted by validation classes")
    save(figure, path)


EXPERIMENT = Experiment(
    name="frozen",
    claim="on tokens of a frozen backbone, selecting tokens beats averaging them",
    shows="not in the paper, which tunes the whole network",
    cost="tokens once, then 6 tries x 2 folds and 12 final trainings for each of ten heads: minutes on one H200",
    files=(RESNET50, LARGE, DINOV2),
    run=run,
    tables={"heads": heads_table, "large": FromFile(LARGE, heads_table), "dinov2": FromFile(DINOV2, heads_table)},
    plots={
        "frozen_resnet50": draw,
        "frozen_resnet50_448": FromFile(LARGE, draw),
        "frozen_dinov2": FromFile(DINOV2, draw),
    },
    needs=("cub",),
    settings=FrozenSettings,
    parallel=True,
)
