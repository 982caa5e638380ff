"""Draw an explanation: the image, its weights, its prototypes, its attributes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from gspool.search.explanation.overlay import css_colour, owners_over, weights_over

if TYPE_CHECKING:
    from gspool.search.explanation.image import Explanation
    from gspool.search.explanation.shared import Shared

SIDE = 2.6  # inches of one panel


def explanation_png(
    names: Sequence[str], explanations: Sequence[Explanation], shared: Shared | None = None, top: int = 8
) -> bytes:
    """Draw one row per image and, for two images, a last row of what they share; return the bytes of a PNG.

    A histogram shows the ``top`` prototypes.

    Example:
        >>> from PIL import Image
        >>> from gspool.models import Embedder
        >>> from gspool.search.explanation.image import explain
        >>> model = Embedder("small_cnn", pooling="gsp", dim=16, pooling_options={"prototypes": 4})
        >>> picture = explanation_png(["teal"], [explain(model, Image.new("RGB", (64, 64), "teal"))])
        >>> picture[1:4]
        b'PNG'
    """
    columns = 2 + any(each.owners is not None for each in explanations)
    columns += any(each.attributes is not None for each in explanations)
    rows = len(explanations) + (shared is not None)
    figure, axes = blank_figure(rows, columns, SIDE, SIDE + 0.3)
    for name, explanation, row in zip(names, explanations, axes, strict=False):
        _draw_image(name, explanation, row, top)
    if shared is not None:
        _draw_shared(names, explanations, shared, axes[-1])
    return figure_bytes(figure, "png")


def blank_figure(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    """Return a figure of empty panels of so many inches, without pyplot, whose state is global."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
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


def _draw_image(name: str, explanation: Explanation, row: Sequence[Any], top: int) -> None:
    panels = [
        (name, explanation.image.permute(1, 2, 0).numpy()),
        (f"weights, entropy {explanation.entropy:.2f}", weights_over(explanation.image, explanation.weights)),
    ]
    if explanation.owners is not None:
        panels.append(("prototypes", owners_over(explanation)))
    for axis, (title, picture) in zip(row, panels, strict=False):
        axis.imshow(picture)
        axis.set_title(title, fontsize=9, parse_math=False)
    if explanation.attributes is not None:
        axis = row[len(panels)]
        numbers, values = zip(*explanation.most_used(top), strict=True)
        axis.barh(range(len(numbers)), values, color=[css_colour(number) for number in numbers])
        _name_bars(axis, numbers, f"attributes, {sum(values):.0%} of them")


def _draw_shared(names: Sequence[str], explanations: Sequence[Explanation], shared: Shared, row: Sequence[Any]) -> None:
    numbers = shared.prototypes.tolist()
    drawn = [each for each in explanations if each.owners is not None]
    for axis, name, explanation in zip(row, names, drawn, strict=False):
        axis.imshow(owners_over(explanation, only=numbers))
        axis.set_title(f"shared, in {name}", fontsize=9, parse_math=False)
    axis = row[-1]
    places = torch.arange(len(numbers), dtype=torch.float64)
    colours = [css_colour(number) for number in numbers]
    axis.barh((places - 0.2).tolist(), shared.first.tolist(), height=0.4, color=colours)
    axis.barh((places + 0.2).tolist(), shared.second.tolist(), height=0.4, color=colours, alpha=0.5)
    _name_bars(axis, numbers, f"overlap {shared.overlap:.2f}, cosine {shared.similarity:.2f}")


def _name_bars(axis: Any, prototypes: Sequence[int], title: str) -> None:
    axis.set_axis_on()
    axis.set_yticks(range(len(prototypes)), [str(number) for number in prototypes], fontsize=8)
    axis.invert_yaxis()
    axis.tick_params(axis="x", labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title(title, fontsize=9)
