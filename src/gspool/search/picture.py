"""Draw queries and their neighbours, and below each the pooling weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspool.data.decode import BrokenImageError
from gspool.files import write_atomic
from gspool.search.explanation.figure import blank_figure, draw_scale, figure_bytes, short
from gspool.search.explanation.overlay import common_scale, weights_over
from gspool.search.images import read_pixels
from gspool.search.model_source import embed_batch
from gspool.search.query import Answer

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8
    from torch import Tensor

    from gspool.models import Embedder

KINDS = (".png", ".pdf", ".svg")
# What is still readable on one page.
MOST_QUERIES, MOST_NEIGHBOURS = 16, 12
RIGHT, WRONG, NEUTRAL = "#1a9850", "#d73027", "#888888"
CELL = 1.5


def draw_answers(model: Embedder, answers: Sequence[Answer], out: str | Path) -> Path:
    """Draw each query and its neighbours as the model sees them, and below each its token weights.

    Weights have one scale, from black (none) to bright (the largest of all images). A neighbour has a green frame if it
    has the label of the query and a red one if it has another. At most 16 queries with 12 neighbours each are drawn.

    Raises:
        ValueError: if there is nothing to draw, or the file is not a .png, .pdf or .svg.
    """
    path = Path(out).expanduser()
    if path.suffix.lower() not in KINDS:
        raise ValueError(f"a picture is written to a {', '.join(KINDS)} file, got {path}")
    drawn = [answer for answer in answers if answer.problem is None][:MOST_QUERIES]
    if not drawn:
        raise ValueError("there is nothing to draw: no query could be read")
    width = 1 + max(len(answer.hits[:MOST_NEIGHBOURS]) for answer in drawn)
    figure, axes = blank_figure(2 * len(drawn), width, CELL, CELL + 0.12)
    maps: list[tuple[Any, UInt8[Tensor, "3 H W"], Float[Tensor, "h w"]]] = []
    for answer, above, below in zip(drawn, axes[::2], axes[1::2], strict=True):
        maps += _draw_image(model, above[0], below[0], answer.query, f"query {answer.label or ''}".strip())
        for hit, upper, lower in zip(answer.hits[:MOST_NEIGHBOURS], above[1:], below[1:], strict=False):
            known = answer.label is not None and hit.label is not None
            frame = (RIGHT if hit.label == answer.label else WRONG) if known else NEUTRAL
            maps += _draw_image(model, upper, lower, hit.path, f"{hit.score:.3f} {hit.label or ''}".strip(), frame)
    if maps:
        scale = common_scale(weights for _, _, weights in maps)
        for axis, image, weights in maps:
            axis.imshow(weights_over(image, weights, scale))
        draw_scale(figure, axes, scale)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, figure_bytes(figure, path.suffix[1:].lower()))
    return path


def _draw_image(
    model: Embedder, above: Any, below: Any, path: str, title: str, frame: str | None = None
) -> list[tuple[Any, UInt8[Tensor, "3 H W"], Float[Tensor, "h w"]]]:
    """Draw one image, or the reason why it cannot be read; return the map to draw below it, if it has one."""
    above.set_title(short(title, 22), fontsize=7, parse_math=False)
    middle = {"ha": "center", "va": "center", "parse_math": False}
    try:
        image, _ = read_pixels(path, model)
    except BrokenImageError as error:
        reason = str(error).removeprefix(f"{path}: ")
        above.text(0.5, 0.5, f"{short(Path(path).name, 22)}\n{reason}", fontsize=5, wrap=True, **middle)
        return []
    embedded = embed_batch(model, image[None])
    above.imshow(image.permute(1, 2, 0).numpy())
    if frame is not None:
        above.set_axis_on()
        above.set(xticks=[], yticks=[])
        above.spines[:].set(color=frame, linewidth=2.5)
    if embedded.weights is None or embedded.grid is None:
        below.text(0.5, 0.5, "no weights", fontsize=6, **middle)
        return []
    return [(below, image, embedded.weights[0].reshape(embedded.grid).float().cpu())]
