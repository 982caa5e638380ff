"""The whole network tuned on CUB, with the head trained first or from the first step: six layers, all tuned alike.

The paper tunes from the first step, and its weights end flat: the network moves before the prototypes do. Here every
layer is trained in two ways. "head first" trains the head alone on stored tokens of the frozen backbone, then the whole
network from there, as `gspool train --finetune` does. "as the paper" trains everything from the first step: embedding
drawn at random, prototypes by k-center on average-pooled vectors, ProxyNCA++ with one epoch of warm-up. Batches, steps,
evaluations and learning rates to choose from are the same for all; `gspool reproduce benchmark` has the paper's own.
Every layer and way gets the same tries of learning rates on fold 0 with the first seed; the best by validation is
trained on every fold and seed, and the step that validation chooses is judged on the test classes.
Ours: results/tuned_cub_resnet50_SIZE_LOSS.json.

    gspool reproduce tuned --weights resnet50.safetensors --device cuda --processes 8 --seconds 1700
    gspool reproduce tuned --weights resnet50.safetensors --loss c2 ...
    gspool reproduce tuned --weights resnet50.safetensors --size 448 --processes 4 --seeds 0 --tries 0 ...
    gspool reproduce tuned --train false                                    # weights over test pictures, no GPU
    gspool reproduce tuned --quick

Cost: a minute for tokens and decoding and one to compile the backbone, then 168 trainings a loss of at most 800 steps
of 64 images: 36 to choose learning rates (12 of them are the first pair of fold and seed), and 12 for each of the 11
other pairs; nine seconds each on an H200, eight side by side under MPS, and four times as long at 448 pixels. Pairs
are finished one after the other, and every row says how many it has. The same command goes on from the result;
--tries 1 leaves the choice out.
"""

from __future__ import annotations

import functools
import math
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import torch

from gspool.data.image_set import mixed_seed
from gspool.evaluation.entropy import relative_entropy
from gspool.evaluation.folds import contiguous_folds
from gspool.evaluation.statistics import matched_difference, with_interval
from gspool.executor.grid import Worker, run_grid
from gspool.executor.run_store import RunStore
from gspool.experiments.experiment import Experiment, FromFile, Record, RunOptions, names_of
from gspool.experiments.plots import draw_maps, legend_below, overlay, save, shown_places, subplots
from gspool.experiments.runs import curve_line, fold_sets, on_engine, plain_runs, training_folder
from gspool.experiments.tables import cell, markdown_table, plus_minus
from gspool.features import FeatureConfig, extract_tokens
from gspool.models import create_backbone
from gspool.models.embedder import embed_features
from gspool.models.freezing import evaluating
from gspool.pooling.embedding import LocalEmbedding
from gspool.provenance import read_result, write_result
from gspool.training import TrainConfig, fit
from gspool.training.compare_data import Tokens, create_sets, token_sets
from gspool.training.compare_runs import hold_tokens, load_tokens
from gspool.training.config import DataConfig
from gspool.training.frozen import head_first
from gspool.training.gpu_data import TensorSet
from gspool.training.heads import TokenHead, head_config, start_from, train_head
from gspool.training.metric_learning import build_model
from gspool.training.presets import fair
from gspool.training.run_folder import HEAD
from gspool.training.sets import on_device

if TYPE_CHECKING:
    from jaxtyping import Int64, UInt8
    from torch import Tensor

    from gspool.data import ImageSet
    from gspool.data.image_set import Split
    from gspool.models import Backbone, Embedder, Pixels
    from gspool.pooling.embedding import EmbedThenPool

FOLDS, SEEDS = 4, (0, 1, 2)
HEAD_FIRST, AS_THE_PAPER = "head first", "as the paper"
WAYS = (HEAD_FIRST, AS_THE_PAPER)
# The layers that GSP must beat: the better one by validation, in its better way, is the best average pooling.
AVERAGES = ("gap", "gemean")
SELECTING = ("gsp", "gsp sharp", "gemean+gsp sharp")
# Learning rate of the network, and its factor for the head: those of --finetune, the paper's, and a faster network.
TRIES = ((1e-5, 10.0), (1e-5, 1.0), (3e-5, 3.0))
HEAD_STEPS = 400
SHORTEST = 0.005
METRICS = ("p@1", "p@r", "map@r")
LIBRARIES = ("pytorch-metric-learning", "torchvision")
# Test pictures that the feature map is measured on, and those whose weights are drawn.
MEASURED, SHOWN = 512, 4


