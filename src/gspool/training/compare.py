"""Which pooling layer is best on my pictures? Tokens once, heads on folds x seeds, chosen by validation classes."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import warnings
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gspool import pooling
from gspool.executor import Executor
from gspool.executor.grid import FailedRunsError, run_grid
from gspool.executor.run_store import RunStore
from gspool.features import FeatureConfig
from gspool.files import write_atomic
from gspool.models import create_backbone
from gspool.models.create import begins_at_random, is_published
from gspool.models.device import chosen_device
from gspool.models.hub import announced_backbone
from gspool.pooling.embedding import check_head_options
from gspool.provenance import write_result
from gspool.terminal.output import check_writable
from gspool.terminal.parser import TeachingParser
from gspool.terminal.status import checking_arguments
from gspool.terminal.table import show_rows
from gspool.training.compare_data import TaskName, Tokens, check_sets, create_sets, with_fitting_batches
from gspool.training.compare_runs import (
    Variant,
    asked_of,
    best_variants,
    check_heads,
    hold_tokens,
    make_worker,
    summary,
)
from gspool.training.config import (
    DataConfig,
    HeadConfig,
    LossConfig,
    OptimiserConfig,
    ScheduleConfig,
    TrainConfig,
    TrainerConfig,
)
from gspool.training.frozen import computed_tokens
from gspool.training.head_settings import HEAD_OPTIONS, frozen_defaults, layer_options
from gspool.training.parsing import as_config, plain, values_of
from gspool.training.presets import BACKBONE, IMG_SIZE
from gspool.training.processes import precision_of
from gspool.training.report import (
    CONFIG,
    HEADS,
    REPORT,
    TABLE,
    WINNER,
    WORDS,
    save_winner,
    table_rows,
    write_compare_report,
)
from gspool.training.sets import check_monitor

HELP = """Compare pooling layers on the tokens of a frozen backbone: which one is best on these pictures?

    gspool compare --data.root pictures/
    gspool compare --data.root pictures/ --layers gap,gsp,ep --grid "gsp.mu=0.05,0.1;gsp.epsilon=10,20"
    gspool compare --data.root pictures/ --backbone keras/resnet50 --backbone_options.weights resnet50.safetensors

    gspool compare --data.root pictures/ --task classify

