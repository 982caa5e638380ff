"""The prototypes of a model as one HTML page that needs no other file."""

from __future__ import annotations

import html
import io
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image, ImageDraw

from gspool.search.explain_overlay import css_colour, prototype_colour
from gspool.search.explain_page import colour_mark, inline_image, whole_page
from gspool.search.prototype_gallery import seen_image

if TYPE_CHECKING:
    from gspool.data import ImageSource
    from gspool.models import Embedder
    from gspool.search.prototype_gallery import Regions

# A token sees more than its own cell: this many cells to each side are shown around it.
CELLS_AROUND = 1.5
SIDE = 112  # pixels of a region on the page
GALLERY_STYLE = """<style>
.prototype { display: flex; flex-wrap: wrap; align-items: center; gap: .4rem; margin: .6rem 0; }
.prototype img { width: 112px; height: 112px; border-radius: 6px; flex: none; }
.number { flex: none; width: 6.5rem; } .number small { opacity: .7; }
</style>"""


def gallery_page(model: Embedder, source: ImageSource, regions: Regions, name: str) -> str:
    """Show each prototype as a row of the regions nearest to it, the most used prototype first.

    Args:
        model: whose prototypes they are.
        source: the images that were searched; those shown are read once more.
        regions: what `nearest_regions` found in them.
        name: what the images are called.
    """
    rows = []
    for prototype in regions.use.argsort(descending=True, stable=True).tolist():
        pictures = "".join(
            _picture(model, source, regions, prototype, rank)
            for rank in range(regions.image.shape[1])
            if int(regions.image[prototype, rank]) >= 0
        )
        rows.append(
            f'<div class="prototype" id="prototype-{prototype}" style="border-left:6px solid {css_colour(prototype)}">'
            f'<div class="number">{colour_mark(prototype)}<br><small>use {regions.use[prototype]:.1%}</small></div>'
            f"{pictures}</div>"
        )
    lead = (
        f"<p>{len(regions.use)} prototypes of a model with pooling <b>{html.escape(model.settings.pooling)}</b>, and "
        f"for each the regions nearest to it among {regions.images:,} images of {html.escape(name)}, one an image, the "
        "nearest on the left. The frame is the place of the token; what it sees reaches further. "
        "<i>Use</i> is the share of the pooled mass that the prototype takes, over all images: even use would be "
        f"{1 / len(regions.use):.1%} each.</p>"
    )
    if regions.broken:
        lead += f"<p>{len(regions.broken):,} images could not be read and were left out.</p>"
    return whole_page("Prototypes", GALLERY_STYLE + lead + "\n".join(rows))


def region_figures(source: ImageSource, regions: Regions) -> dict[str, Any]:
    """Give the regions as numbers, lists and words, ready for JSON."""
    return {
        "images": regions.images,
        "grid": list(regions.grid),
        "broken": list(regions.broken),
        "prototypes": [
            {
                "prototype": prototype,
                "use": float(regions.use[prototype]),
                "regions": [
                    {
                        "image": source.describe(int(regions.image[prototype, rank])),
                        "row": int(regions.row[prototype, rank]),
                        "column": int(regions.column[prototype, rank]),
                        "distance": float(regions.distance[prototype, rank]),
                    }
                    for rank in range(regions.image.shape[1])
                    if int(regions.image[prototype, rank]) >= 0
                ],
            }
            for prototype in range(len(regions.use))
        ],
    }


def region_crop(
    image: torch.Tensor, grid: tuple[int, int], row: int, column: int, colour: tuple[int, int, int]
) -> Image.Image:
    """Cut a token's surroundings out of the image that the model saw, and frame the token's own cell."""
    height, width = image.shape[1:]
    down, across = height / grid[0], width / grid[1]
    side = min((2 * CELLS_AROUND + 1) * max(down, across), height, width)
    # Kept inside the image: a region at its edge is shown off its middle rather than with a black rim.
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


def _picture(model: Embedder, source: ImageSource, regions: Regions, prototype: int, rank: int) -> str:
    index = int(regions.image[prototype, rank])
    row, column = int(regions.row[prototype, rank]), int(regions.column[prototype, rank])
    image = seen_image(model, source, index)
    crop = region_crop(image, regions.grid, row, column, prototype_colour(prototype))
    buffer = io.BytesIO()
    crop.save(buffer, "JPEG", quality=85)
    words = f"{source.describe(index)}, row {row}, column {column}, distance {regions.distance[prototype, rank]:.3f}"
    return inline_image(buffer.getvalue(), words, "jpeg").replace("<img ", f'<img title="{html.escape(words)}" ')