class Row(NamedTuple):
    """A layer: its options, learning rate and rate of the head alone as the frozen study chose them, weight of ZSR."""

    layer: str
    options: dict[str, Any]
    lr: float = 3e-4
    rate: float = 1.0
    zsr: float = 0.0


def rows_of(loss: str) -> dict[str, Row]:
    """Return the layers by name; the paper's GSP has another epsilon for losses with proxies, and ZSR."""
    paper = {"prototypes": 64, "mu": 0.3, "epsilon": 0.5 if loss == "pnca" else 5.0}
    # Within 400 steps of the head alone.
    fast = 9e-4 if loss == "pnca" else 3e-4
    return {
        "gap": Row("gap", {}, lr=fast),
        "gemean": Row("gemean", {}, rate=30.0),
        "delf": Row("delf", {}, lr=fast),
        "gsp": Row("gsp", paper, zsr=0.1),
        "gsp sharp": Row("gsp", {"prototypes": 64, "mu": 0.1, "epsilon": 20.0}),
        # Distances of keys have another scale, and need half the epsilon or less.
        "gemean+gsp sharp": Row("gemean+gsp", {"prototypes": 64, "mu": 0.1, "epsilon": 5.0, "keys": 128}),
    }


@dataclass(frozen=True)
class TunedSettings:
    """Settings of the study.

    Args:
        weights: the file of the ImageNet weights of the Keras ResNet50.
        size: side of the images in pixels.
        loss: pnca (ProxyNCA++) or c2.
        layers: names with commas between; all if none are named.
        ways: "head first", "as the paper", or both with a comma between.
        tries: learning rates to choose from, for every layer and way; 1 takes the first, 0 those that the result at
            227 pixels with the same loss chose.
        steps: steps of the whole network at most.
        compile: compile the backbone on a GPU, once in every process; its batch norms, frozen, are fused then.
        train: false trains nothing and draws the figures of the result.
    """

    weights: str | None = None
    size: int = 227
    loss: Literal["pnca", "c2"] = "pnca"
    layers: str = ""
    ways: str = ""
    tries: Literal[0, 1, 2, 3] = 3
    steps: int = 800
    compile: bool = True
    train: bool = True


def check(options: RunOptions) -> None:
    """Refuse layers and ways that do not exist, a network without weights, and --tries 0 without their result."""
    chosen, rows = options.settings, rows_to_train(options)
    if not chosen.tries and (lacking := [", ".join(row) for row in rows if row not in tries_at_227(options)]):
        raise ValueError(f"--tries 0: the result at 227 pixels has no runs of {'; '.join(lacking)}")
    if chosen.train and not options.quick and (chosen.weights is None or not Path(chosen.weights).is_file()):
        raise FileNotFoundError(
            f"--weights is the file of the backbone's weights (docs/models.md), got {chosen.weights}"
        )


def rows_to_train(options: RunOptions) -> list[tuple[str, str]]:
    """Return the layers and ways that are asked for."""
    chosen, known = options.settings, rows_of(options.settings.loss)
    layers = names_of(chosen.layers, "layers", known) or (("gap", "gsp sharp") if options.quick else (*known,))
    return [(row, way) for way in names_of(chosen.ways, "ways", WAYS) or WAYS for row in layers]


def asked_of(chosen: TunedSettings, row: str, way: str, number: int, fold: int, seed: int) -> dict[str, Any]:
    """Return one training as the run store looks it up; ``number`` is that of the try."""
    own, (lr, factor) = rows_of(chosen.loss)[row], TRIES[number]
    alone = {"lr": own.lr, "rate": own.rate, "steps": HEAD_STEPS} if way == HEAD_FIRST else {}
    return {
        "row": row,
        "way": way,
        "layer": own.layer,
        "options": own.options,
        "zsr": own.zsr,
        "head": alone,
        "lr": lr,
        "head_factor": factor,
        "steps": chosen.steps,
        "fold": fold,
        "seed": seed,
    }


