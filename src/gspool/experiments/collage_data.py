"""Data and models of the collage study: tiles and feature maps on the device, heads on maps, whole networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import nn

from gspool import data
from gspool.data.collage import TILE, CollageImages
from gspool.experiments.cifar_backbone import MapHead, channel_statistics, feature_maps, map_sets
from gspool.models import Embedder
from gspool.training.gpu_data import TensorSet

if TYPE_CHECKING:
    from jaxtyping import Float, Int64, UInt8
    from torch import Tensor

    from gspool.data.image_set import Split
    from gspool.experiments.collage_grid import Training
    from gspool.models import Freeze
    from gspool.models.backbone import Backbone
    from gspool.models.embedded import Embedded

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
Sets = Mapping["Split", TensorSet]


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
    """Read the tiles of Cifar Collage onto a device, and how they are stitched.

    Raises:
        FileNotFoundError: if CIFAR-100 is not under ``root``.
    """
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
    """Put four tiles together, from upper left to lower right.

    Example:
        >>> tiles = torch.arange(4, dtype=torch.uint8).view(4, 1, 1, 1).expand(4, 3, 32, 32)
        >>> stitched(tiles, torch.tensor([[3, 2, 1, 0]]))[0, 0, ::32, ::32].tolist()
        [[3, 2], [1, 0]]
    """
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


def object_maps(backbone: Backbone, root: Path | None, device: torch.device | str) -> Sets:
    """Compute the feature map of every object alone, without backgrounds."""
    return map_sets(backbone, {split: data.create("distilled", root, split) for split in SPLITS}, device)


def sets_of(training: Training, maps: Sets, collages: Collages) -> Sets:
    """Return what a training learns from: frozen maps, or tiles to stitch; with the labels it asks for.

    Validation has one CIFAR-100 class for each super-class, so both kinds of labels are evaluated alike.

    Raises:
        ValueError: if sub-classes are asked for of the objects alone.
    """
    sets = maps if training.backbone == "frozen" else collages.sets
    if training.labels == "super-classes":
        return sets
    if training.data != "collage":
        raise ValueError(f"sub-classes are known for collages, got data {training.data!r}; use labels='super-classes'")
    return {**sets, "train": replace(sets["train"], labels=collages.sub_classes["train"], class_names=())}


def model_of(
    training: Training, maps: Sets, collages: Collages, backbone: Backbone, backend: str
) -> MapHead | CollageEmbedder:
    """Make the model of a training, its weights drawn from the seed.

    Raises:
        ValueError: if the local embedding is moved and the backbone is not frozen.
    """
    torch.manual_seed(training.seed)
    options = {**training.layer_options, **({"backend": backend} if "gsp" in training.pooling else {})}
    if training.backbone == "frozen":
        train = maps["train"].pixels
        statistics = channel_statistics(train) if training.features == "standardised" else None
        options |= {} if training.embedding == "own" else {"embedding": training.embedding}
        channels, features = train.shape[1], training.features
        return MapHead(channels, training.pooling, training.dim, features=features, statistics=statistics, **options)
    if training.embedding != "own":
        raise ValueError("the position of the local embedding is varied on frozen maps only; use backbone='frozen'")
    return CollageEmbedder(backbone, training.pooling, training.dim, collages, options)


class CollageEmbedder(nn.Module):
    """An embedding model that stitches its input: four rows of the tiles and the position of the object, [B, 5].

    In training the object is put into a random quarter among random backgrounds.
    """

    def __init__(
        self, backbone: Backbone, pooling: str, dim: int, collages: Collages, options: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.embedder = Embedder(backbone, pooling, dim, pooling_options=dict(options), freeze="batchnorm")
        # Neither parameters nor buffers: a checkpoint must not copy the data set.
        self._collages = (collages,)

    @property
    def out_dim(self) -> int:
        """Length of the embedding."""
        return self.embedder.out_dim

    @property
    def head(self) -> nn.Module:
        """The pooling layer and the embedding."""
        return self.embedder.head

    def freeze(self, freeze: Freeze) -> Self:
        """Freeze part of the backbone."""
        self.embedder.freeze(freeze)
        return self

    def embed(self, images: Int64[Tensor, "B 5"]) -> Embedded:
        """Stitch, then embed."""
        (collages,) = self._collages
        rows, places = images.split([4, 1], dim=1)
        if self.training:
            rows = redrawn(rows.gather(1, places), collages.backgrounds)
        return self.embedder.embed(stitched(collages.tiles, rows))


def redrawn(objects: Int64[Tensor, "B 1"], backgrounds: Int64[Tensor, " P"]) -> Int64[Tensor, "B 4"]:
    """Put every object into a random quarter, and random backgrounds into the other three.

    Example:
        >>> rows = redrawn(torch.tensor([[7], [8]]), torch.tensor([1, 2]))
        >>> [int((row > 6).sum()) for row in rows]
        [1, 1]
    """
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
    """Sum the weights of a grid over its four quarters, from upper left to lower right.

    Example:
        >>> quarter_shares(torch.tensor([[0.1, 0.2, 0.3, 0.4]]), (2, 2))
        tensor([[0.1000, 0.2000, 0.3000, 0.4000]])
    """
    high, wide = grid
    return weights.reshape(-1, 2, high // 2, 2, wide // 2).sum((2, 4)).flatten(1)
