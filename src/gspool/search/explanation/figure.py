"""Draw explanations, and queries with their neighbours, as pictures of panels, by matplotlib."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspool.data.decode import BrokenImageError
from gspool.files import write_atomic
from gspool.search.explanation.overlay import (
    COLOURS,
    Panel,
    Scales,
    bar_colour,
    common_scale,
    panels,
    shared_panels,
    weights_over,
)
from gspool.search.model import embed_batch, read_pixels

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8
    from torch import Tensor

    from gspool.models import Embedder
    from gspool.search.explanation import Explanation, Shared
    from gspool.search.query import Answer

SIDE = 2.6  # inches of one panel
BAR = 0.16  # inches of a bar with its number, the least that can be read
SCALE = 0.5  # inches of the colour bar below all panels
FONT = 9
KINDS = (".png", ".pdf", ".svg")
# What is still readable on one page of neighbours.
MOST_QUERIES, MOST_NEIGHBOURS = 16, 12
RIGHT, WRONG, NEUTRAL = "#1a9850", "#d73027", "#888888"
CELL = 1.5


def explanation_png(
    names: Sequence[str],
    explanations: Sequence[Explanation],
    shared: Shared | None = None,
    top: int = 8,
    grid: bool = False,
) -> bytes:
    """Draw one row per image and, for two images, a last row of what they share; return the bytes of a PNG.

    All maps have one scale, that of the colour bar. A histogram shows the ``top`` prototypes; a dashed line is the
    even share, and prototypes below it are grey. ``grid`` draws the cells of the tokens.
    """
    scales = Scales.of(explanations)
    maps = [panels(each, scales, grid) for each in explanations]
    used = [each.most_used(top) for each in explanations]
    bars = max(map(len, used))
    columns = max(map(len, maps)) + (bars > 0)
    figure, axes = blank_figure(len(maps) + (shared is not None), columns, SIDE, max(SIDE, BAR * bars) + 0.3)
    for name, each, drawn, most_used, row in zip(names, explanations, maps, used, axes, strict=False):
        _show(row, [(name, drawn[0][1]), *drawn[1:]])
        if most_used:
            numbers, values = zip(*most_used, strict=True)
            _draw_bars(row[-1], numbers, [(each, values)], f"attributes, {sum(values):.0%} of them")
    if shared is not None:
        _show(axes[-1], shared_panels(names, explanations, shared, scales, grid))
        both = [*zip(explanations, (shared.first.tolist(), shared.second.tolist()), strict=True)]
        title = f"overlap {shared.overlap:.2f}, cosine {shared.similarity:.2f}"
        _draw_bars(axes[-1][-1], shared.prototypes.tolist(), both, title)
    if bars:
        widest = max(share for most_used in used for _, share in most_used)
        for axis in axes[:, -1]:
            axis.set_xlim(0, 1.05 * widest)
    caveats = [each.caveat for each in explanations if each.caveat]
    if caveats:
        figure.suptitle(textwrap.fill(caveats[0], 32 * columns), fontsize=FONT)
    draw_scale(figure, axes, scales.weights)
    return figure_bytes(figure, "png")


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


def blank_figure(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    """Return a figure of empty panels of so many inches and room for a scale, without pyplot, whose state is global."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows + SCALE), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    return figure, axes


def figure_bytes(figure: Any, kind: str) -> bytes:
    """Return the content of a picture file: png, pdf or svg."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=110)
    return buffer.getvalue()


def short(text: str, most: int = 28) -> str:
    """Cut the middle of a long text, so that a name keeps its ending."""
    kept = most - 3
    return text if len(text) <= most else f"{text[: (kept + 1) // 2]}...{text[-(kept // 2) :]}"


def _show(axes: Any, titled: Sequence[Panel]) -> None:
    for axis, (title, picture) in zip(axes, titled, strict=False):
        axis.imshow(picture)
        axis.set_title(short(title), fontsize=FONT, parse_math=False)


def _draw_bars(axis: Any, prototypes: Sequence[int], values: Sequence[tuple[Explanation, Any]], title: str) -> None:
    """Draw the attributes of prototypes in one image, or in two beside each other."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axis.set_axis_on()
    height = 0.8 / len(values)
    for place, (explanation, shares) in enumerate(values):
        middles = [number + height * (place - (len(values) - 1) / 2) for number in range(len(prototypes))]
        colours = [bar_colour(explanation, number) for number in prototypes]
        axis.barh(middles, shares, height, color=colours, alpha=0.5 if place else 1)
        even = 1 / len(explanation.attributes)  # type: ignore[arg-type]
        axis.axvline(even, color="#666", linewidth=0.8, linestyle="--")
    axis.set_yticks(range(len(prototypes)), [str(number) for number in prototypes], fontsize=8)
    axis.invert_yaxis()
    # Few and short labels do not overlap in a narrow panel.
    axis.xaxis.set_major_locator(MaxNLocator(4))
    axis.xaxis.set_major_formatter(PercentFormatter(1.0))
    axis.tick_params(axis="x", labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title(title, fontsize=FONT)


def draw_scale(figure: Any, axes: Any, largest: float) -> None:
    """Add a colour bar of the weights below all panels."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    colours = ScalarMappable(Normalize(0, largest), COLOURS)
    bar = figure.colorbar(colours, ax=axes, location="bottom", shrink=0.3, aspect=30, pad=0.02)
    bar.set_label("weight / average weight", fontsize=8)
    bar.ax.tick_params(labelsize=8)