def backbone_of(options: RunOptions, chosen: TunedSettings) -> tuple[str, dict[str, Any]]:
    """Return name and options of the backbone; 256 pixels are cut to 227, and larger sizes alike."""
    if options.quick:
        return "small_cnn", {"width": 2}
    pixels = {"size": chosen.size, "resize": round(256 / 227 * chosen.size)}
    return "keras/resnet50", {"weights": chosen.weights, "pixels": pixels}


def data_of(options: RunOptions) -> DataConfig:
    """Return the data of all trainings, and the batches of the whole network."""
    root = None if options.root is None else str(options.root)
    if options.quick:
        return DataConfig("glyphs", root, {"images_per_class": 2}, classes_per_batch=8, images_per_class=2)
    return DataConfig("cub", root, {}, classes_per_batch=32, images_per_class=2, transform="crop", resident=True)


def config_of(options: RunOptions, chosen: TunedSettings, asked: Mapping[str, Any], seconds: float) -> TrainConfig:
    """Return the configuration of one training: the paper's optimiser and loss, with what is asked for."""
    config = fair("cub", proxies=chosen.loss == "pnca")
    config.data, model, head, trainer = data_of(options), config.model, config.head, config.trainer
    model.backbone, model.backbone_options = backbone_of(options, chosen)
    model.pooling, model.pooling_options = asked["layer"], dict(asked["options"])
    config.loss.zsr = asked["zsr"]
    config.optimiser.lr, config.optimiser.multipliers = asked["lr"], {"head": asked["head_factor"]}
    trainer.max_steps, trainer.evaluate_every, trainer.patience = asked["steps"], 100, 4
    trainer.seed = asked["seed"]
    on_engine(trainer, options.device, seconds, mixed=True)
    trainer.compile = chosen.compile and trainer.accelerator == "gpu"
    config.output.report = False
    if asked["way"] == HEAD_FIRST:
        config.schedule.warmup_epochs = 0.0
        head.prototypes, head.lr, head.rate = "kmeans", asked["head"]["lr"], asked["head"]["rate"]
        head.steps = asked["head"]["steps"]
    else:
        head.start, head.prototypes = "random", "means"
    if options.quick:
        head.steps, trainer.max_steps, trainer.evaluate_every, model.dim = min(head.steps, 2), 4, 2, 8
        model.pooling_options |= {"prototypes": 4} if "prototypes" in model.pooling_options else {}
    return config


