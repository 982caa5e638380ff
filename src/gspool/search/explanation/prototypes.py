"""Find what the prototypes of a model stand for: for each, the regions of many images that are nearest to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from PIL import Image

from gspool import functional
from gspool.data import BrokenImageError
from gspool.search.explanation.image import as_model_sees, not_set_yet, prototype_layer, prototype_tokens
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
    count = layer.prototypes.shape[0]
    best = torch.full((count, per_prototype), torch.inf)
    owner = torch.full((2, count, per_prototype), -1, dtype=torch.int64)
    use, seen, done, grid = torch.zeros(count, dtype=torch.float64), 0, 0, None
    broken: list[str] = []
    with evaluating(model), work_bar("prototypes", 0, len(source), progress, unit="images") as bar:
        for rows, images in _batches(model, source, batch, broken):
            if images is not None:
                found = _distances(model, layer, images)
                if grid not in (None, found.grid):
                    raise ValueError(f"images give token grids of {grid} and {found.grid}; they must be of one size")
                grid, seen = found.grid, seen + len(rows)
                use += found.attributes
                best, owner = _merged(best, owner, found, torch.tensor(rows))
            bar.advance(steps=min(batch, len(source) - done))
            done += batch
    if grid is None:
        raise ValueError(f"no image could be read: {len(broken)} of {len(source)} are broken")
    image, place = owner
    across = grid[1]
    return Regions(best, image, place // across, place % across, use / seen, grid, seen, tuple(broken))


class _Found(NamedTuple):
    """For one batch: each prototype's nearest token in each image, and the attributes summed over the images."""

    distance: Float[Tensor, "M B"]
    place: Int64[Tensor, "M B"]
    attributes: Float[Tensor, " M"]
    grid: tuple[int, int]


def _distances(model: Embedder, layer: GSP, images: Tensor) -> _Found:
    features = model.feature_map(as_input(model, images))
    if features.ndim != 4:
        raise ValueError("the tokens of this backbone form no grid over the image, so they have no regions")
    tokens = cast("Tensor", prototype_tokens(model, features))
    # By differences: products lose digits exactly where a token is near a prototype.
    cost = torch.cdist(
        functional.clip_norm(layer.prototypes.float()).expand(len(tokens), -1, -1),
        functional.clip_norm(tokens.float()),
        compute_mode="donot_use_mm_for_euclid_dist",
    )
    plan = functional.partial_transport(cost, layer.mu, layer.epsilon).plan
    attributes = plan.sum(2) / plan.sum((1, 2))[:, None]
    nearest, place = cost.min(2)
    return _Found(
        nearest.t().cpu(), place.t().cpu(), attributes.double().sum(0).cpu(), (features.shape[2], features.shape[3])
    )


def _merged(best: Tensor, owner: Tensor, found: _Found, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Merge the nearest regions so far with those of a batch."""
    distances = torch.cat((best, found.distance), 1)
    newcomers = torch.stack((rows.expand_as(found.place), found.place))
    owners = torch.cat((owner, newcomers), 2)
    # Stable: among equally near regions the earlier image stays, whatever the batch size.
    kept, order = distances.sort(dim=1, stable=True)
    width = best.shape[1]
    return kept[:, :width], owners.gather(2, order[None, :, :width].expand(2, -1, -1))


def _batches(
    model: Embedder, source: ImageSource, batch: int, broken: list[str]
) -> Iterator[tuple[list[int], Tensor | None]]:
    """Yield batches of images as the model sees them; append those that cannot be read to ``broken``."""
    for start in range(0, len(source), batch):
        rows, images = [], []
        for row in range(start, min(start + batch, len(source))):
            try:
                images.append(seen_image(model, source, row))
                rows.append(row)
            except BrokenImageError as problem:
                broken.append(str(problem))
        yield rows, torch.stack(images) if images else None


def seen_image(model: Embedder, source: ImageSource, row: int) -> UInt8[Tensor, "3 H W"]:
    """Return one image of a source as the model sees it.

    Raises:
        BrokenImageError: if it cannot be read.
    """
    return as_model_sees(model, Image.fromarray(source[row].permute(1, 2, 0).contiguous().numpy()))


def _layer_with_prototypes(model: Embedder) -> GSP:
    layer = prototype_layer(model)
    if layer is None:
        raise ValueError(
            f"the pooling layer {model.settings.pooling!r} of this model has no prototypes; "
            "gsp, gmp+gsp and gemean+gsp have"
        )
    waiting = not_set_yet(model)
    if waiting is not None:
        raise ValueError(waiting)
    return layer
