"""What a frozen backbone sees in every collage: computed once, kept in half precision on the device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from gspool import data
from gspool.data.collage import CollageImages
from gspool.data.image_source import ArrayImages, SelectedImages
from gspool.experiments.resident import ResidentSet
from gspool.models.normalisation import PixelNormalisation

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float16, Int64, UInt8
    from torch import Tensor

    from gspool.data import ImageSet
    from gspool.data.image_set import Split
    from gspool.models.backbone import Backbone

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
TILE = 32


class Splits(NamedTuple):
    """The three parts of a data set on the device; their classes have nothing in common."""

    train: ResidentSet
    validation: ResidentSet
    test: ResidentSet


class StitchedTiles(NamedTuple):
    """Tiles on the device, and for each split which four of them make a collage.

    In the place of pixels ``parts`` hold four rows of ``tiles`` and which of them shows the object, [N, 5, 1, 1];
    ``objects`` say that as well, and ``backgrounds`` which tiles of the training split are shared by all labels.
    Labels are super-classes; ``sub_classes`` are the classes of CIFAR-100 inside them, numbered in each split.
    """

    tiles: UInt8[Tensor, "T 3 32 32"]
    parts: Splits
    objects: dict[str, Int64[Tensor, " N"]]
    backgrounds: Int64[Tensor, " P"]
    sub_classes: dict[str, Int64[Tensor, " N"]]


def stitched_tiles(root: Path | None, device: torch.device | str, most: int | None = None) -> StitchedTiles:
    """Bring the tiles of Cifar Collage to a device, and say how they are stitched; ``most`` thins every class out.

    Raises:
        FileNotFoundError: if CIFAR-100 is not under ``root``.
    """
    sets = {split: thinned(data.create("collage", root, split), most) for split in SPLITS}
    drawn = {split: quarters(images) for split, images in sets.items()}
    tiles = drawn["train"].tiles.to(device)
    objects: dict[str, Tensor] = {
        split: images.foreground for split, images in sets.items() if images.foreground is not None
    }
    parts = {
        split: ResidentSet.of(
            torch.cat([drawn[split].rows, objects[split][:, None]], dim=1)[:, :, None, None].to(device),
            sets[split].labels,
        )
        for split in SPLITS
    }
    is_object = torch.nn.functional.one_hot(objects["train"], 4).bool()
    backgrounds = drawn["train"].rows[~is_object].unique().to(device)
    # Tiles are all images of CIFAR-100, those to train first.
    fine = torch.cat([data.create("cifar100", root, part, allow_partial=True).labels for part in ("train", "test")])
    sub_classes: dict[str, Tensor] = {
        split: fine[drawn[split].rows.gather(1, objects[split][:, None])].unique(return_inverse=True)[1].flatten()
        for split in SPLITS
    }
    return StitchedTiles(tiles, Splits(**parts), objects, backgrounds, sub_classes)


class Quarters(NamedTuple):
    """All tiles, and the four rows of them that make each collage."""

    tiles: UInt8[Tensor, "T 3 32 32"]
    rows: Int64[Tensor, "N 4"]


def quarters(images: ImageSet) -> Quarters:
    """Read how collages are stitched, of a whole set or of part of one.

    Raises:
        ValueError: if these are not collages.
    """
    part = images.images
    source = part.source if isinstance(part, SelectedImages) else part
    if not isinstance(source, CollageImages):
        raise ValueError(f"{images!r} is not stitched of tiles; use the data set 'collage'")
    return Quarters(
        source.tiles, source.quarters[part.indices] if isinstance(part, SelectedImages) else source.quarters
    )


def thinned(images: ImageSet, most: int | None) -> ImageSet:
    """Keep at most so many images of each class."""
    if most is None:
        return images
    rows = torch.cat([(images.labels == label).nonzero().flatten()[:most] for label in range(images.num_classes)])
    return images.subset(rows)


def stitched(tiles: UInt8[Tensor, "T 3 32 32"], rows: Int64[Tensor, "B 4"]) -> UInt8[Tensor, "B 3 64 64"]:
    """Put four tiles together, from upper left to lower right.

    Example:
        >>> tiles = torch.arange(4, dtype=torch.uint8).view(4, 1, 1, 1).expand(4, 3, 32, 32)
        >>> picture = stitched(tiles, torch.tensor([[3, 2, 1, 0]]))
        >>> picture[0, 0, ::32, ::32].tolist()
        [[3, 2], [1, 0]]
    """
    pieces = tiles[rows].view(-1, 2, 2, 3, TILE, TILE)
    return pieces.permute(0, 3, 1, 4, 2, 5).reshape(-1, 3, 2 * TILE, 2 * TILE)


def collage_maps(backbone: Backbone, collages: StitchedTiles) -> Splits:
    """Compute the feature map of every collage, on the device where the tiles are."""
    return Splits(
        *(
            ResidentSet.of(
                feature_maps(backbone, part.pixels.flatten(1)[:, :4], lambda rows: stitched(collages.tiles, rows)),
                part.labels,
            )
            for part in collages.parts
        )
    )


def distilled_maps(
    backbone: Backbone, root: Path | None, device: torch.device | str, most: int | None = None
) -> Splits:
    """Compute the feature map of every object alone, without backgrounds."""
    sets = [thinned(data.create("distilled", root, split), most) for split in SPLITS]
    return Splits(
        *(
            ResidentSet.of(feature_maps(backbone, all_pixels(images).to(device), lambda pixels: pixels), images.labels)
            for images in sets
        )
    )


def all_pixels(images: ImageSet) -> UInt8[Tensor, "N 3 H W"]:
    """Give all images of a set at once; of an array in memory without a loop."""
    if isinstance(images.images, ArrayImages):
        return images.images.pixels
    return torch.stack([images.images[row] for row in range(len(images))])


@torch.no_grad()
def feature_maps(
    backbone: Backbone, stored: Tensor, picture: Callable[[Tensor], Tensor], batch_size: int = 512
) -> Float16[Tensor, "N C h w"]:
    """Run a backbone over everything once, in evaluation mode; ``picture`` makes images of what is stored."""
    normalise = PixelNormalisation(backbone.pixels).to(stored.device)
    backbone = backbone.eval().to(stored.device)
    maps = []
    for part in stored.split(batch_size):
        pixels = normalise(picture(part)).contiguous(memory_format=torch.channels_last)
        maps.append(backbone(pixels).half().contiguous())
    return torch.cat(maps)