def make_worker(options: RunOptions, tokens: Tokens, in_memory: bool) -> Worker:
    """Decode the images into memory of the device, and return the function that makes one training after the other."""
    chosen, config = options.settings, data_of(options)
    if in_memory:
        load_tokens(tokens, options.device)
    config.workers = max((os.cpu_count() or 1) // options.processes, 1)
    pixels = tokens_backbone(options, chosen).pixels
    learning, test = (
        on_device(part.images, config, pixels, options.device, training=part is tokens.learning) for part in tokens
    )

    @functools.lru_cache(1)
    def sets_of(fold: int) -> tuple[dict[str, TensorSet], dict[Split, TensorSet]]:
        classes = contiguous_folds(learning.labels, FOLDS)[fold]
        return token_sets(tokens, FOLDS, fold), fold_sets(learning, test, classes)

    def work(asked: Mapping[str, Any], seconds: float) -> dict[str, Any] | None:
        if 0 < seconds < SHORTEST:
            return None  # the time was up while it waited: the head alone would take seconds
        config = config_of(options, chosen, asked, seconds)
        place = training_folder(options.work / "tuned", {**asked, "size": chosen.size, "loss": chosen.loss})
        model = build_model(config).to(options.device)
        head = TokenHead(model.head, tokens.learning.layout, config.head)
        stored, images = sets_of(asked["fold"])
        found: dict[str, Any] = {}
        if asked["way"] == HEAD_FIRST:
            (place / HEAD).mkdir(exist_ok=True)
            alone = head_first(config)
            # As in the frozen study: larger batches, and more evaluations because it overfits within 300 steps.
            alone.data.images_per_class = 2 * config.data.images_per_class
            alone.trainer.evaluate_every = min(50, alone.trainer.evaluate_every)
            first = train_head(head, head_config(alone, head), stored, folder=place / HEAD)
            found["head_alone"] = {name: 100 * first.test[name] for name in METRICS}
            # The second phase goes on with the proxies of the first, and keeps its model where no step is better.
            config.head.steps, config.start_from = 0, str(place / HEAD)
        else:
            draw_embedding(model, asked["seed"])
            start_from(head, stored["train"], torch.device(options.device), asked["seed"])
        shown = (asked["fold"], asked["seed"]) == (0, options.seeds_or(SEEDS)[0])
        found["before"] = selection_of(model, test, shown)
        result = fit(config, place, f"{asked['row']}, {asked['way']}", model=model, sets=images)
        if result.ending == "time":
            return None
        shutil.rmtree(place)
        found["after"] = selection_of(model, test, shown)
        if options.device.startswith("cuda"):
            torch.cuda.empty_cache()  # layers need very different amounts, and other processes share the memory
        return {
            **found,
            "validation": 100 * (result.validation or 0.0),
            "test": {name: 100 * result.metrics[name] for name in METRICS},
            "curve": curve_line(result),
            "best_step": result.best_step,
            "steps": result.steps,
            "ending": result.ending,
            "seconds": round(result.seconds, 1),
        }

    return work


def draw_embedding(model: Embedder, seed: int) -> None:
    """Draw the embedding of a seed alone, so that layers with other parameters of their own start from the same one."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(mixed_seed(seed, 3))
        drawn = LocalEmbedding(model.backbone.channels, model.out_dim)
        cast("EmbedThenPool", model.head).embed.weight.copy_(drawn.weight)


@torch.no_grad()
def selection_of(model: Embedder, test: TensorSet, shown: bool) -> dict[str, Any]:
    """Measure what pooling and network leave out, on some test pictures.

    Returns the entropy of the pooling weights, that of the energy of the backbone's map (squared lengths of the tokens;
    1 is the same everywhere), and with ``shown`` both of them for the pictures that are drawn, one line each.
    """

    def measured(places: Int64[Tensor, " P"]) -> dict[str, Tensor]:
        features = model.feature_map(test.evaluation_images(places))
        energy = features.float().square().sum(1).flatten(1)
        weights = embed_features(model.head, features).weights
        return {"energy": energy / energy.sum(1, keepdim=True), **({} if weights is None else {"weights": weights})}

    places = torch.linspace(0, len(test) - 1, min(MEASURED, len(test))).long()
    entropies: dict[str, list[Tensor]] = {"weights": [], "energy": []}
    with evaluating(model):
        for part in places.split(64):
            for name, each in measured(part).items():
                entropies[name].append(relative_entropy(each.float()))
        drawn = measured(shown_places(test.labels, SHOWN)) if shown else {}
    weights, energy = (float(torch.cat(each).mean()) if each else None for each in entropies.values())
    lines = {name: [" ".join(f"{value:.4f}" for value in row) for row in each.tolist()] for name, each in drawn.items()}
    return {"entropy": weights, "energy_entropy": energy, **lines}


def tokens_backbone(options: RunOptions, chosen: TunedSettings) -> Backbone:
    """Create the backbone with the weights that all trainings start from."""
    name, more = backbone_of(options, chosen)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return create_backbone(name, **more)


def result_name(chosen: TunedSettings) -> str:
    """Return the name of the result: size and loss."""
    return f"tuned_cub_resnet50_{chosen.size}_{chosen.loss}"


def run(options: RunOptions) -> None:
    """Compute tokens, choose learning rates on one pair of fold and seed, train the others pair by pair, write."""
    chosen: TunedSettings = options.settings
    name, seeds, backbone = result_name(chosen), options.seeds_or(SEEDS), tokens_backbone(options, chosen)
    sets = create_sets(data_of(options))
    if not chosen.train:
        draw_pictures(options, read_result(options.results / f"{name}.json"), sets[1], backbone.pixels)
        return
    features = FeatureConfig(folder=str(options.work / "features"))
    print(f"tokens of {sum(map(len, sets)):,} pictures", flush=True)
    tokens = Tokens(
        *extract_tokens(backbone, sets, features, name=backbone_of(options, chosen)[0], device=options.device)
    )
    path = options.work / "tuned" / f"{name}{'_quick' if options.quick else ''}.jsonl"
    store = RunStore(path, options.results / f"{name}.json", device=options.device, libraries=LIBRARIES)
    rows = rows_to_train(options)
    worker = functools.partial(make_worker, options, tokens, hold_tokens(tokens, options.device, options.executor))
    # The first try of every row before the second of any: the first pair is complete as soon as it can be.
    tries = [dict.fromkeys(rows, number) for number in range(chosen.tries)] or [tries_at_227(options)]
    tuning = [asked_of(chosen, *row, numbers[row], 0, seeds[0]) for numbers in tries for row in rows]

    def final() -> list[dict[str, Any]]:
        best = chosen_tries([run._asdict() for run in store.runs()], chosen.steps, seeds[0])
        return [
            {**best[row], "fold": fold, "seed": seed}
            for seed in seeds
            for fold in range(1 if options.quick else FOLDS)
            for row in rows
            if row in best
        ]

    try:
        run_grid(store, tuning, worker, options.executor, options.seconds, then=final)
    finally:
        record = write_record(options, chosen, store)
    if record is not None:
        draw_pictures(options, record, sets[1], backbone.pixels)


def chosen_tries(runs: Sequence[Record], steps: int, seed: int) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what is asked for in the best try of every row and way, by validation on the pair of the choice."""
    best: dict[tuple[str, str], Record] = {}
    for run in runs:
        asked = run["asked"]
        row = (asked["row"], asked["way"])
        if (asked["steps"], asked["fold"], asked["seed"]) == (steps, 0, seed) and (
            row not in best or run["found"]["validation"] > best[row]["found"]["validation"]
        ):
            best[row] = run
    return {row: dict(run["asked"]) for row, run in best.items()}


