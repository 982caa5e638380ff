"""The pictures of a report, as images inside HTML."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gspool.evaluation import nearest_neighbours

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from gspool.data import ImageSet
    from gspool.models import Embedder

RIGHT, WRONG = "#1a9850", "#d73027"


def _figure(rows: int, columns: int, width: float, height: float) -> Any:
    """Make a figure that belongs to no window: nothing of pyplot's global state is touched."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def _as_html(figure: Any, alt: str) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return f'<img alt="{alt}" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'


def curves(histories: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Draw the loss and the watched MAP@R of every run over its steps."""
    figure, axes = _figure(1, 2, 9.0, 3.4)
    for axis, column, label, factor in (
        (axes[0][0], "loss", "training loss", 1.0),
        (axes[0][1], "map@r", "MAP@R while training", 100.0),
    ):
        for name, rows in histories.items():
            points = [(row["step"], factor * row[column]) for row in rows if column in row]
            if points:
                axis.plot(*zip(*points, strict=True), label=name, marker="." if column == "map@r" else None)
        axis.set_xlabel("step")
        axis.set_title(label)
        if axis.lines:
            axis.legend()
    return _as_html(figure, "loss and MAP@R over steps")


def neighbours(embeddings: Float[Tensor, "N D"], images: ImageSet, examples: int, k: int = 7) -> str:
    """Show queries, spread over the classes, and their nearest neighbours."""
    queries = spread_rows(images, examples)
    gallery = torch.arange(len(images))
    if images.roles is not None:
        gallery = torch.tensor([row for row, role in enumerate(images.roles) if role == "gallery"])
    found = nearest_neighbours(embeddings[queries], embeddings[gallery], k=k + 1).indices
    figure, axes = _figure(len(queries), k + 1, 9.0, 1.2 * len(queries))
    for line, query in enumerate(queries):
        # A query is in the gallery itself where the set has no roles.
        rows = [int(gallery[place]) for place in found[line] if int(gallery[place]) != query][:k]
        for axis in axes[line]:
            axis.set_axis_off()
        axes[line][0].imshow(picture(images, query))
        for axis, row in zip(axes[line][1:], rows, strict=False):
            axis.set_axis_on()
            axis.imshow(picture(images, row))
            axis.set_xticks([])
            axis.set_yticks([])
            for side in axis.spines.values():
                side.set_color(RIGHT if images.labels[row] == images.labels[query] else WRONG)
                side.set_linewidth(3)
    return _as_html(figure, "queries and their nearest neighbours")


@torch.no_grad()
def weights(model: Embedder, images: ImageSet, examples: int) -> str | None:
    """Show images with the weights of their tokens laid over them; None where the layer has none."""
    rows = spread_rows(images, examples)
    device = next(model.parameters()).device
    embedded = model.eval().embed(torch.stack([images[row][0] for row in rows]).to(device))
    if embedded.weights is None or embedded.grid is None:
        return None
    figure, axes = _figure(2, len(rows), 1.5 * len(rows), 3.2)
    maps = embedded.weights.reshape(len(rows), *embedded.grid).cpu()
    for column, row in enumerate(rows):
        image = picture(images, row)
        for axis in (axes[0][column], axes[1][column]):
            axis.set_axis_off()
            axis.imshow(image)
        height, width = image.shape[:2]
        axes[1][column].imshow(
            maps[column].numpy(), cmap="inferno", alpha=0.7, extent=(-0.5, width - 0.5, height - 0.5, -0.5), vmin=0.0
        )
    return _as_html(figure, "images, and the weights of their tokens")


def spread_rows(images: ImageSet, count: int) -> list[int]:
    """Choose images of different classes, spread evenly over them; queries, where the set has roles."""
    candidates = range(len(images))
    if images.roles is not None:
        candidates = [row for row in candidates if images.roles[row] == "query"]  # type: ignore[assignment]
    first: dict[int, int] = {}
    for row in candidates:
        first.setdefault(int(images.labels[row]), row)
    rows = [first[label] for label in sorted(first)]
    count = min(count, len(rows))
    return [rows[place * len(rows) // count] for place in range(count)]


def picture(images: ImageSet, row: int) -> Any:
    """Give an image as the model sees it, as an array [H, W, 3] of bytes."""
    return images[row][0].permute(1, 2, 0).numpy()
