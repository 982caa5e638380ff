"""Find what the prototypes of a model stand for: for each, the regions of many images that are nearest to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from PIL import Image

from gspool import functional
from gspool.data import BrokenImageError
from gspool.search.explanation.image import (
    as_model_sees,
    not_set_yet,
    prototype_layer,
    prototype_tokens,
    solved_plan,
)
from gspool.search.model_source import as_input, evaluating
from gspool.terminal.bar import work_bar

if TYPE_CHECKING:
    from jaxtyping import Float, Int64, UInt8
    from torch import Tensor

    from gspool.data import ImageSource
    from gspool.models import Embedder
    from gspool.pooling.gsp import GSP


class Regions(NamedTuple):
    """For each of M prototypes the K nearest regions, nearest first and at most one per image.

    ``image`` is the index in the source and -1 where there were fewer images than K; ``row`` and ``column`` are those
    of the token on its ``grid``. ``use`` is the mean attribute of the prototype over all images; it sums to 1.
    """

    distance: Float[Tensor, "M K"]
    image: Int64[Tensor, "M K"]
    row: Int64[Tensor, "M K"]
    column: Int64[Tensor, "M K"]
    use: Float[Tensor, " M"]
    grid: tuple[int, int]
    images: int
    broken: tuple[str, ...]

    def of(self, prototype: int) -> list[tuple[int, int, int, float]]:
        """Return image, row, column and distance of the regions of a prototype, nearest first."""
        columns = (self.image, self.row, self.column, self.distance)
        found = zip(*(column[prototype].tolist() for column in columns), strict=True)
        return [region for region in found if region[0] >= 0]


@torch.no_grad()
def nearest_regions(
    model: Embedder, source: ImageSource, per_prototype: int = 8, batch: int = 16, progress: bool = False
) -> Regions:
    """Find, among all images, the regions nearest to each prototype of a model: ``argmin_j c_ij``, one per image.

    One batch of images is held at a time, whatever their number. Images that cannot be read are named in ``broken``.

    Args:
        model: one with GSP, or a layer built on it.
        source: where the images come from, see `gspool.data.ImageSource`.
        per_prototype: K, how many regions to keep for each.
        batch: how many images to embed at a time.
        progress: whether to show a progress bar.

    Raises:
        ValueError: if the model has no prototypes (yet), its tokens form no grid, or there is no image to look at.

    Example:
        >>> from gspool import data
        >>> from gspool.models import Embedder
        >>> model = Embedder("small_cnn", pooling="gsp", dim=16, pooling_options={"prototypes": 4})
        >>> regions = nearest_regions(model, data.create("glyphs", split="test", images_per_class=1).images)
        >>> regions.distance.shape, regions.images
        (torch.Size([4, 8]), 100)
    """
    layer = _layer_with_prototypes(model)
    if per_prototype < 1 or batch < 1:
        raise ValueError(f"per_prototype and batch must be at least 1, got {per_prototype} and {batch}")
    count = len(layer.prototypes)
    # Of each region so far its distance, its image and the place of its token.
    best = (torch.full((count, per_prototype), torch.inf), *torch.full((2, count, per_prototype), -1))
    use, seen = torch.zeros(count, dtype=torch.float64), 0
    grid: tuple[int, int] | None = None
    broken: list[str] = []
    with evaluating(model), work_bar("prototypes", 0, len(source), progress, unit="images") as bar:
        for start in range(0, len(source), batch):
            rows, images = [], []
            for row in range(start, min(start + batch, len(source))):
                try:
                    images.append(seen_image(model, source, row))
                    rows.append(row)
                except BrokenImageError as problem:
                    broken.append(str(problem))
            if images:
                features = model.feature_map(as_input(model, torch.stack(images)))
                if features.ndim != 4:
                    raise ValueError("the tokens of this backbone form no grid over the image, so they have no regions")
                before, grid = grid, (features.shape[2], features.shape[3])
                if before not in (None, grid):
                    raise ValueError(f"images give token grids of {before} and {grid}; they must be of one size")
                seen += len(rows)
                distance, place, attributes = _nearest_tokens(layer, cast("Tensor", prototype_tokens(model, features)))
                use += attributes
                best = _merged(best, (distance, torch.tensor(rows).expand_as(place), place), per_prototype)
            bar.advance(steps=min(batch, len(source) - start))
    if grid is None:
        raise ValueError(f"no image could be read: {len(broken)} of {len(source)} are broken")
    distance, image, place = best
    across = grid[1]
    return Regions(distance, image, place // across, place % across, use / seen, grid, seen, tuple(broken))


def _nearest_tokens(
    layer: GSP, tokens: Float[Tensor, "B N D"]
) -> tuple[Float[Tensor, "M B"], Int64[Tensor, "M B"], Float[Tensor, " M"]]:
    """Return each prototype's nearest token in each image, by distance and place, and the sum of its attributes."""
    # By differences: products lose digits exactly where a token is near a prototype.
    cost = torch.cdist(
        functional.clip_norm(layer.prototypes.float()).expand(len(tokens), -1, -1),
        functional.clip_norm(tokens.float()),
        compute_mode="donot_use_mm_for_euclid_dist",
    )
    plan = solved_plan(layer, cost)
    attributes = plan.sum(2) / plan.sum((1, 2))[:, None]
    distance, place = cost.min(2)
    return distance.t().cpu(), place.t().cpu(), attributes.double().sum(0).cpu()


def _merged(best: tuple[Tensor, ...], found: tuple[Tensor, ...], kept: int) -> tuple[Tensor, ...]:
    """Merge the nearest regions so far with those of a batch; the first of each are the distances."""
    whole = [torch.cat(pair, 1) for pair in zip(best, found, strict=True)]
    # Stable: among equally near regions the earlier image stays, whatever the batch size.
    order = whole[0].argsort(dim=1, stable=True)[:, :kept]
    return tuple(each.gather(1, order) for each in whole)


def seen_image(model: Embedder, source: ImageSource, row: int) -> UInt8[Tensor, "3 H W"]:
    """Return one image of a source as the model sees it.

    Raises:
        BrokenImageError: if it cannot be read.
    """
    return as_model_sees(model, Image.fromarray(source[row].permute(1, 2, 0).contiguous().numpy()))


def _layer_with_prototypes(model: Embedder) -> GSP:
    layer, waiting = prototype_layer(model), not_set_yet(model)
    if layer is None:
        raise ValueError(
            f"the pooling layer {model.settings.pooling!r} of this model has no prototypes; "
            "gsp, gmp+gsp and gemean+gsp have"
        )
    if waiting is not None:
        raise ValueError(waiting)
    return layer
