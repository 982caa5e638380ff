"""One training of the collage study: its settings, collages on the device, heads on feature maps, whole networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import nn

from gspool import data
from gspool.data.collage import TILE, CollageImages
from gspool.experiments.cifar import (
    MapHead,
    channel_statistics,
    feature_maps,
    fit_head,
    map_sets,
    read_backbone,
)
from gspool.features import TokenLayout
from gspool.models import Embedder
from gspool.models.cifar_resnet import Flavour
from gspool.training.config import HeadConfig
from gspool.training.embed import evaluate_images
from gspool.training.gpu_data import TensorSet
from gspool.training.heads import SAMPLED_PICTURES, TokenHead, head_config, start_head
from gspool.training.presets import PRESETS

if TYPE_CHECKING:
    from jaxtyping import Float, Int64, UInt8
    from torch import Tensor

    from gspool.data.image_set import Split
    from gspool.models.backbone import Backbone
    from gspool.models.embedder import Embedded
    from gspool.training import TrainConfig

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
Sets = Mapping["Split", TensorSet]
# The paper's m, mu and epsilon on Cifar Collage (Supp. 2.2), and the warm start of the authors' reference code.
GSP_OPTIONS = {"prototypes": 128, "mu": 0.2, "epsilon": 10.0, "warm_start": 1024}
ZSR = 0.5
BATCH = 64
# At the paper's 1e-3 a trainable backbone overfits within two epochs.
TUNED_LR = 1e-4
HEAD_EPOCHS = 5
LATER = {"start": "drawn", "rate": 1.0}


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
    # What is not frozen sees new backgrounds at every step; "head first" tunes after `HEAD_EPOCHS` of the head alone.
    backbone: Literal["frozen", "fine-tuned", "head first"] = "frozen"
    epochs: int = 15
    patience: int = 6  # passes without a better validation
    weight_decay: float = 0.0
    classes_per_batch: int = 16
    embedding: Literal["own", "after"] = "own"  # before or after pooling: where the layer has it, or after
    embedding_rate: float = 1.0  # factor on its learning rate; 0 keeps its random start
    labels: Literal["super-classes", "sub-classes"] = "super-classes"  # sub-classes: those of CIFAR-100
    start: Literal["drawn", "frozen"] = "drawn"  # frozen: as the frozen feature, prototypes by k-means on tokens
    rate: float = 1.0  # factor on the learning rate of queries and scores; not for "head first"

    @property
    def layer_options(self) -> dict[str, Any]:
        """Options of the pooling layer, the paper's included."""
        return {**(GSP_OPTIONS if "gsp" in self.pooling else {}), **self.options}

    def asked(self) -> dict[str, Any]:
        """Return it as plain data, the key of a finished run; runs before there was a choice of start are found."""
        return {name: value for name, value in asdict(self).items() if name not in LATER or value != LATER[name]}

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
        if self.backbone == "head first":
            config.head.steps, config.head.lr = HEAD_EPOCHS * steps, self.lr
            config.optimiser.lr = TUNED_LR
        config.output.ks = [1]
        return config


class Collages(NamedTuple):
    """All tiles on a device, and for each split which of them make a collage.

    Entries of ``sets`` are four rows of ``tiles`` and the position of the object, [N, 5]; labels are super-classes.
    ``sub_classes`` are the CIFAR-100 classes inside them, numbered in each split; ``backgrounds`` are the tiles of the
    training split that all labels share.
    """

    tiles: UInt8[Tensor, "T 3 32 32"]
    sets: dict[Split, TensorSet]
    backgrounds: Int64[Tensor, " P"]
    sub_classes: dict[Split, Int64[Tensor, " N"]]

    def objects(self, split: Split) -> Int64[Tensor, " N"]:
        """Return the quarter of every object of a split, on the device."""
        return self.sets[split].pixels[:, 4]


