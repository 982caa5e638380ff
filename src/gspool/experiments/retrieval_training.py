"""One training of a retrieval benchmark: the variant, its configuration, data on the device, what it found."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gspool import data as data_sets
from gspool.evaluation import PROTOCOLS
from gspool.experiments.runs import curve_line, fold_sets, on_engine
from gspool.models import create_backbone
from gspool.pooling import GSP
from gspool.training import FitResult, TrainConfig, fit
from gspool.training.checkpoint import BEST, LAST, PREVIOUS
from gspool.training.fit import EMBEDDINGS
from gspool.training.gpu_data import TensorSet
from gspool.training.metric_learning import build_model
from gspool.training.presets import conventional, fair, libc
from gspool.training.run_folder import MODEL, RESULT
from gspool.training.sets import on_device

if TYPE_CHECKING:
    from torch import Tensor

    from gspool.executor.run_store import Run
    from gspool.experiments.retrieval_study import Study

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
# The seed of a training is this times that of its repeat, plus its fold.
SEEDS_APART = 1_000
# Wider embeddings (8,192 numbers of VLAD and OTP) are not kept: no table joins them, and one training's take 100 MB.
WIDEST = 512
# Greedy k-center compares every feature with every prototype; this many show what there is to choose from.
MOST_TOKENS = 4_096


@dataclass(frozen=True)
class Variant:
    """One row of a table.

    Args:
        loss: a name of `gspool.losses`; "xbm+c1@100" uses the memory from step 100 on instead of the paper's 1,000.
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


def named_loss(loss: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a row's loss in `gspool.losses`, and the start of its memory where the row names one.

    Example:
        >>> named_loss("xbm+c1@100"), named_loss("c2")
        (('xbm+c1', {'start': 100}), ('c2', {}))
    """
    name, _, start = loss.partition("@")
    if start and not (start.isdecimal() and name.startswith("xbm+")):
        raise ValueError(f"the number after @ is the step at which a memory starts, as in xbm+c1@100; got {loss!r}")
    return name, {"start": int(start)} if start else {}


def train_config(
    variant: Variant, data: str, protocol: str, backbone: str, weights: str | None = None, seed: int = 0
) -> TrainConfig:
    """Return the configuration of one training: the paper's values for the protocol, with the variant's differences.

    Example:
        >>> config = train_config(Variant("pnca", "gsp"), "cub", "fair", "keras/resnet50")
        >>> config.model.pooling_options["epsilon"], config.schedule.warmup_epochs, config.loss.zsr
        (0.5, 1.0, 0.1)
    """
    name, loss_options = named_loss(variant.loss)
    if protocol != "conventional":
        config = fair(data, proxies=name in PROXY_LOSSES)
    elif name == "libc":
        config = libc(data)
    else:
        config = conventional(data)
        if backbone != "bninception":
            # Supp. "Training Procedure": batches of 112 and four times the decay for ResNet50.
            config.data.classes_per_batch, config.optimiser.weight_decay = 28, 4e-4
    if protocol == "tuning":
        # Supp. "Training Procedure": ten evaluations without a better one on the small sets, seven on the large.
        config.trainer.patience = 10 if config.trainer.patience == 15 else 7
    config.loss.name, config.loss.options = name, loss_options
    if name == "panchor" and data == "sop":
        config.optimiser.lr = 5e-6
    selects = "gsp" in variant.pooling
    config.loss.zsr = 0.1 if selects else 0.0
    config.model.backbone = backbone
    config.model.backbone_options = {} if weights is None else {"weights": weights}
    config.model.pooling = variant.pooling
    config.model.pooling_options = {**(config.model.pooling_options if selects else {}), **variant.options}
    config.trainer.seed = seed
    config.data.resident, config.data.workers = True, 0
    config.output.embeddings, config.output.report = True, False
    for name, value in variant.changes.items():
        section, _, last = name.partition(".")
        setattr(getattr(config, section), last, value)
    return config


def config_of(study: Study, variant: Variant, fold: int, seed: int, seconds: float = 0.0) -> TrainConfig:
    """Return the configuration of one training; of the tiny version a few steps of a small network."""
    chosen, own_seed = study.settings, SEEDS_APART * seed + fold
    config = train_config(variant, chosen.data, study.protocol, chosen.backbone, chosen.weights, own_seed)
    on_engine(config.trainer, study.options.device, seconds, mixed=True)
    config.output.embeddings = config.model.dim is not None and config.model.dim <= WIDEST
    if chosen.max_steps:
        config.trainer.max_steps = chosen.max_steps
    return _tiny(config) if study.options.quick else config


def _tiny(config: TrainConfig) -> TrainConfig:
    config.model.backbone, config.model.backbone_options, config.model.dim = "small_cnn", {"width": 2}, 8
    options = config.model.pooling_options
    options.update({name: value for name, value in (("prototypes", 4), ("warm_start", 8)) if options.get(name)})
    config.data.transform, config.data.classes_per_batch, config.data.images_per_class = "none", 4, 2
    config.trainer.max_steps, config.trainer.evaluate_every, config.optimiser.lr = 4, 2, 1e-3
    return config


def stripes(classes: int, per_class: int, seed: int = 0, size: int = 16) -> TensorSet:
    """Draw noisy stripes whose direction is the class: a stand-in for a benchmark that trains in seconds."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(per_class)
    at = 12 * torch.arange(size) / size
    angle = (labels * math.pi / classes)[:, None, None]
    phase = 2 * math.pi * torch.rand(len(labels), 1, 1, generator=generator)
    wave = torch.sin(at[None, None, :] * angle.cos() + at[None, :, None] * angle.sin() + phase)
    noise = torch.rand(len(labels), 3, size, size, generator=generator)
    return TensorSet.of((80 * (wave[:, None] + 1) + 90 * noise).clamp(0, 255).to(torch.uint8), labels)


def load_sets(study: Study) -> tuple[TensorSet, TensorSet]:
    """Load the images of all training classes and the test images to the device, or the stand-in."""
    options, chosen = study.options, study.settings
    if options.quick:
        return stripes(12, 5).to(options.device), stripes(6, 4, seed=1).to(options.device)
    config = config_of(study, study.variants[0], 0, 0).data
    listed = [data_sets.create(chosen.data, options.root, split) for split in ("train", "test")]
    pixels = create_backbone(chosen.backbone).pixels
    shown = sys.stderr.isatty() and options.processes == 1
    train, test = (
        on_device(images, config, pixels, options.device, training=images is listed[0], progress=shown)
        for images in listed
    )
    return train, test


def make_worker(study: Study) -> Callable[[Mapping[str, Any], float], dict[str, Any] | None]:
    """Load the data once, and return the function that makes one training after the other."""
    train, test = load_sets(study)
    variants = {variant.name: variant for variant in study.variants}

    def work(asked: Mapping[str, Any], seconds: float) -> dict[str, Any] | None:
        return train_one(study, variants[asked["variant"]], asked, seconds, train, test)

    return work


def train_one(
    study: Study, variant: Variant, asked: Mapping[str, Any], seconds: float, train: TensorSet, test: TensorSet
) -> dict[str, Any] | None:
    """Make one training in a folder of its own, or go on with it; None where time ran out before its end."""
    fold, seed, folder = asked["fold"], asked["seed"], run_folder(study, asked)
    config = config_of(study, variant, fold, seed, seconds)
    sets = fold_sets(train, test, PROTOCOLS[study.protocol].fold(train.labels, fold))
    model = None
    if not (folder / RESULT).is_file():
        model = build_model(config).to(study.options.device)
        if study.protocol == "fair" and variant.draws_own_embedding:
            share_embedding(model, build_model(config_of(study, Variant(variant.loss, "gsp"), fold, seed)))
        if variant.tokens:
            start_from_tokens(model, sets["train"], variant.tokens, config.trainer.seed)
    result = fit(config, folder, f"{variant.name}, fold {fold}, seed {seed}", model=model, sets=sets)
    if result.ending == "time":
        return None
    # A finished training needs its figures and embeddings alone; checkpoints and the model take 500 MB.
    for name in (LAST, PREVIOUS, BEST):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / MODEL, ignore_errors=True)
    return found_of(result)