def tries_at_227(options: RunOptions) -> dict[tuple[str, str], int]:
    """Return the numbers of the tries that the result at 227 pixels chose, by row and way."""
    usual = TunedSettings()
    path = options.results / f"{result_name(replace(options.settings, size=usual.size))}.json"
    value = read_result(path)["value"]
    best = chosen_tries(value["runs"], value["steps"], value["first_seed"])
    return {row: TRIES.index((asked["lr"], asked["head_factor"])) for row, asked in best.items()}


def write_record(options: RunOptions, chosen: TunedSettings, store: RunStore) -> Record | None:
    """Write all finished runs, also those of earlier calls with other layers; None where there are none."""
    runs = [run for run in store.runs() if run.asked["steps"] == chosen.steps]
    value = {
        "data": "cub",
        "backbone": "keras/resnet50",
        "size": chosen.size,
        "loss": chosen.loss,
        "steps": chosen.steps,
        "first_seed": options.seeds_or(SEEDS)[0],
        "runs": plain_runs(runs),
    }
    if not chosen_runs(value):
        return None
    return write_result(
        options.results / f"{result_name(chosen)}.json",
        value,
        command=EXPERIMENT.command(options),
        seeds=sorted({run.asked["seed"] for run in runs}),
        origins=[run.origin for run in runs],
    )


def draw_pictures(options: RunOptions, record: Record, test: ImageSet, pixels: Pixels) -> None:
    """Draw the weights over test pictures into the folder of --work, where matplotlib is installed."""
    if find_spec("matplotlib") is None:
        return
    places = shown_places(test.labels, SHOWN)
    held = on_device(test.subset(places), data_of(options), pixels, "cpu")
    pictures = held.evaluation_images(torch.arange(len(places))).permute(0, 2, 3, 1)
    path = options.work / "tuned" / f"{result_name(options.settings)}_pictures.png"
    draw_over_pictures(record, pictures, path)
    print(f"weights over test pictures: {path}", flush=True)


Pair = tuple[int, int]
Runs = dict[tuple[str, str], dict[Pair, Record]]


def chosen_runs(value: Mapping[str, Any]) -> Runs:
    """Return what the chosen try of every row and way found, by fold and seed, in the order of rows and ways."""
    best = chosen_tries(value["runs"], value["steps"], value["first_seed"])
    found: Runs = {(row, way): {} for way in WAYS for row in rows_of(value["loss"]) if (row, way) in best}
    for run in value["runs"]:
        asked = run["asked"]
        row, pair = (asked["row"], asked["way"]), {"fold": asked["fold"], "seed": asked["seed"]}
        if row in found and {**best[row], **pair} == asked:
            found[row][asked["fold"], asked["seed"]] = run["found"]
    return found