def read_collages(root: Path | None, device: torch.device | str) -> Collages:
    """Read the tiles of Cifar Collage onto a device, and how they are stitched."""
    # Tiles are all images of CIFAR-100, the training images first.
    fine = torch.cat([data.create("cifar100", root, part, allow_partial=True).labels for part in ("train", "test")])
    sets, sub_classes, tiles = {}, {}, torch.empty(0)
    for split in SPLITS:
        images = data.create("collage", root, split)
        assert isinstance(images.images, CollageImages)
        assert images.foreground is not None
        tiles, quarters, objects = images.images.tiles, images.images.quarters, images.foreground[:, None]
        sets[split] = TensorSet.of(
            torch.cat([quarters, objects], 1).to(device), images.labels, name="collage", split=split
        )
        sub_classes[split] = fine[quarters.gather(1, objects).flatten()].unique(return_inverse=True)[1]
        if split == "train":
            is_object = nn.functional.one_hot(images.foreground, 4).bool()
            backgrounds = quarters[~is_object].unique().to(device)
    return Collages(tiles.to(device), sets, backgrounds, sub_classes)


def stitched(tiles: UInt8[Tensor, "T 3 32 32"], rows: Int64[Tensor, "B 4"]) -> UInt8[Tensor, "B 3 64 64"]:
    """Put four tiles together, from upper left to lower right."""
    pieces = tiles[rows].view(-1, 2, 2, 3, TILE, TILE)
    return pieces.permute(0, 3, 1, 4, 2, 5).reshape(-1, 3, 2 * TILE, 2 * TILE)


def collage_maps(backbone: Backbone, collages: Collages) -> Sets:
    """Compute the feature map of every collage, where the tiles are."""
    return {
        split: replace(
            images, pixels=feature_maps(backbone, images.pixels[:, :4], lambda rows: stitched(collages.tiles, rows))
        )
        for split, images in collages.sets.items()
    }


def sets_of(training: Training, maps: Sets, collages: Collages) -> Sets:
    """Return what a training learns from: frozen maps, or tiles to stitch; with the labels it asks for.

    Validation has one CIFAR-100 class for each super-class, so both kinds of labels are evaluated alike.
    """
    sets = maps if training.backbone == "frozen" else collages.sets
    if training.labels == "super-classes":
        return sets
    return {**sets, "train": replace(sets["train"], labels=collages.sub_classes["train"], class_names=())}


def model_of(
    training: Training, maps: Sets, collages: Collages, backbone: Backbone, backend: str
) -> MapHead | CollageEmbedder:
    """Make the model of a training, its weights drawn from the seed."""
    torch.manual_seed(training.seed)
    options = {**training.layer_options, **({"backend": backend} if "gsp" in training.pooling else {})}
    if training.backbone != "frozen":
        return CollageEmbedder(backbone, training.pooling, training.dim, collages, options)
    train, unit = maps["train"].pixels, training.features == "unit"
    statistics = channel_statistics(train) if training.features == "standardised" else None
    options |= {} if training.embedding == "own" else {"embedding": training.embedding}
    return MapHead(train.shape[1], training.pooling, training.dim, unit=unit, statistics=statistics, **options)


class CollageEmbedder(Embedder):
    """An embedding model that stitches its input: four rows of the tiles and the position of the object, [B, 5].

    In training the object is put into a random quarter among random backgrounds.
    """

    def __init__(
        self, backbone: Backbone, pooling: str, dim: int, collages: Collages, options: Mapping[str, Any]
    ) -> None:
        super().__init__(backbone, pooling, dim, pooling_options=options, freeze="batchnorm")
        # Neither parameters nor buffers: a checkpoint must not copy the data set.
        self._collages = (collages,)

    def embed(self, images: Int64[Tensor, "B 5"]) -> Embedded:
        """Stitch, then embed."""
        (collages,) = self._collages
        rows, places = images.split([4, 1], dim=1)
        if self.training:
            rows = redrawn(rows.gather(1, places), collages.backgrounds)
        return super().embed(stitched(collages.tiles, rows))


def redrawn(objects: Int64[Tensor, "B 1"], backgrounds: Int64[Tensor, " P"]) -> Int64[Tensor, "B 4"]:
    """Put every object into a random quarter, and random backgrounds into the other three."""
    device = objects.device
    drawn = backgrounds[torch.randint(len(backgrounds), (len(objects), 4), device=device)]
    places = torch.randint(4, (len(objects), 1), device=device)
    return drawn.scatter(1, places, objects)


