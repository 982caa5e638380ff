"""What a comparison of heads is made of: its settings, and the tries of every layer."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import yaml

from gspool import pooling
from gspool.features import FeatureConfig
from gspool.pooling.embedding import check_head_options
from gspool.pooling.registry import without_class_token
from gspool.training.compare_data import TaskName
from gspool.training.config import (
    DataConfig,
    LossConfig,
    OptimiserConfig,
    ScheduleConfig,
    TrainConfig,
    TrainerConfig,
)
from gspool.training.heads import FROZEN, HeadConfig

DEFAULT_LAYERS = "gap,gmp,gemean,delf,ep,abmilp,gsp,gemean+gsp"
# Chosen on validation classes (docs/frozen.md); the layer's own defaults are those of tuned networks.
FROZEN_DEFAULTS: dict[str, dict[str, Any]] = {
    "gsp": {"mu": 0.05, "epsilon": 10.0, "prototypes": 8, "prototypes_from": "kmeans"},
    "gmp+gsp": {"mu": 0.1, "epsilon": 10.0, "prototypes": 64},
    "gemean+gsp": {"mu": 0.1, "epsilon": 5.0, "prototypes": 64, "keys": 128, "prototypes_from": "kmeans"},
}
# The same for the patch tokens of a transformer with a class token: fewer tokens count, and prototypes learn faster.
PATCH_DEFAULTS: dict[str, dict[str, Any]] = {
    **FROZEN_DEFAULTS,
    "gsp": {"mu": 0.01, "epsilon": 20.0, "prototypes": 32, "groups": 8, "rate": 10.0, "prototypes_from": "kmeans"},
}
# Options of a head that `--grid` may vary beside those of its layer.
HEAD_OPTIONS = (
    *("start", "prototypes_from", "rate", "token_dropout", "feature_dropout", "lr", "weight_decay"),
    *("zsr", "zsr_scale", "zsr_repeats"),
)


@dataclass
class CompareConfig:
    """A comparison of heads on one frozen backbone.

    Args:
        data: what to learn from.
        task: "embed" learns a metric and tests retrieval on classes that were not learned; "classify" trains a linear
            classifier of the pooled vector and tests it on other pictures of the same classes.
        backbone: a name of gspool.models.list_backbones(), such as timm/vit_small_patch14_dinov2.
        backbone_options: its options, such as weights (a file) or pretrained.
        dim: length of the embedding; null keeps the channels of the backbone, so that a head can start as the identity.
        layers: names of pooling layers with commas between, or "all"; NAME+cls adds the class token.
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
    backbone: str = "timm/vit_small_patch14_dinov2"
    backbone_options: dict[str, Any] = field(default_factory=dict)
    dim: int | None = None
    layers: str = DEFAULT_LAYERS
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
        default_factory=lambda: TrainerConfig(max_steps=400, evaluate_every=25, patience=6, progress=False)
    )
    processes: int = 1
    ray: str | None = None
    gpus: float = 0.0
    folder: str | None = None
    progress: bool = True


class Variant(NamedTuple):
    """A layer with settings: one try. ``learn`` is False for the frozen feature itself."""

    layer: str
    options: tuple[tuple[str, Any], ...] = ()
    head: tuple[tuple[str, Any], ...] = ()
    learn: bool = True

    @property
    def name(self) -> str:
        """Name the try as its settings write it.

        Example:
            >>> Variant("gsp", (("mu", 0.1),), (("rate", 10),)).name
            'gsp mu=0.1 rate=10'
        """
        if not self.learn:
            return f"{FROZEN} {self.layer}"
        return " ".join([self.layer, *(f"{name}={value}" for name, value in (*self.options, *self.head))])


def variants_of(layers: str, grid: str, class_token: bool) -> list[Variant]:
    """List the tries: the frozen features, then every layer with every combination of its grid.

    Raises:
        ValueError: if a layer or an option does not exist, or a setting is not written NAME.OPTION=VALUE,VALUE.

    Example:
        >>> [variant.name for variant in variants_of("gap,gmp+gsp", "gmp+gsp.mu=0.1,0.3", class_token=False)]
        ['frozen gap', 'gap', 'gmp+gsp epsilon=10.0 prototypes=64 mu=0.1', 'gmp+gsp epsilon=10.0 prototypes=64 mu=0.3']
    """
    names = pooling.list() if layers == "all" else [name.strip() for name in layers.split(",") if name.strip()]
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
        settings.setdefault(layer, {})[option] = [yaml.safe_load(value) for value in values.split(",")]
    frozen = [Variant("gap", learn=False), *([Variant("cls", learn=False)] if class_token else [])]
    found = list(frozen)
    for name in names:
        varied = settings.get(name, {})
        base, _ = without_class_token(name)
        defaults = (PATCH_DEFAULTS if class_token else FROZEN_DEFAULTS).get(base, {})
        fixed = {key: value for key, value in defaults.items() if key not in varied}
        for combination in itertools.product(*varied.values()):
            chosen = {**fixed, **dict(zip(varied, combination, strict=True))}
            head = {key: value for key, value in chosen.items() if key in HEAD_OPTIONS}
            options = {key: value for key, value in chosen.items() if key not in HEAD_OPTIONS}
            check_head_options(name, options)
            found.append(Variant(name, tuple(options.items()), tuple(head.items())))
    return found


def configured(config: CompareConfig, chosen: Mapping[str, Any], seed: int) -> tuple[TrainConfig, HeadConfig]:
    """Return the configuration of one training, with the head settings of its try applied."""
    head = replace(
        config.head,
        **{name: chosen[name] for name in ("start", "rate", "token_dropout", "feature_dropout") if name in chosen},
        **({"prototypes": chosen["prototypes_from"]} if "prototypes_from" in chosen else {}),
    )
    optimiser = replace(
        config.optimiser,
        lr=float(chosen.get("lr", config.optimiser.lr)),
        weight_decay=float(chosen.get("weight_decay", config.optimiser.weight_decay)),
    )
    zsr_options = {name: chosen[f"zsr_{name}"] for name in ("scale", "repeats") if f"zsr_{name}" in chosen}
    train = TrainConfig(
        data=config.data,
        loss=replace(
            config.loss,
            zsr=float(chosen.get("zsr", config.loss.zsr)),
            zsr_options={**config.loss.zsr_options, **zsr_options},
        ),
        optimiser=optimiser,
        schedule=config.schedule,
        trainer=replace(config.trainer, seed=seed),
    )
    return train, head


def numbers(text: str) -> list[int]:
    """Read whole numbers with commas between.

    Raises:
        ValueError: if they are not whole numbers, or one stands there twice.

    Example:
        >>> numbers("0,1,2")
        [0, 1, 2]
    """
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError as error:
        raise ValueError(f"seeds are whole numbers with commas between, such as 0,1,2, got {text!r}") from error
    if len({*found}) != len(found):
        raise ValueError(f"seeds are given once each, got {text!r}")
    return found