def run_folder(study: Study, asked: Mapping[str, Any]) -> Path:
    """Return the folder of one training; a hash of all that was asked for tells trainings of one name apart."""
    key = hashlib.sha256(json.dumps(dict(asked), sort_keys=True).encode()).hexdigest()[:8]
    words = f"{asked['variant']} fold{asked['fold']} seed{asked['seed']} {key}"
    return study.folder / "".join(each if each.isalnum() or each in ".-+" else "_" for each in words)


def found_of(result: FitResult) -> dict[str, Any]:
    """Return what a result keeps of a training: the validation curve and the map of weights as one line each."""
    maps = result.mean_weights
    return {
        "metrics": dict(result.metrics),
        "validation": result.validation,
        "steps": result.steps,
        "best_step": result.best_step,
        "ending": result.ending,
        "entropy": result.weights_entropy,
        "seconds": result.seconds,
        "images_per_second": result.images_per_second,
        "curve": curve_line(result),
        "learned": dict(result.learned),
        "mean_weights": None if maps is None else " ".join(f"{each:.3f}" for each in maps),
    }


def share_embedding(model: Any, other: Any) -> None:
    """Let a model start with the embedding of another, where their shapes allow it."""
    mine, theirs = (getattr(each.head, "embed", None) for each in (model, other))
    if mine is None or theirs is None:
        return
    shapes = [{name: value.shape for name, value in each.state_dict().items()} for each in (mine, theirs)]
    if shapes[0] == shapes[1]:
        mine.load_state_dict(theirs.state_dict())


@torch.no_grad()
def start_from_tokens(model: Any, images: TensorSet, count: int, seed: int) -> None:
    """Choose the prototypes of a GSP layer by k-center among the embedded local features of ``count`` training images.

    The authors' reference chooses among *pooled* vectors, which average pooling has made alike. Local features differ
    more, and prototypes are compared with local features.
    """
    (layer,) = (part for part in model.modules() if isinstance(part, GSP))
    generator = torch.Generator().manual_seed(seed)
    places = torch.randperm(len(images), generator=generator)[:count]
    was_training = model.training
    model.eval()
    tokens = (
        model.head.embed(model.feature_map(images.evaluation_images(places))).flatten(2).transpose(1, 2).flatten(0, 1)
    )
    model.train(was_training)
    chosen = torch.randperm(len(tokens), generator=generator)[:MOST_TOKENS].to(tokens.device)
    layer.init_prototypes(tokens[chosen])


def embeddings_of(study: Study, run: Run) -> dict[str, Tensor] | None:
    """Return the test embeddings of a training and the classes of the images; None where they are not here."""
    from safetensors.torch import load_file

    path = run_folder(study, run.asked) / EMBEDDINGS
    return load_file(path) if path.is_file() else None
