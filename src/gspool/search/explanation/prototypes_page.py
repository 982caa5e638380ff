"""Show the prototypes of a model on one HTML page that needs no other file."""

from __future__ import annotations

import html
import io
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image, ImageDraw

from gspool.search.explanation.overlay import css_colour, prototype_colour
from gspool.search.explanation.page import colour_mark, inline_image, whole_page
from gspool.search.explanation.prototypes import seen_image

if TYPE_CHECKING:
    from gspool.data import ImageSource
    from gspool.models import Embedder
    from gspool.search.explanation.prototypes import Regions

# A token sees more than its own cell: show this many cells around it.
CELLS_AROUND = 1.5
SIDE = 112  # pixels of a region on the page
GALLERY_STYLE = """<style>
.prototype { display: flex; flex-wrap: wrap; align-items: center; gap: .4rem; margin: .6rem 0; }
.prototype img { width: 112px; height: 112px; border-radius: 6px; flex: none; }
.number { flex: none; width: 6.5rem; padding-left: .5rem; box-sizing: border-box; } .number small { opacity: .7; }
@media (max-width: 30rem) { .number { width: 100%; } .prototype img { width: 30%; height: auto; } }
</style>"""


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