@torch.no_grad()
def weight_on_object(model: MapHead | CollageEmbedder, images: TensorSet, objects: Int64[Tensor, " N"]) -> float | None:
    """Measure the share of the weights on the object's quarter: 1/4 for equal weights, None without weights."""
    model.eval()
    shares = []
    for places in torch.arange(len(images)).split(512):
        embedded = model.embed(images.evaluation_images(places))
        if embedded.weights is None or embedded.grid is None:
            return None
        quarters = quarter_shares(embedded.weights, embedded.grid)
        shares.append(quarters.gather(1, objects[places.to(objects.device), None]))
    return float(torch.cat(shares).double().mean())


def quarter_shares(weights: Float[Tensor, "B N"], grid: tuple[int, int]) -> Float[Tensor, "B 4"]:
    """Sum the weights of a grid over its four quarters, from upper left to lower right."""
    high, wide = grid
    return weights.reshape(-1, 2, high // 2, 2, wide // 2).sum((2, 4)).flatten(1)


class CollageWorker:
    """Holds the data of a process: tiles, and the feature maps of the backbone that the last training used."""

    def __init__(self, root: Path | None, folder: Path, device: str, backend: str) -> None:
        self.root, self.folder, self.device, self.backend = root, folder, device, backend
        self.collages = read_collages(root, device)
        self._maps: tuple[tuple[str, str], Sets] | None = None

    def maps(self, training: Training) -> Sets:
        """Return the feature maps that a training learns from; those of one backbone are kept."""
        key = (training.data, str(training.flavour))
        if self._maps is None or self._maps[0] != key:
            self._maps = None  # frees the memory first
            backbone = read_backbone(self.folder, training.flavour, self.device)
            if training.data == "collage":
                self._maps = (key, collage_maps(backbone, self.collages))
            else:
                alone = {split: data.create("distilled", self.root, split) for split in SPLITS}
                self._maps = (key, map_sets(backbone, alone, self.device))
        return self._maps[1]

    def train(self, training: Training, seconds: float = 0.0) -> tuple[Any, Sets, Any]:
        """Train, and return the best model, its data and the result of `fit`; None as result if time ran out."""
        maps = self.maps(training) if "frozen" in (training.backbone, training.start) else {}
        backbone = read_backbone(self.folder, training.flavour, self.device)
        sets = sets_of(training, maps, self.collages)
        model = model_of(training, maps, self.collages, backbone, self.backend)
        # Networks of many layers are faster in bf16; GSP, losses and figures are computed in float32 all the same.
        mixed = training.backbone != "frozen" or training.pooling == "tfm"
        config = training.config(len(sets["train"]))
        if training.start == "frozen":
            # At random: collages are sorted by class.
            order = torch.randperm(len(maps["train"]), generator=torch.Generator().manual_seed(training.seed))
            places = order[:SAMPLED_PICTURES].to(maps["train"].pixels.device)
            tokens = maps["train"].pixels[places].flatten(2).mT
            layout = TokenLayout(1, 0, False, tokens.shape[1], tokens.shape[2], None, "fp16")
            head = TokenHead(model.to(self.device).head, layout, HeadConfig(prototypes="kmeans", rate=training.rate))
            start_head(head, tokens, training.seed)
            config = head_config(config, head)
        return model, sets, fit_head(config, training.asked(), self.folder, self.device, model, sets, seconds, mixed)

    def __call__(self, asked: Mapping[str, Any], seconds: float = 0.0) -> dict[str, Any] | None:
        """Train, and return the figures on the test classes; None if time ran out."""
        training = Training(**asked)
        model, sets, result = self.train(training, seconds)
        if result is None:
            return None
        found: dict[str, Any] = {
            "map@r": result.metrics["map@r"],
            "p@1": result.metrics["p@1"],
            "validation": result.validation,
            "entropy": result.weights_entropy,
            "steps": result.steps,
            "best_step": result.best_step,
            "seconds": round(result.seconds, 1),
            "curve": [round(row["map@r"], 5) for row in result.curve],
        }
        if training.data == "collage":
            test = sets["test"].to(self.device)
            found["on_object"] = weight_on_object(model, test, self.collages.objects("test"))
            inner = replace(test, labels=self.collages.sub_classes["test"], class_names=())
            found["by_sub_class"] = evaluate_images(model, inner, ks=(1,)).metrics["map@r"]
        return found