Tokens are computed once and kept. Every head is trained on folds of the training classes, its settings are chosen on
the held-out classes, and it is judged on test classes; --task classify trains linear classifiers and holds out pictures
instead. The best head is saved as a model for embed, search, explain, serve and export. The same command goes on after
an interruption."""


# Of the map of a CNN, and of tokens beside a class token: those may be negative, and have no power (gemean).
MAP_LAYERS = "gap,gmp,gemean,delf,ep,abmilp,gsp,gemean+gsp"
PATCH_LAYERS = "gap,gmp,delf,ep,abmilp,gsp,cls,gsp+cls"


@dataclass
class CompareConfig:
    """A comparison of heads on one frozen backbone.

    Args:
        data: what to learn from.
        task: "embed" learns a metric and tests retrieval on classes that were not learned; "classify" trains a linear
            classifier of the pooled vector and tests it on other pictures of the same classes.
        backbone: a name of gspool.models.list_backbones(); timm/vit_small_patch14_dinov2 takes 224 pixels unless told
            otherwise (img_size), others their own size.
        backbone_options: its options, such as weights (a file), pretrained or img_size.
        dim: length of the embedding; null keeps the channels of the backbone, so that a head can start as the identity.
        layers: names of pooling layers with commas between (NAME+cls adds the class token), or "all". If none are
            named: gap,gmp,delf,ep,abmilp,gsp, with gemean,gemean+gsp for the map of a CNN, and with cls,gsp+cls for a
            backbone with a class token. Every head starts from settings chosen on CUB (docs/frozen.md).
        grid: settings to try, with semicolons between: gsp.mu=0.05,0.1;gsp.epsilon=10,20. Every combination of a
            layer's settings is a try.
        folds: parts of the training classes (to classify: of the training pictures), each held out once for validation.
        use_folds: how many of them to train on.
        seeds: seeds with commas between.
        features: how tokens are computed and kept.
        head: how heads start and are regularised.
        loss: what is minimised.
        optimiser: how steps are made.
        schedule: how the learning rate changes.
        trainer: how long, how precisely, on what.
        processes: heads trained side by side.
        ray: address of a Ray cluster ("auto"), "local", or null.
        gpus: share of a GPU of one worker on Ray.
        folder: where results and the chosen model go.
        progress: show progress bars.
    """

    data: DataConfig = field(
        default_factory=lambda: DataConfig(name="folder", classes_per_batch=32, images_per_class=4, check="skip")
    )
    task: TaskName = "embed"
    backbone: str = BACKBONE
    backbone_options: dict[str, Any] = field(default_factory=dict)
    dim: int | None = None
    layers: str = ""
    grid: str = ""
    folds: int = 4
    use_folds: int | None = None
    seeds: str = "0,1,2"
    features: FeatureConfig = field(default_factory=FeatureConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimiser: OptimiserConfig = field(
        default_factory=lambda: OptimiserConfig(lr=3e-4, weight_decay=0.0, betas=(0.9, 0.999), proxies=100.0)
    )
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    trainer: TrainerConfig = field(
        default_factory=lambda: TrainerConfig(
            max_steps=1200, evaluate_every=25, patience=6, precision="auto", progress=False
        )
    )
    processes: int = 1
    ray: str | None = None
    gpus: float = 0.0
    folder: str | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise ValueError(f"folds are parts of the data, of which each validates once: at least 2, got {self.folds}")
        if self.use_folds is not None and not 1 <= self.use_folds <= self.folds:
            raise ValueError(f"use_folds must lie between 1 and folds, {self.folds}, got {self.use_folds}")


class Comparison(NamedTuple):
    """What `compare` returns: its folder, the lines of the table, and the row whose model was saved."""

    folder: Path
    lines: list[dict[str, Any]]
    winner: str


def compare(config: CompareConfig, given: Collection[str] | None = None) -> Comparison:
    """Compare heads and save the best; a folder that holds some of the runs already goes on with the others.

    Args:
        config: all settings.
        given: options of heads that ``config`` sets for all of them; those that differ from the default if None.

    Raises:
        ValueError: before any work, if a setting or the data do not fit.
        FailedRunsError: if all trainings of heads failed.
        SystemExit: after Ctrl-C or SIGTERM; what is finished is kept.

    Warns:
        UserWarning: if some trainings failed; the table is that of the others.
    """
    folder = Path(config.folder or f"runs/compare-{config.data.name}").expanduser()
    check_writable(folder, "--folder")
    check_used(config)
    given = options_given(config) if given is None else given
    seeds = numbers(config.seeds)
    used = range(config.folds)[: config.use_folds]
    device = str(chosen_device(None))
    accelerator = "cpu" if device == "cpu" else config.trainer.accelerator
    # By its own name, because runs of another precision are others.
    trainer = replace(config.trainer, accelerator=accelerator, precision=precision_of(config.trainer, device))
    config = replace(config, backbone_options=backbone_options(config), trainer=trainer)
    learning, test = create_sets(config.data, config.task)
    check_sets(learning, test, config.folds, config.task)
    config = replace(config, data=with_fitting_batches(config.data, learning, config.folds, config.task))
    backbone = create_backbone(config.backbone, **config.backbone_options)
    class_token, dim = bool(getattr(backbone, "class_tokens", 0)), config.dim or backbone.channels
    grid: dict[str, list[Variant]] = {}
    for variant in variants_of(config.layers, config.grid, class_token, given, dim):
        grid.setdefault(variant.layer if variant.learn else variant.name, []).append(variant)
    check_heads(config, grid, backbone.channels, class_token)
    print(
        f"{len(learning):,} pictures of {learning.num_classes:,} classes to learn from (parts of them validate), "
        f"{len(test):,} of {test.num_classes:,} to test on; {config.backbone} on {device}",
        flush=True,
    )
    executor = Executor(config.processes, config.ray, config.gpus)
    options = {
        "name": config.backbone,
        "device": device,
        "broken": "stop" if config.data.check == "stop" else "skip",
        "executor": None if config.ray is None else executor,  # one process of this machine decodes in several anyway
    }
    tokens = Tokens(*computed_tokens(backbone, [learning, test], config.features, config.progress, **options))
    # Broken pictures may have taken whole classes with them.
    check_sets(tokens.learning.images, tokens.test.images, config.folds, config.task)
    key = settings_key(config, tokens)
    heads = folder / HEADS / key
    heads.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / CONFIG, yaml.safe_dump(plain(config), sort_keys=False).encode())
    store = RunStore(folder / f"runs-{key}.jsonl", device=device)
    worker = partial(make_worker, config, tokens, device, hold_tokens(tokens, device, executor), heads)
    tries = [
        asked_of(row, each, fold, seeds[0]) for fold in used for row, variants in grid.items() for each in variants
    ]

    def chosen() -> list[dict[str, Any]]:
        best = best_variants(grid, store, used, seeds[0])
        return [
            asked_of(row, each, fold, seed)
            for seed in seeds
            for fold in used
            for row, each in best.items()
            if each.learn or seed == seeds[0]
        ]

    try:
        run_grid(store, tries, worker, executor, name="heads", own_bars=False, then=chosen)
    except FailedRunsError as failed:
        if not any(run["learn"] for run in chosen()):
            raise
        reasons = "\n".join(text.strip().splitlines()[-1] for text in failed.failures)
        warnings.warn(f"{len(failed.failures)} trainings failed, and are left out:\n{reasons}", stacklevel=2)
    runs = [{"asked": job, "found": found} for job in chosen() if (found := store.get(job)) is not None]
    lines = summary(runs)
    write_result(
        folder / TABLE,
        {"lines": lines, "runs": runs, "config": plain(config)},
        command="gspool compare",
        seeds=list(seeds),
        device=device,
    )
    winner = save_winner(config, backbone, folder, heads, lines, runs, tokens.learning.images.class_names)
    write_compare_report(config, folder, heads, lines, runs, tokens, backbone.pixels)
    return Comparison(folder, lines, winner)


def options_given(config: CompareConfig) -> set[str]:
    """Return the options of heads that the configuration sets for all of them, in place of their own defaults.

    Example:
        >>> options_given(CompareConfig(head=HeadConfig(rate=10.0)))
        {'rate'}
    """
    usual = CompareConfig()
    found = {
        name
        for name, (section, setting) in HEAD_OPTIONS.items()
        if section in ("head", "optimiser")
        and getattr(getattr(config, section), setting) != getattr(getattr(usual, section), setting)
    }
    # Learning rates were chosen for retrieval; classifiers overfit at the large ones.
    return found | {"lr"} if config.task == "classify" else found


def variants_of(
    layers: str, grid: str, class_token: bool, given: Collection[str] = (), dim: int | None = None
) -> list[Variant]:
    """List the tries: the frozen features, then every layer with every combination of its grid.

    The options that neither the grid nor ``given`` names are the layer's defaults on frozen features, for embeddings of
    ``dim`` numbers.

    Raises:
        ValueError: if a layer or an option does not exist, or a setting is not written NAME.OPTION=VALUE,VALUE.

    Example:
        >>> [variant.name for variant in variants_of("gap,ep", "ep.rate=10,30", class_token=False)]
        ['frozen gap', 'gap', 'ep queries=2 rate=10', 'ep queries=2 rate=30']
    """
    layers = layers or (PATCH_LAYERS if class_token else MAP_LAYERS)
    everything = [*pooling.list(), *(["cls"] if class_token else [])]
    names = everything if layers == "all" else [name.strip() for name in layers.split(",") if name.strip()]
    settings: dict[str, dict[str, list[Any]]] = {}
    for each in filter(None, (word.strip() for word in grid.split(";"))):
        target, equals, values = each.partition("=")
        layer, dot, option = target.rpartition(".")
        if not (equals and dot and values):
            raise ValueError(
                f"a grid setting is written LAYER.OPTION=VALUE,VALUE, such as gsp.mu=0.1,0.3, got {each!r}"
            )
        if layer not in names:
            raise ValueError(f"the grid names {layer!r}, which is not among the layers {', '.join(names)}")
        settings.setdefault(layer, {})[option] = [_value(value) for value in values.split(",")]
    found = [Variant("gap", learn=False), *([Variant("cls", learn=False)] if class_token else [])]
    for name in names:
        varied = settings.get(name, {})
        defaults = frozen_defaults(name, class_token, dim)
        fixed = {key: value for key, value in defaults.items() if key not in varied and key not in given}
        for combination in itertools.product(*varied.values()):
            chosen = {**fixed, **dict(zip(varied, combination, strict=True))}
            options = layer_options(chosen)
            check_head_options(name, options)
            head = tuple((key, value) for key, value in chosen.items() if key in HEAD_OPTIONS)
            found.append(Variant(name, tuple(options.items()), head))
    return found


def _value(text: str) -> Any:
    """Read a setting as YAML does, and numbers such as 5e-2 too."""
    value = yaml.safe_load(text)
    with suppress(ValueError):
        return float(value) if isinstance(value, str) else value
    return value


def numbers(text: str) -> list[int]:
    """Read whole numbers with commas between."""
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError as error:
        raise ValueError(f"seeds are whole numbers with commas between, such as 0,1,2, got {text!r}") from error
    if len({*found}) != len(found):
        raise ValueError(f"seeds are given once each, got {text!r}")
    return found


def backbone_options(config: CompareConfig) -> dict[str, Any]:
    """Return the options of the backbone: the usual size of pictures, and published weights of timm by default.

    Raises:
        ValueError: for a backbone that needs a file of weights, without one.
    """
    options = dict(config.backbone_options)
    if config.backbone == BACKBONE:
        options.setdefault("img_size", IMG_SIZE)
    if config.backbone.startswith("timm/") and "weights" not in options:
        options.setdefault("pretrained", True)
    elif is_published(config.backbone) and begins_at_random(config.backbone, options):
        raise ValueError(f"{config.backbone} needs its weights: give --backbone_options.weights FILE (docs/models.md)")
    return options


def check_used(config: CompareConfig) -> None:
    """Refuse settings that a comparison does not use, rather than ignore them.

    Raises:
        ValueError: if one differs from its default.
    """
    unused = ["trainer.monitor_split", "trainer.compile", "trainer.threads", "trainer.devices", "trainer.num_nodes"]
    unused += ["schedule.warmup_epochs", "data.transform", "data.cache", "data.resident", "data.workers"]
    unused += ["loss", "trainer.monitor"] if config.task == "classify" else []
    usual = CompareConfig()
    for name in unused:
        mine, default = (functools.reduce(getattr, name.split("."), each) for each in (config, usual))
        if mine != default:
            raise ValueError(f"--{name} has no effect on heads that are compared by --task {config.task}; leave it out")
    if config.gpus and config.ray is None:
        raise ValueError("--gpus is a share of a GPU of a worker on Ray; it needs --ray")
    if config.task == "embed":
        check_monitor(TrainConfig(loss=config.loss, trainer=config.trainer))


def settings_key(config: CompareConfig, tokens: Tokens) -> str:
    """Return a hash of the settings and data that all heads share; runs of others are kept apart."""
    kept = ("task", "dim", "folds", "head", "loss", "optimiser", "schedule")
    content = {name: value for name, value in plain(config).items() if name in kept}
    batches = (config.data.classes_per_batch, config.data.images_per_class, config.data.sampler)
    trainer = {name: value for name, value in asdict(config.trainer).items() if name != "progress"}
    content |= {"batches": batches, "trainer": trainer, "tokens": [each.identity for each in tokens]}
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:12]


def compare_command(arguments: Sequence[str]) -> None:
    """Compare, and print a table and where the model and the report are."""
    parser = TeachingParser("gspool compare", HELP, "gspool compare --data.root FOLDER [--OPTION VALUE ...]")
    parser.add_argument("--config", action="config", help="A YAML file with any of the options below.")
    parser.add_class_arguments(CompareConfig, as_positional=False)
    config = as_config(CompareConfig, parser, parser.parse_args(list(arguments)))
    with checking_arguments():
        variants_of(config.layers or f"{MAP_LAYERS},{PATCH_LAYERS}", config.grid, class_token=True)
        numbers(config.seeds)
    given = options_given(config) | {
        name for name, place in HEAD_OPTIONS.items() if values_of(f"--{'.'.join(place)}", arguments)
    }
    if not values_of("--backbone", arguments) and not {"weights", "pretrained"} & {*config.backbone_options}:
        config.backbone = announced_backbone(config.backbone, "--backbone")
    found = compare(config, given)
    # What fits a terminal of 80 columns; the report has the rest.
    shown = ("head", "validation", "test", "P@1", "against gap")
    rows = [{name: row[name] for name in shown if name in row} for row in table_rows(found.lines)]
    words = WORDS[config.task]
    show_rows(f"{config.data.name}, {config.backbone}: {words.metric} in percent", rows)
    print(f"best on the validation {words.held_out}: {found.winner}")
    print(f"model   {found.folder / WINNER}")
    print(f"report  {found.folder / REPORT}")
