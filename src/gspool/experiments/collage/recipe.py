"""What is trained in the collage study and how: plain data, by which a finished training is found again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from gspool.models.cifar_resnet import Flavour
from gspool.training.presets import PRESETS

if TYPE_CHECKING:
    from gspool.experiments.collage.models import Features
    from gspool.training import TrainConfig

# Supp. 2.2; the paper's m, mu and epsilon on Cifar Collage, and the start of the authors' reference implementation.
GSP_OPTIONS = {"prototypes": 128, "mu": 0.2, "epsilon": 10.0, "warm_start": 1024}
GSP_LAYERS = ("gsp", "gmp+gsp", "gemean+gsp")
ZSR = 0.5
BATCH = 64
# Layers that solve linear systems: a solver asks the device whether it succeeded, which no graph can hold.
SOLVING = ("gemax",)
# Settings that the study learned to vary later. At their defaults they are not part of what was asked, so that what
# was finished before them is still found.
ADDED = ("weight_decay", "classes_per_batch", "embedding", "embedding_rate", "labels")


@dataclass(frozen=True)
class Training:
    """What is trained and how; the defaults are the paper's where it has any (Supp. 2.2).

    Fifteen passes, and none after six in vain: with these limits GSP was best on validation after one to eleven passes,
    at the paper's rate mostly after two, and GAP at the paper's rate gained at most 0.2 points in its last five.

    Args:
        pooling: a name of `gspool.pooling.list()`.
        loss: ``c2`` or ``pnca``.
        seed: of weights and batches.
        options: of the pooling layer; those of GSP are the paper's where not given.
        dim: length of the embedding.
        zsr: weight of the zero-shot regularisation.
        lr: learning rate at the start.
        proxies: factor on it for the proxies of the loss.
        features: what is done to the maps of a frozen backbone.
        flavour: of ResNet20.
        data: ``collage``, or ``distilled``, the objects alone.
        backbone: ``frozen``, or ``fine-tuned`` on collages that are stitched anew whenever they are seen.
        epochs: passes over the data at most.
        patience: passes without a better validation before it stops.
        weight_decay: L2 in the gradient, as Adam has it.
        classes_per_batch: a batch has 64 images, equally many of each of so many classes.
        embedding: where the local embedding stands, ``own`` place of the layer or ``after`` pooling (frozen only).
        embedding_rate: factor on the learning rate of that embedding; 0 leaves it as it was drawn.
        labels: what is learned, the 16 super-classes or the two classes of CIFAR-100 inside each (collages only).
    """

    pooling: str
    loss: str
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    dim: int = 128
    zsr: float = 0.0
    lr: float = 1e-3
    proxies: float = 1.0
    features: Features = "plain"
    flavour: Flavour = "postactivation"
    data: Literal["collage", "distilled"] = "collage"
    backbone: Literal["frozen", "fine-tuned"] = "frozen"
    epochs: int = 15
    patience: int = 6
    weight_decay: float = 0.0
    classes_per_batch: int = 16
    embedding: Literal["own", "after"] = "own"
    embedding_rate: float = 1.0
    labels: Literal["super-classes", "sub-classes"] = "super-classes"

    def asked(self) -> dict[str, Any]:
        """Give it as plain data, by which a finished training is found again.

        Example:
            >>> "weight_decay" in Training("gap", "c2").asked()
            False
            >>> Training("gap", "c2", weight_decay=0.1).asked()["weight_decay"]
            0.1
        """
        usual = {each.name: each.default for each in fields(self) if each.name in ADDED}
        return {name: value for name, value in asdict(self).items() if name not in usual or usual[name] != value}

    @property
    def layer_options(self) -> dict[str, Any]:
        """Options of the pooling layer, the paper's included."""
        return {**(GSP_OPTIONS if self.pooling in GSP_LAYERS else {}), **self.options}

    @property
    def can_be_captured(self) -> bool:
        """Whether a step of it fits into a CUDA graph."""
        return self.pooling not in SOLVING

    @property
    def mixed(self) -> bool:
        """Whether a GPU computes features in bf16: where networks of many layers learn, which is most of their time."""
        return self.backbone == "fine-tuned" or self.pooling == "tfm"

    @property
    def cost(self) -> float:
        """Estimate the seconds it takes among others on one H200; only the order matters.

        Example:
            >>> Training("gap", "c2", backbone="fine-tuned").cost > Training("tfm", "c2", options={"layers": 8}).cost
            True
        """
        if self.backbone == "fine-tuned":
            return 40.0
        layers = float(self.layer_options.get("layers", 0))
        large, solving = 6.0 * (self.dim > 1_000), 8.0 * (not self.can_be_captured)
        selecting = 2.0 * (self.pooling in GSP_LAYERS) + 2.0 * bool(self.zsr)
        return 4.0 + 3.5 * layers + large + solving + selecting + (self.lr < 1e-3)


def settings_of(training: Training, train_images: int) -> TrainConfig:
    """Turn it into the settings of a run, starting from the preset of the collage study."""
    config = PRESETS["paper/collage"]()
    config.data.classes_per_batch = training.classes_per_batch
    config.data.images_per_class = BATCH // training.classes_per_batch
    steps = max(train_images // config.data.batch_size, 1)
    config.loss.name, config.loss.zsr = training.loss, training.zsr
    config.optimiser.lr, config.optimiser.proxies = training.lr, training.proxies
    config.optimiser.weight_decay = training.weight_decay
    if training.embedding_rate != 1.0:
        config.optimiser.multipliers = {"model.head.embed": training.embedding_rate}
    # "Default Adam" clips nothing.
    config.optimiser.clip = 0.0
    config.model.pooling, config.model.pooling_options = training.pooling, training.layer_options
    config.model.freeze = "batchnorm"
    config.trainer.max_steps, config.trainer.evaluate_every = training.epochs * steps, steps
    config.trainer.patience, config.trainer.seed = training.patience, training.seed
    config.output.ks = [1]
    return config
