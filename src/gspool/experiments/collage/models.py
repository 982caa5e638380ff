"""The models of the collage study: a head on stored feature maps, and a network that stitches what it sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import nn

from gspool.experiments.collage.maps import StitchedTiles, stitched
from gspool.experiments.resident import FeatureMapEmbedder
from gspool.models import Embedder

if TYPE_CHECKING:
    from jaxtyping import Float, Float16, Int64
    from torch import Tensor

    from gspool.models import Freeze
    from gspool.models.backbone import Backbone
    from gspool.models.embedded import Embedded

Features = Literal["plain", "standardised", "unit"]


class ChannelStatistics(NamedTuple):
    """Mean and standard deviation of every channel."""

    mean: Float[Tensor, "C 1 1"]
    std: Float[Tensor, "C 1 1"]


def channel_statistics(maps: Float16[Tensor, "N C h w"], most: int = 2_000) -> ChannelStatistics:
    """Measure the channels of the first maps; a channel that never speaks is left as it is."""
    some = maps[:most].float()
    std = some.std((0, 2, 3))[:, None, None]
    return ChannelStatistics(some.mean((0, 2, 3))[:, None, None], torch.where(std > 0, std, 1.0))


class MapHead(FeatureMapEmbedder):
    """Pool and embed stored feature maps: as they are, with every channel standardised, or every token of length 1.

    ``embedding`` is where the local embedding stands: the layer's ``own`` place, or ``after`` pooling.

    Example:
        >>> head = MapHead(8, "gap", 4, "unit")
        >>> head.embed(torch.rand(2, 8, 4, 4).half()).embedding.shape
        torch.Size([2, 4])
    """

    def __init__(
        self,
        channels: int,
        pooling: str,
        dim: int,
        features: Features = "plain",
        statistics: ChannelStatistics | None = None,
        embedding: Literal["own", "after"] = "own",
        **options: Any,
    ) -> None:
        place = {} if embedding == "own" else {"embedding": embedding}
        super().__init__(channels, pooling, dim, **place, **options)
        if (features == "standardised") != (statistics is not None):
            raise ValueError(f"statistics belong to standardised features and to no others, got {features!r}")
        self.features, self.statistics = features, statistics

    def embed(self, images: Float16[Tensor, "B C h w"]) -> Embedded:
        """Embed maps that are stored in half precision, in single precision."""
        maps = images.float()
        if self.statistics is not None:
            maps = (maps - self.statistics.mean) / self.statistics.std
        elif self.features == "unit":
            maps = F.normalize(maps, dim=1)
        return super().embed(maps)


class CollageEmbedder(nn.Module):
    """An embedding model whose input says which tiles to stitch; in training it stitches the object among others.

    The input holds four rows of the tiles and the place of the object, [B, 5, 1, 1].
    """

    def __init__(
        self,
        backbone: Backbone,
        pooling: str,
        dim: int,
        collages: StitchedTiles,
        options: Mapping[str, Any],
        redraw: bool = True,
    ) -> None:
        super().__init__()
        self.model = Embedder(backbone, pooling, dim, pooling_options=options, freeze="batchnorm")
        # Neither parameters nor buffers: checkpoints of the best epoch must not copy the data set.
        self.tiles, self.backgrounds = (collages.tiles,), (collages.backgrounds,)
        self.redraw = redraw

    @property
    def out_dim(self) -> int:
        """Length of the embedding."""
        return self.model.out_dim

    def freeze(self, freeze: Freeze) -> Self:
        """Hold part of the backbone."""
        self.model.freeze(freeze)
        return self

    def embed(self, images: Int64[Tensor, "B 5 1 1"]) -> Embedded:
        """Stitch, then embed."""
        rows, places = images.flatten(1).split([4, 1], dim=1)
        if self.training and self.redraw:
            rows = redrawn(rows.gather(1, places), self.backgrounds[0])
        return self.model.embed(stitched(self.tiles[0], rows))


def redrawn(objects: Int64[Tensor, "B 1"], backgrounds: Int64[Tensor, " P"]) -> Int64[Tensor, "B 4"]:
    """Put every object into a random quarter, with random backgrounds in the other three.

    Example:
        >>> rows = redrawn(torch.tensor([[7], [8]]), torch.tensor([1, 2]))
        >>> [int((row > 6).sum()) for row in rows]
        [1, 1]
    """
    device = objects.device
    drawn = backgrounds[torch.randint(len(backgrounds), (len(objects), 4), device=device)]
    places = torch.randint(4, (len(objects), 1), device=device)
    return drawn.scatter(1, places, objects)