def best_of(runs: Runs, rows: Sequence[str]) -> tuple[str, str] | None:
    """Return the best of some layers, in either way, on validation in the pairs that all have; None without any."""
    known = [key for key in runs if key[0] in rows]
    shared = set.intersection(*({*runs[key]} for key in known)) if known else set()
    if not shared:
        return None
    return max(known, key=lambda key: fmean(runs[key][pair]["validation"] for pair in shared))


def on_test(runs: Mapping[Pair, Record]) -> dict[Pair, float]:
    """Return MAP@R on the test classes by fold and seed."""
    return {pair: found["test"]["map@r"] for pair, found in runs.items()}


def layers_table(record: Record) -> str:
    """Write every layer and way, with paired 95 % intervals against average pooling in its better way."""
    value, lines = record["value"], []
    runs, best = chosen_runs(value), chosen_tries(value["runs"], value["steps"], value["first_seed"])
    first = {"fold": 0, "seed": value["first_seed"], "steps": value["steps"]}
    asked = [run["asked"] for run in value["runs"]]
    tried = Counter((each["row"], each["way"]) for each in asked if {**each, **first} == each)
    against = {"the best average": best_of(runs, AVERAGES), "gap": best_of(runs, ("gap",))}
    for (row, way), own in runs.items():
        rates, test = best[row, way], on_test(own)
        few = f", of {tried[row, way]} tries" if tried[row, way] < max(tried.values()) else ""
        lines.append(
            {
                "pooling": row,
                "trained": way,
                "learning rate": f"{rates['lr']:g}, head x {rates['head_factor']:g}{few}",
                "pairs": len(own),
                "validation MAP@R": fmean(found["validation"] for found in own.values()),
                "test MAP@R": spread(test),
                "P@1": fmean(found["test"]["p@1"] for found in own.values()),
                **{
                    f"against {name}": with_interval(
                        matched_difference(test, on_test(runs[other]) if other and other != (row, way) else {})
                    )
                    for name, other in against.items()
                },
                "best step": round(fmean(found["best_step"] for found in own.values())),
                "entropy, before and after": " → ".join(
                    f"{each:.3f}" for when in ("before", "after") if (each := mean_of(own, when, "entropy")) is not None
                ),
            }
        )
    return markdown_table(lines, ".2f", text_columns=3)


def ways_table(record: Record) -> str:
    """Write for every layer what its head alone reaches, what each way of tuning does with it, and to the map."""
    runs, lines = chosen_runs(record["value"]), []
    for row in dict.fromkeys(row for row, _ in runs):
        first, paper = (runs.get((row, way), {}) for way in (HEAD_FIRST, AS_THE_PAPER))
        alone = {pair: found["head_alone"]["map@r"] for pair, found in first.items()}
        lines.append(
            {
                "pooling": row,
                "head alone": spread(alone),
                HEAD_FIRST: spread(on_test(first)),
                AS_THE_PAPER: spread(on_test(paper)),
                f"{HEAD_FIRST} − {AS_THE_PAPER}": with_interval(matched_difference(on_test(first), on_test(paper))),
                **{
                    f"map, {name}": cell(mean_of(own, when, "energy_entropy"), ".3f")
                    for name, own, when in (
                        ("before", {**paper, **first}, "before"),
                        (HEAD_FIRST, first, "after"),
                        (AS_THE_PAPER, paper, "after"),
                    )
                },
            }
        )
    return markdown_table(lines, text_columns=1)


def spread(values: Mapping[Pair, float]) -> str:
    """Write the mean over pairs and their standard deviation; empty without any."""
    return plus_minus(fmean(values.values()), stdev(values.values()) if len(values) > 1 else None) if values else ""


def mean_of(runs: Mapping[Pair, Record], when: str, name: str) -> float | None:
    """Return the mean of a measure before or after tuning; None where the layer has none."""
    known = [found[when][name] for found in runs.values() if found[when][name] is not None]
    return fmean(known) if known else None


