"""What is trained in the benchmarks: the paper's rows, and how a row differs from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gspool.training import TrainConfig
from gspool.training.presets import CONVENTIONAL_LR, conventional, fair

# Losses with proxies: 32 classes of one image, a warm-up epoch, epsilon 0.5 (Supp. "Hyperparameters").
PROXY_LOSSES = ("pnca", "panchor")
LOSSES = ("c2", "pnca", "ms", "triplet", "panchor", "xbm+c1")
POOLINGS = ("gap", "gsp", "delf", "gemean", "gemean+gsp", "gmp", "gap+gmp", "gmp+gsp")
# What the paper compares in each protocol: losses, and the layer in the place of another.
COMPARED = {"fair": (("c2", "pnca"), ("gap", "gsp")), "conventional": (("xbm+c1",), ("gap+gmp", "gmp+gsp"))}
DATA = ("cub", "cars196", "sop", "inshop")
# An ensemble of this size is that wide; all other embeddings of the pooling table have 128 numbers.
LARGE, WIDE = "64x128", 8192
# The paper repeats every training three times.
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Arm:
    """One row of a table: a loss, a pooling layer, and how it differs from the paper's setting for the two.

    Args:
        loss: a name of `gspool.losses`.
        pooling: a name of `gspool.pooling`.
        variant: what the row is called besides; "" is the paper's setting.
        pooling_options: instead of the paper's.
        multipliers: factors on learning rates by part of a parameter's name.
        zsr: weight of the zero-shot regularisation; None is the paper's 0.1 for layers with prototypes.
        token_start: how many training images to choose prototypes from, by k-center on their local features, before
            the first step; 0 leaves the start to the layer.
        changes: any other values of the run, by dotted names with two underscores for the dot.
    """

    loss: str
    pooling: str
    variant: str = ""
    pooling_options: Mapping[str, Any] = field(default_factory=dict)
    multipliers: Mapping[str, float] = field(default_factory=dict)
    zsr: float | None = None
    token_start: int = 0
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name the row.

        Example:
            >>> Arm("c2", "gsp", "sharp").name
            'c2 gsp sharp'
        """
        return f"{self.loss} {self.pooling} {self.variant}".strip()


def paper_arms(losses: tuple[str, ...] = LOSSES, poolings: tuple[str, ...] = ("gap", "gsp")) -> list[Arm]:
    """List the rows of the paper's table, loss by loss."""
    return [Arm(loss, pooling) for loss in losses for pooling in poolings]


def pooling_table_arms(losses: tuple[str, ...] = ("c2", "pnca")) -> list[Arm]:
    """List every layer of the pooling table (Supp. 1.3), ensembles and transformers in the sizes that it names.

    Example:
        >>> len(pooling_table_arms(("c2",)))
        21
    """
    arms = []
    large: dict[str, Any] = {"pooling_options": {"prototypes": 64}, "changes": {"model__dim": WIDE}}
    for loss in losses:
        plain = ("cbam", "crow", "delf", "gemax", "gemean", "gsop", "solar", "tsmk", "weldon", "gap", "gmp", "gap+gmp")
        arms += [Arm(loss, pooling) for pooling in (*plain, "gsp")]
        for pooling in ("otp", "vlad"):
            arms += [Arm(loss, pooling, "8x16"), Arm(loss, pooling, LARGE, **large)]
        for layers in (1, 2, 4, 8):
            arms.append(Arm(loss, "tfm", f"{layers} layer{'s' * (layers > 1)}", {"layers": layers}))
    return arms


def settings_of(
    arm: Arm, data: str, protocol: str, backbone: str, weights: str | None, seed: int, precision: str
) -> TrainConfig:
    """Give everything about one training of an arm: the paper's values for the protocol, with the arm's differences.

    Raises:
        ValueError: if the data or the protocol is not one of the paper's.

    Example:
        >>> settings = settings_of(Arm("pnca", "gsp"), "cub", "fair", "keras/resnet50", None, 0, "32-true")
        >>> settings.model.pooling_options["epsilon"], settings.schedule.warmup_epochs, settings.loss.zsr
        (0.5, 1.0, 0.1)
    """
    if data not in DATA:
        raise ValueError(f"the paper's benchmarks are {', '.join(DATA)}, got {data!r}")
    if protocol not in ("fair", "conventional", "tuning"):
        raise ValueError(f"protocols are fair, conventional and tuning, got {protocol!r}")
    settings = fair(data, proxies=arm.loss in PROXY_LOSSES)
    if protocol == "conventional":
        settings = conventional(data)
        settings.optimiser.lr = CONVENTIONAL_LR[data]
    if protocol == "tuning":
        # Supp. "Training Procedure": ten evaluations without a better one on the small sets, seven on the large.
        settings.trainer.patience = 10 if settings.trainer.patience == 15 else 7
    if backbone != "bninception" and protocol == "conventional":
        # Supp. "Training Procedure": batches of 112 and four times the decay for ResNet50.
        settings.data.classes_per_batch, settings.optimiser.weight_decay = 28, 4e-4
    settings.loss.name = arm.loss
    if arm.loss == "panchor" and data == "sop":
        settings.optimiser.lr = 5e-6
    settings.model.backbone = backbone
    settings.model.backbone_options = {} if weights is None else {"weights": weights}
    selects = "gsp" in arm.pooling
    settings.model.pooling = arm.pooling
    settings.model.pooling_options = {**(settings.model.pooling_options if selects else {}), **arm.pooling_options}
    settings.loss.zsr = (0.1 if selects else 0.0) if arm.zsr is None else arm.zsr
    settings.optimiser.multipliers = dict(arm.multipliers)
    settings.trainer.seed, settings.trainer.precision = seed, precision
    for name, value in arm.changes.items():
        section, _, last = name.partition("__")
        setattr(getattr(settings, section), last, value)
    return settings
