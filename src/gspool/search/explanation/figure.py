"""Draw an explanation: the image, its weights, its prototypes, its attributes."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from gspool.search.explanation.overlay import COLOURS, bar_colour, common_scale, owners_over, weights_over

if TYPE_CHECKING:
    from gspool.search.explanation.image import Explanation
    from gspool.search.explanation.shared import Shared

SIDE = 2.6  # inches of one panel
BAR = 0.16  # inches of a bar with its number, the least that can be read
SCALE = 0.5  # inches of the colour bar below all panels
FONT = 9


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

    Example:
        >>> from PIL import Image
        >>> from gspool.models import Embedder
        >>> from gspool.search.explanation.image import explain
        >>> model = Embedder("small_cnn", pooling="gsp", dim=16, pooling_options={"prototypes": 4})
        >>> picture = explanation_png(["teal"], [explain(model, Image.new("RGB", (64, 64), "teal"))])
        >>> picture[1:4]
        b'PNG'
    """
    used = [each.most_used(top) for each in explanations]
    bars = max(map(len, used))
    columns = 2 + any(each.owners is not None for each in explanations) + (bars > 0)
    rows = len(explanations) + (shared is not None)
    figure, axes = blank_figure(rows, columns, SIDE, max(SIDE, BAR * bars) + 0.3)
    heat, taken = map_scales(explanations)
    for name, each, most_used, row in zip(names, explanations, used, axes, strict=False):
        _show(row[0], each.image.permute(1, 2, 0).numpy(), name)
        words = f"weights, entropy {each.entropy:.2f}" + (", faded" if each.caveat else "")
        _show(row[1], weights_over(each.image, each.weights, heat, grid), words)
        if each.owners is not None:
            _show(row[2], owners_over(each, scale=taken, grid=grid), "prototypes")
        if each.attributes is not None:
            numbers, values = zip(*most_used, strict=True)
            axis = row[-1]
            axis.barh(range(len(numbers)), values, color=[bar_colour(each, number) for number in numbers])
            _name_bars(axis, numbers, 1 / len(each.attributes), f"attributes, {sum(values):.0%} of them")
    if shared is not None:
        drawn = [each for each in explanations if each.owners is not None]
        for axis, name, each in zip(axes[-1], names, drawn, strict=False):
            _show(axis, owners_over(each, shared.prototypes.tolist(), taken, grid), f"shared, in {name}")
        _draw_shared(explanations, shared, axes[-1][-1])
    if bars:
        widest = max(share for most_used in used for _, share in most_used)
        for axis in axes[:, -1]:
            axis.set_xlim(0, 1.05 * widest)
    caveats = [each.caveat for each in explanations if each.caveat]
    if caveats:
        figure.suptitle(textwrap.fill(caveats[0], 32 * columns), fontsize=FONT)
    draw_scale(figure, axes, heat)
    return figure_bytes(figure, "png")


def map_scales(explanations: Sequence[Explanation]) -> tuple[float, float | None]:
    """Return the common scale of the weights of a figure, and that of the mass that prototypes take, if any."""
    plans = [each.plan.sum(0) for each in explanations if each.plan is not None]
    return common_scale(each.weights for each in explanations), common_scale(plans) if plans else None


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
    """Cut the middle of a long text, so that a name keeps its ending.

    Example:
        >>> short("a-very-long-name-of-a-picture-0001.jpg", 16)
        'a-very-...01.jpg'
    """
    kept = most - 3
    return text if len(text) <= most else f"{text[: (kept + 1) // 2]}...{text[-(kept // 2) :]}"


def _show(axis: Any, picture: Any, title: str) -> None:
    axis.imshow(picture)
    axis.set_title(short(title), fontsize=FONT, parse_math=False)


def _draw_shared(explanations: Sequence[Explanation], shared: Shared, axis: Any) -> None:
    numbers = shared.prototypes.tolist()
    places = torch.arange(len(numbers), dtype=torch.float64)
    for each, values, shift in zip(explanations, (shared.first, shared.second), (-0.2, 0.2), strict=True):
        colours = [bar_colour(each, number) for number in numbers]
        axis.barh((places + shift).tolist(), values.tolist(), 0.4, color=colours, alpha=1 if shift < 0 else 0.5)
    even = 1 / len(explanations[0].attributes)  # type: ignore[arg-type]
    _name_bars(axis, numbers, even, f"overlap {shared.overlap:.2f}, cosine {shared.similarity:.2f}")


def _name_bars(axis: Any, prototypes: Sequence[int], even: float, title: str) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axis.set_axis_on()
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
