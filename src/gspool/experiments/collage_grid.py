"""The grid of the collage study as plain data: one training, the rows of the tables, the search of settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from gspool.experiments.cifar_backbone import FLAVOURS
from gspool.models.cifar_resnet import Flavour
from gspool.training.presets import PRESETS

if TYPE_CHECKING:
    from gspool.training import TrainConfig

LOSSES = {"c2": "C2", "pnca": "PNCA"}
BACKBONE_NAMES = {
    "postactivation": "ResNet20 (post-activation)",
    "preactivation-bottleneck": "ResNet20 (pre-activation)",
}
# The paper's m, mu and epsilon on Cifar Collage (Supp. 2.2), and the warm start of the authors' reference code.
GSP_OPTIONS = {"prototypes": 128, "mu": 0.2, "epsilon": 10.0, "warm_start": 1024}
ZSR = 0.5
BATCH = 64


@dataclass(frozen=True)
class Training:
    """One training; the defaults are the paper's where it has any (Supp. 2.2).

    With 15 passes and a patience of 6, GSP was best on validation after 1 to 11 passes, and GAP at the paper's rate
    gained at most 0.2 points in its last five.
    """

    pooling: str
    loss: str
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)  # of the layer, besides the paper's for GSP
    dim: int = 128
    zsr: float = 0.0  # lambda, the weight of the zero-shot regularisation
    lr: float = 1e-3
    proxies: float = 1.0  # factor on the learning rate of the proxies
    features: Literal["plain", "standardised", "unit"] = "plain"  # of a frozen backbone: channels, or tokens
    flavour: Flavour = "postactivation"
    data: Literal["collage", "distilled"] = "collage"  # distilled: the objects alone
    backbone: Literal["frozen", "fine-tuned"] = "frozen"  # fine-tuned: new backgrounds at every step
    epochs: int = 15
    patience: int = 6  # passes without a better validation
    weight_decay: float = 0.0
    classes_per_batch: int = 16
    embedding: Literal["own", "after"] = "own"  # before or after pooling: where the layer has it, or after
    embedding_rate: float = 1.0  # factor on its learning rate; 0 keeps its random start
    labels: Literal["super-classes", "sub-classes"] = "super-classes"  # sub-classes: those of CIFAR-100

    @property
    def layer_options(self) -> dict[str, Any]:
        """Options of the pooling layer, the paper's included."""
        return {**(GSP_OPTIONS if "gsp" in self.pooling else {}), **self.options}

    def asked(self) -> dict[str, Any]:
        """Return it as plain data, the key of a finished run."""
        return asdict(self)

    def config(self, train_images: int) -> TrainConfig:
        """Return the configuration of `gspool.training.fit`, from the preset of the collage study."""
        config = PRESETS["paper/collage"]()
        config.data.classes_per_batch = self.classes_per_batch
        config.data.images_per_class = BATCH // self.classes_per_batch
        steps = max(train_images // config.data.batch_size, 1)
        config.loss.name, config.loss.zsr = self.loss, self.zsr
        config.optimiser.lr, config.optimiser.proxies = self.lr, self.proxies
        config.optimiser.weight_decay = self.weight_decay
        if self.embedding_rate != 1.0:
            config.optimiser.multipliers = {"model.head.embed": self.embedding_rate}
        config.optimiser.clip = 0.0  # the paper's "default Adam" does not clip
        config.model.pooling, config.model.pooling_options = self.pooling, self.layer_options
        config.model.dim, config.model.freeze = self.dim, "batchnorm"
        config.trainer.max_steps, config.trainer.evaluate_every = self.epochs * steps, steps
        config.trainer.patience, config.trainer.seed = self.patience, self.seed
        config.output.ks = [1]
        return config


class Row(NamedTuple):
    """A row of the pooling table: layer, settings, the paper's MAP@R with C2 and with PNCA where it has the row."""

    pooling: str
    changes: dict[str, Any]
    paper: tuple[float, float] | None = None


_LARGE = {"dim": 8192, "options": {"prototypes": 64}}
# "Evaluation of feature pooling methods", its first two columns. The paper's GSP is with the regularisation.
ROWS = {
    "CBAM": Row("cbam", {}, (7.87, 10.99)),
    "CroW": Row("crow", {}, (10.09, 11.48)),
    "DeLF": Row("delf", {}, (11.44, 24.83)),
    # GeMax's ridge of 1 assumes unit descriptors; those of this network have length 20.
    "GeMax": Row("gemax", {"features": "unit"}, (7.04, 7.83)),
    "GeMax, tokens as they are": Row("gemax", {}),
    "GeMean": Row("gemean", {}, (10.97, 10.60)),
    "GSoP": Row("gsop", {}, (11.15, 17.73)),
    "OTP-(8x16)": Row("otp", {}, (7.02, 11.55)),
    "OTP-(64x128)": Row("otp", _LARGE, (7.57, 11.79)),
    "SOLAR": Row("solar", {}, (17.30, 20.36)),
    "TFM-1": Row("tfm", {"options": {"layers": 1}}, (8.84, 10.83)),
    "TFM-2": Row("tfm", {"options": {"layers": 2}}, (16.48, 21.00)),
    "TFM-4": Row("tfm", {"options": {"layers": 4}}, (18.51, 21.56)),
    "TFM-8": Row("tfm", {"options": {"layers": 8}}, (18.18, 19.68)),
    "T-SMK": Row("tsmk", {}, (9.21, 13.15)),
    "VLAD-(8x16)": Row("vlad", {}, (21.73, 19.68)),
    "VLAD-(64x128)": Row("vlad", _LARGE, (22.52, 21.15)),
    "WELDON": Row("weldon", {}, (13.81, 20.38)),
    "GAP": Row("gap", {}, (8.09, 10.68)),
    "GMP": Row("gmp", {}, (9.53, 11.25)),
    "GMP+GAP": Row("gap+gmp", {}, (10.01, 11.85)),
    "GMP+GSP": Row("gmp+gsp", {}),
    "GeMean+GSP": Row("gemean+gsp", {}),
    "GSP": Row("gsp", {}),
    "GSP+ZSR": Row("gsp", {"zsr": ZSR}, (22.68, 27.61)),
}
DISTILLED = ("GAP", "GSP")
FINE_TUNED = ("GAP", "GMP", "GSP", "GSP+ZSR")
TUNED = ("GAP", "DeLF", "GeMean+GSP", "GSP", "GSP+ZSR")

# By row, loss and seed.
Trainings = dict[tuple[str, str, int], Training]


def paper_tables(seeds: tuple[int, ...], epochs: int = 15, patience: int = 6, tuned: int = 8) -> dict[str, Trainings]:
    """Return the trainings of the tables at the paper's settings; ``tuned`` limits the passes of fine-tuning.

    Example:
        >>> {name: len(table) for name, table in paper_tables((0, 1, 2)).items()}
        {'frozen': 150, 'distilled': 12, 'fine_tuned': 24}
    """

    def table(names: tuple[str, ...], **changes: Any) -> Trainings:
        usual = {"epochs": epochs, "patience": patience}
        return {
            (name, loss, seed): Training(ROWS[name].pooling, loss, seed, **{**usual, **ROWS[name].changes, **changes})
            for name in names
            for loss in LOSSES
            for seed in seeds
        }

    return {
        "frozen": table(tuple(ROWS)),
        "distilled": table(DISTILLED, data="distilled"),
        # At the paper's 1e-3 a trainable backbone overfits within two epochs.
        "fine_tuned": table(FINE_TUNED, backbone="fine-tuned", lr=1e-4, epochs=tuned),
    }


def tuned_table(best: Mapping[tuple[str, str, str], Training], seeds: tuple[int, ...]) -> Trainings:
    """Return GAP and GSP at the best settings of the search, by (pooling, loss, flavour), for every seed.

    DeLF and GeMean+GSP, which lead at the paper's settings, are trained at GSP's settings as far as they apply.
    """
    table: Trainings = {}
    for (pooling, loss, flavour), training in best.items():
        rows = {"GAP": training}
        if pooling == "gsp":
            rows = {
                "GSP": replace(training, zsr=0.0),
                "GSP+ZSR": replace(training, zsr=training.zsr or ZSR),
                "GeMean+GSP": replace(training, pooling="gemean+gsp", zsr=0.0),
                "DeLF": replace(training, pooling="delf", options={}, zsr=0.0),
            }
        for name, settings in rows.items():
            for seed in seeds:
                table[tuned_name(name, flavour), loss, seed] = replace(settings, seed=seed)
    return table


def tuned_name(row: str, flavour: str) -> str:
    """Name a tuned row: the backbone is added where it is not the usual one."""
    return row if flavour == FLAVOURS[0] else f"{row}, {BACKBONE_NAMES[flavour]}"


class Variant(NamedTuple):
    """One setting that differs from the paper's."""

    name: str
    setting: str
    changes: dict[str, Any]


AS_THE_PAPER = "as the paper"
OTHER_BACKBONE = BACKBONE_NAMES["preactivation-bottleneck"]
START = {"postactivation": AS_THE_PAPER, "preactivation-bottleneck": OTHER_BACKBONE}
TOGETHER = {flavour: f"what helped, together, {name}" for flavour, name in BACKBONE_NAMES.items()}
AROUND = {flavour: f"around {name}, " for flavour, name in BACKBONE_NAMES.items()}
# The paper: lr 1e-3, 16 classes x 4 images, no weight decay. It does not say how features are scaled, how fast proxies
# and the local embedding learn, nor whether labels are super-classes.
ANY_LAYER = (
    *(Variant(f"lr {shown}", "lr", {"lr": lr}) for shown, lr in (("1e-4", 1e-4), ("3e-4", 3e-4), ("1e-2", 1e-2))),
    Variant("standardised features", "features", {"features": "standardised"}),
    Variant("tokens of length 1", "features", {"features": "unit"}),
    Variant(OTHER_BACKBONE, "flavour", {"flavour": "preactivation-bottleneck"}),
    *(Variant(f"weight decay {decay:g}", "decay", {"weight_decay": decay}) for decay in (1e-4, 1e-3)),
    Variant("batches of 8 x 8", "sampler", {"classes_per_batch": 8}),
    Variant("batches of 4 x 16", "sampler", {"classes_per_batch": 4}),
    Variant("labels are sub-classes", "labels", {"labels": "sub-classes"}),
    Variant("embedding learns x0.1", "embedding rate", {"embedding_rate": 0.1}),
    Variant("embedding as drawn", "embedding rate", {"embedding_rate": 0.0}),
)
PROXIES = (Variant("proxies x100", "proxies", {"proxies": 100.0}),)
GSP_ONLY = (
    *(Variant(f"epsilon {e:g}", "epsilon", {"options": {"epsilon": e}}) for e in (2.0, 5.0, 20.0, 40.0, 80.0, 160.0)),
    *(Variant(f"mu {mu:g}", "mu", {"options": {"mu": mu}}) for mu in (0.05, 0.1, 0.3)),
    *(Variant(f"{count} prototypes", "prototypes", {"options": {"prototypes": count}}) for count in (64, 256)),
    *(Variant(f"ZSR {weight:g}", "zsr", {"zsr": weight}) for weight in (0.1, 0.5)),
    Variant("embedded after pooling", "embedding", {"embedding": "after"}),
    Variant("random prototypes", "start", {"options": {"warm_start": 0}}),
)
ROUNDS = 2
SEARCHED = tuple((pooling, loss) for pooling in ("gap", "gsp") for loss in LOSSES)

# By pooling, loss and name of the variant.
Key = tuple[str, str, str]
Variants = dict[Key, Training]
Figures = Mapping[Key, Mapping[str, Any]]


def variants(pooling: str, loss: str) -> tuple[Variant, ...]:
    """Return the single settings to try for a layer and a loss."""
    return (*ANY_LAYER, *(PROXIES if loss == "pnca" else ()), *(GSP_ONLY if pooling == "gsp" else ()))


def changed(training: Training, *changes: Mapping[str, Any]) -> Training:
    """Apply changes in order; options of the layer are merged.

    Example:
        >>> changed(Training("gsp", "c2", options={"mu": 0.1}), {"lr": 0.1}, {"options": {"epsilon": 5.0}}).options
        {'mu': 0.1, 'epsilon': 5.0}
    """
    for change in changes:
        options = {**training.options, **change.get("options", {})}
        training = replace(training, **{**change, "options": options})
    return training


def single_variants(**usual: Any) -> Variants:
    """Return the first stage of the search: the paper's settings, and one setting at a time away from them."""
    found: Variants = {}
    for pooling, loss in SEARCHED:
        start = Training(pooling, loss, **usual)
        found[pooling, loss, AS_THE_PAPER] = start
        for variant in variants(pooling, loss):
            found[pooling, loss, variant.name] = changed(start, variant.changes)
    return found


def search(
    train: Callable[[Variants], Figures], first: Variants, rounds: int = ROUNDS
) -> tuple[Variants, dict[Key, tuple[str, Training]]]:
    """Search settings by validation: single changes, all that helped together, then neighbours of the best.

    Returns:
        All variants tried, and the best by (pooling, loss, flavour) with its name. Backbones are searched apart.
    """
    tried, found = dict(first), dict(train(first))
    near = [partial(_neighbours, number) for number in range(1, rounds + 1)]
    stages: list[Callable[[Variants, Figures], Variants]] = [_together, *near]
    for stage in stages:
        more = stage(tried, found)
        tried |= more
        found |= train(more)
    return {key: training for key, training in tried.items() if key in found}, best_of(tried, found)


def _together(tried: Variants, found: Figures) -> Variants:
    """Join the best value of every setting that beat the paper's, with each backbone."""
    joined: Variants = {}
    for pooling, loss in SEARCHED:
        reached = {key[2]: figures["validation"] for key, figures in found.items() if key[:2] == (pooling, loss)}
        helped: dict[str, Variant] = {}
        for each in variants(pooling, loss) if AS_THE_PAPER in reached else ():
            beaten = helped[each.setting].name if each.setting in helped else AS_THE_PAPER
            if each.setting != "flavour" and each.name in reached and reached[each.name] > reached[beaten]:
                helped[each.setting] = each
        if helped:
            training = changed(tried[pooling, loss, AS_THE_PAPER], *(each.changes for each in helped.values()))
            for flavour in FLAVOURS:
                joined[pooling, loss, TOGETHER[flavour]] = replace(training, flavour=flavour)
    return joined


def _neighbours(number: int, tried: Variants, found: Figures) -> Variants:
    """Return the untried neighbours of the best training of every layer, loss and backbone."""
    done = [training for key, training in tried.items() if key in found]
    return {
        (pooling, loss, f"{AROUND[flavour]}round {number}: {name}"): training
        for (pooling, loss, flavour), (_, best) in best_of(tried, found).items()
        for name, training in neighbours(best).items()
        if training not in done
    }


def neighbours(training: Training) -> dict[str, Training]:
    """Return trainings with one setting multiplied or divided."""
    near = {f"lr {training.lr * by:.3g}": replace(training, lr=training.lr * by) for by in (3.0, 1 / 3)}
    for name in ("epsilon", "mu") if training.pooling == "gsp" else ():
        for by in (2.0, 0.5):
            value = training.layer_options[name] * by
            near[f"{name} {value:.3g}"] = changed(training, {"options": {name: value}})
    return near


def best_of(tried: Variants, found: Figures) -> dict[Key, tuple[str, Training]]:
    """Return the best variant by validation for each (pooling, loss, flavour), with its name."""
    best: dict[Key, tuple[str, Training]] = {}
    for (pooling, loss, name), training in tried.items():
        if (pooling, loss, name) in found:
            place = (pooling, loss, str(training.flavour))
            reached = found[pooling, loss, name]["validation"]
            if place not in best or reached > found[pooling, loss, best[place][0]]["validation"]:
                best[place] = (name, training)
    return best