def draw_entropies(record: Record, path: Path) -> None:
    """Draw how tuning changes the entropy of the pooling weights, and of the energy of the feature map."""
    runs = chosen_runs(record["value"])
    figure, axes = subplots(1, 2, 10, 0.9 + 0.28 * len(runs), sharey=True)
    titles = {"entropy": "pooling weights", "energy_entropy": "energy of the feature map"}
    for axis, (name, title) in zip(axes[0], titles.items(), strict=True):
        for place, own in enumerate(runs.values()):
            means = [mean_of(own, when, name) for when in ("before", "after")]
            if None not in means:
                axis.plot(means, [place, place], color="grey", zorder=0)
                axis.plot(means[0], place, "oC0", label="before tuning")
                axis.plot(means[1], place, "sC1", label="after tuning")
        axis.set_yticks(range(len(runs)), [f"{row}, {way}" for row, way in runs], fontsize=8)
        axis.set(title=title, xlabel="relative entropy; 1 is the same everywhere")
    axes[0, 0].invert_yaxis()
    legend_below(figure)
    save(figure, path)


def shown_maps(record: Record, name: str, layers: Sequence[str] = ()) -> dict[str, list[list[float]]]:
    """Return weights or energy on the pictures that are shown, by layer, way and time, one list a picture."""
    value, found = record["value"], {}
    for (row, way), own in chosen_runs(value).items():
        measured = own.get((0, value["first_seed"]), {})
        for when in ("before", "after"):
            if (lines := measured.get(when, {}).get(name)) and (not layers or row in layers):
                found[f"{row}, {way}\n{when} tuning"] = [[float(each) for each in line.split()] for line in lines]
    return found


def draw_shown(name: str, layers: Sequence[str], record: Record, path: Path) -> None:
    """Draw weights or energy on the same test pictures before and after tuning, relative to equal ones."""
    maps = {
        f"{title}, picture {number}": [len(values) * each for each in values]
        for title, pictures in shown_maps(record, name, layers).items()
        for number, values in enumerate(pictures, 1)
    }
    if maps:
        draw_maps(maps, path, columns=2 * SHOWN, side=1.5)


def draw_over_pictures(record: Record, pictures: UInt8[Tensor, "P H W 3"], path: Path) -> None:
    """Draw the same weights over the pictures, which neither result nor documentation may hold."""
    lines = {"": None, **shown_maps(record, "weights", SELECTING)}
    figure, axes = subplots(len(lines), len(pictures), 1.6 * len(pictures) + 1.2, 1.6 * len(lines))
    for (title, weights), across in zip(lines.items(), axes, strict=True):
        for number, (axis, picture) in enumerate(zip(across, pictures, strict=True)):
            heat = None if weights is None else torch.tensor(weights[number])
            overlay(axis, picture.numpy(), None if heat is None else heat.unflatten(0, (math.isqrt(len(heat)), -1)))
            axis.set(xticks=[], yticks=[])
        across[0].set_ylabel(title, fontsize=7)
    save(figure, path)


def missing(record: Record) -> str:
    """Return how many trainings of the chosen tries a result lacks, in words; empty where it has all."""
    runs = chosen_runs(record["value"])
    wanted = FOLDS * len(SEEDS) * len(WAYS) * len(rows_of(record["value"]["loss"]))
    left = wanted - sum(map(len, runs.values()))
    return f"{left} of {wanted} trainings" if left > 0 else ""


# Tables of docs/when_to_use.md, by the name of their result.
RESULTS = {
    "pnca": "tuned_cub_resnet50_227_pnca",
    "c2": "tuned_cub_resnet50_227_c2",
    "pnca_448": "tuned_cub_resnet50_448_pnca",
}
FIGURES: dict[str, Callable[[Record, Path], None]] = {
    "entropy": draw_entropies,
    "weights": functools.partial(draw_shown, "weights", SELECTING),
    "energy": functools.partial(draw_shown, "energy", ("gap", SELECTING[-1])),
}

EXPERIMENT = Experiment(
    name="tuned",
    claim="with the head trained first and a sharper selection, GSP stays ahead of average pooling in a tuned network",
    shows="beside the tables",
    cost="168 trainings a loss, half an hour on one H200 with --processes 8 and MPS, four times as long at --size 448; "
    "the same command goes on",
    files=tuple(RESULTS.values()),
    run=run,
    tables={
        **{table: FromFile(name, layers_table) for table, name in RESULTS.items()},
        **{f"{table}_ways": FromFile(name, ways_table) for table, name in RESULTS.items()},
    },
    plots={f"{name}_{figure}": FromFile(name, draw) for name in RESULTS.values() for figure, draw in FIGURES.items()},
    needs=("cub",),
    settings=TunedSettings,
    check=check,
    missing=missing,
    parallel=True,
)
