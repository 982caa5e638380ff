"""Find what the prototypes of a model stand for: for each, the regions of many images that are nearest to it."""

from __future__ import annotations

import html
import io
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from PIL import Image, ImageDraw

from gspool.data import BrokenImageError
from gspool.models.freezing import evaluating
from gspool.search.explanation import missing_prototypes, prototype_layer, transport
from gspool.search.explanation.overlay import css_colour, prototype_colour
from gspool.search.explanation.page import colour_mark, inline_image, whole_page
from gspool.search.model import as_input, prepare
from gspool.terminal.bar import work_bar

if TYPE_CHECKING:
    from jaxtyping import Float, Int64, UInt8
    from torch import Tensor

    from gspool.data import ImageSource
    from gspool.models import Embedder


# A token sees more than its own cell: show this many cells around it.
CELLS_AROUND = 1.5
SIDE = 112  # pixels of a region on the page
GALLERY_STYLE = """<style>
.prototype { display: flex; flex-wrap: wrap; align-items: center; gap: .4rem; margin: .6rem 0; }
.prototype img { width: 112px; height: 112px; border-radius: 6px; flex: none; }
.number { flex: none; width: 6.5rem; padding-left: .5rem; box-sizing: border-box; } .number small { opacity: .7; }
@media (max-width: 30rem) { .number { width: 100%; } .prototype img { width: 30%; height: auto; } }
</style>"""


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
    layer = prototype_layer(model)
    if layer is None or missing_prototypes(model):
        raise ValueError(missing_prototypes(model))
    if per_prototype < 1 or batch < 1:
        raise ValueError(f"per_prototype and batch must be at least 1, got {per_prototype} and {batch}")
    count = len(layer.prototypes)
    # Of each region so far its distance, its image and the place of its token.
    best = (torch.full((count, per_prototype), torch.inf), *torch.full((2, count, per_prototype), -1))
    use = torch.zeros(count, dtype=torch.float64)
    grid: tuple[int, int] | None = None
    broken: list[str] = []
    with evaluating(model), work_bar("prototypes", 0, len(source), progress, unit="images") as bar:
        for start in range(0, len(source), batch):
            images: dict[int, Tensor] = {}
            for row in range(start, min(start + batch, len(source))):
                try:
                    images[row] = seen_image(model, source, row)
                except BrokenImageError as problem:
                    broken.append(str(problem))
            if images:
                features = model.feature_map(as_input(model, torch.stack([*images.values()])))
                if features.ndim != 4:
                    raise ValueError("the tokens of this backbone form no grid over the image, so they have no regions")
                grid = (features.shape[2], features.shape[3])
                cost, plan = transport(model, features)
                use += (plan.sum(2) / plan.sum((1, 2))[:, None]).double().sum(0).cpu()
                distance, place = (each.t().cpu() for each in cost.min(2))
                best = _merged(best, (distance, torch.tensor([*images]).expand_as(place), place), per_prototype)
            bar.advance(steps=min(batch, len(source) - start))
    if grid is None:
        raise ValueError(f"no image could be read: {len(broken)} of {len(source)} are broken")
    distance, image, place = best
    seen, across = len(source) - len(broken), grid[1]
    return Regions(distance, image, place // across, place % across, use / seen, grid, seen, tuple(broken))


def _merged(best: tuple[Tensor, ...], found: tuple[Tensor, ...], kept: int) -> tuple[Tensor, ...]:
    """Merge the nearest regions so far with those of a batch; the first of each are the distances."""
    whole = [torch.cat(pair, 1) for pair in zip(best, found, strict=True)]
    # Stable: among equally near regions the earlier image stays, whatever the batch size.
    order = whole[0].argsort(dim=1, stable=True)[:, :kept]
    return tuple(each.gather(1, order) for each in whole)


def seen_image(model: Embedder, source: ImageSource, row: int) -> UInt8[Tensor, "3 H W"]:
    """Return one image of a source as the model sees it; raises a BrokenImageError if it cannot be read."""
    return prepare(Image.fromarray(source[row].permute(1, 2, 0).contiguous().numpy()), model)


def gallery_page(model: Embedder, source: ImageSource, regions: Regions, name: str) -> str:
    """Return a page with one row per prototype of the regions nearest to it, the most used first.

    The images that are shown are read again; ``name`` is what the page calls them all.
    """
    rows = []
    for prototype in regions.use.argsort(descending=True, stable=True).tolist():
        pictures = "".join(_picture(model, source, regions, prototype, each) for each in regions.of(prototype))
        rows.append(
            f'<div class="prototype" id="prototype-{prototype}" style="border-left:6px solid {css_colour(prototype)}">'
            f'<div class="number">{colour_mark(prototype)}<br><small>use {regions.use[prototype]:.1%}</small></div>'
            f"{pictures}</div>"
        )
    lead = (
        f"<p>{len(regions.use)} prototypes of a model with pooling <b>{html.escape(model.settings.pooling)}</b>, and "
        f"for each the nearest regions among {regions.images:,} images of {html.escape(name)}, one per image, nearest "
        "first. The frame marks the cell of the token; its receptive field is larger. <i>Use</i> is the share of the "
        f"pooled mass that the prototype takes over all images; even use would be {1 / len(regions.use):.1%} each.</p>"
    )
    if regions.broken:
        lead += f"<p>{len(regions.broken):,} images could not be read and were left out.</p>"
    return whole_page("Prototypes", GALLERY_STYLE + lead + "\n".join(rows))


def region_figures(source: ImageSource, regions: Regions) -> dict[str, Any]:
    """Return the regions as numbers, lists and text, ready for JSON."""
    return {
        "images": regions.images,
        "grid": list(regions.grid),
        "broken": list(regions.broken),
        "prototypes": [
            {
                "prototype": prototype,
                "use": use,
                "regions": [
                    {"image": source.describe(image), "row": row, "column": column, "distance": distance}
                    for image, row, column, distance in regions.of(prototype)
                ],
            }
            for prototype, use in enumerate(regions.use.tolist())
        ],
    }


def region_crop(
    image: torch.Tensor, grid: tuple[int, int], row: int, column: int, colour: tuple[int, int, int]
) -> Image.Image:
    """Crop a token's surroundings from the image that the model saw, and frame the token's own cell."""
    height, width = image.shape[1:]
    down, across = height / grid[0], width / grid[1]
    side = min((2 * CELLS_AROUND + 1) * max(down, across), height, width)
    # Kept inside the image: a region at the edge is off centre rather than padded.
    left = min(max((column + 0.5) * across - side / 2, 0), width - side)
    top = min(max((row + 0.5) * down - side / 2, 0), height - side)
    whole = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    crop = whole.resize((SIDE, SIDE), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
    scale = SIDE / side
    frame = [
        (column * across - left) * scale,
        (row * down - top) * scale,
        ((column + 1) * across - left) * scale - 1,
        ((row + 1) * down - top) * scale - 1,
    ]
    ImageDraw.Draw(crop).rectangle(frame, outline=colour, width=2)
    return crop


def _picture(
    model: Embedder, source: ImageSource, regions: Regions, prototype: int, region: tuple[int, int, int, float]
) -> str:
    image, row, column, distance = region
    crop = region_crop(seen_image(model, source, image), regions.grid, row, column, prototype_colour(prototype))
    buffer = io.BytesIO()
    crop.save(buffer, "JPEG", quality=85)
    words = f"{source.describe(image)}, row {row}, column {column}, distance {distance:.3f}"
    return inline_image(buffer.getvalue(), words, "jpeg").replace("<img ", f'<img title="{html.escape(words)}" ')
