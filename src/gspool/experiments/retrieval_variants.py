"""One variant of a retrieval benchmark: a loss, a pooling layer, and what differs from the paper's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gspool.training import TrainConfig
from gspool.training.presets import conventional, fair

DATA = ("cub", "cars196", "sop", "inshop")
LOSSES = ("c2", "pnca", "ms", "triplet", "panchor", "xbm+c1")
# Losses with proxies: 32 classes of one image, a warm-up epoch, epsilon 0.5 (Supp. "Hyperparameters").
PROXY_LOSSES = ("pnca", "panchor")
# The layers of Table 2.
POOLINGS = ("gap", "gsp", "delf", "gemean", "gemean+gsp", "gmp", "gap+gmp", "gmp+gsp")
# What the paper compares in each protocol: losses, and the two layers.
COMPARED = {"fair": (("c2", "pnca"), ("gap", "gsp")), "conventional": (("xbm+c1",), ("gap+gmp", "gmp+gsp"))}
# An ensemble of this size has embeddings this wide; all others of the pooling table have 128 numbers.
LARGE, WIDE = "64x128", 8192
# The paper repeats every training three times.
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Variant:
    """One row of a table.

    Args:
        loss: a name of `gspool.losses`.
        pooling: a name of `gspool.pooling`.
        setting: name of what differs from the paper's settings for the two; "" for the paper's.
        options: options of the pooling layer, instead of the paper's.
        changes: other values of the configuration by dotted names.
        tokens: number of training images whose local features the prototypes are chosen from, by k-center, before the
            first step; 0 leaves the start to the layer.
    """

    loss: str
    pooling: str
    setting: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    tokens: int = 0

    @property
    def name(self) -> str:
        """Name of the row."""
        return f"{self.loss} {self.pooling} {self.setting}".strip()

    @property
    def differences(self) -> dict[str, Any]:
        """Everything that differs from the paper's settings, as plain data."""
        options = {f"model.pooling_options.{name}": value for name, value in self.options.items()}
        return {**options, **self.changes, **({"tokens": self.tokens} if self.tokens else {})}

    @property
    def draws_own_embedding(self) -> bool:
        """Whether it would draw another embedding than GSP does from the same seed.

        Pairs of ProxyNCA++ with separate draws differ by as much as runs of different seeds, pairs of C2 by half of it.
        """
        return self.pooling != "gsp" or "prototypes" in self.options or self.options.get("embedding") == "after"


def paper_variants(losses: tuple[str, ...] = LOSSES, poolings: tuple[str, ...] = ("gap", "gsp")) -> list[Variant]:
    """List the rows of Table 2, loss by loss."""
    return [Variant(loss, pooling) for loss in losses for pooling in poolings]


def layer_variants(losses: tuple[str, ...] = ("c2", "pnca")) -> list[Variant]:
    """List every layer of the pooling table (Supp. 1.3), ensembles and transformers in the sizes that it names."""
    plain = ("cbam", "crow", "delf", "gemax", "gemean", "gsop", "solar", "tsmk", "weldon", "gap", "gmp", "gap+gmp")
    variants = []
    for loss in losses:
        variants += [Variant(loss, pooling) for pooling in (*plain, "gsp")]
        for pooling in ("otp", "vlad"):
            variants.append(Variant(loss, pooling, "8x16"))
            variants.append(Variant(loss, pooling, LARGE, {"prototypes": 64}, {"model.dim": WIDE}))
        for layers in (1, 2, 4, 8):
            variants.append(Variant(loss, "tfm", f"{layers} layer{'s' * (layers > 1)}", {"layers": layers}))
    return variants


def train_config(
    variant: Variant, data: str, protocol: str, backbone: str, weights: str | None, seed: int, precision: str
) -> TrainConfig:
    """Return the configuration of one training: the paper's values for the protocol, with the variant's differences.

    Example:
        >>> config = train_config(Variant("pnca", "gsp"), "cub", "fair", "keras/resnet50", None, 0, "32-true")
        >>> config.model.pooling_options["epsilon"], config.schedule.warmup_epochs, config.loss.zsr
        (0.5, 1.0, 0.1)
    """
    config = conventional(data) if protocol == "conventional" else fair(data, proxies=variant.loss in PROXY_LOSSES)
    if protocol == "conventional" and backbone != "bninception":
        # Supp. "Training Procedure": batches of 112 and four times the decay for ResNet50.
        config.data.classes_per_batch, config.optimiser.weight_decay = 28, 4e-4
    if protocol == "tuning":
        # Supp. "Training Procedure": ten evaluations without a better one on the small sets, seven on the large.
        config.trainer.patience = 10 if config.trainer.patience == 15 else 7
    config.loss.name = variant.loss
    if variant.loss == "panchor" and data == "sop":
        config.optimiser.lr = 5e-6
    selects = "gsp" in variant.pooling
    config.loss.zsr = 0.1 if selects else 0.0
    config.model.backbone = backbone
    config.model.backbone_options = {} if weights is None else {"weights": weights}
    config.model.pooling = variant.pooling
    config.model.pooling_options = {**(config.model.pooling_options if selects else {}), **variant.options}
    config.trainer.seed, config.trainer.precision = seed, precision
    config.data.resident, config.data.workers = True, 0
    config.output.embeddings, config.output.report = True, False
    for name, value in variant.changes.items():
        section, _, last = name.partition(".")
        setattr(getattr(config, section), last, value)
    return config
