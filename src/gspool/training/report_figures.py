"""The page of a report: one HTML file with tables, figures as images inside it, and examples of an evaluation."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool.evaluation import nearest_neighbours
from gspool.files import write_atomic
from gspool.models.freezing import evaluating
from gspool.training.embed import search_rows
from gspool.training.gpu_data import TensorSet, query_rows
from gspool.version import __version__

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int64, UInt8
    from torch import Tensor

    from gspool.data import ImageSet

FILE = "examples.safetensors"
RIGHT, WRONG = "#1a9850", "#d73027"
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
table {{ border-collapse: collapse; font-size: .85rem; }} .wide {{ overflow-x: auto; }}
th, td {{ padding: .3rem .6rem; border-bottom: 1px solid #ccc; text-align: right; white-space: nowrap; }}
th:first-child, td:first-child {{ text-align: left; }} img {{ max-width: 100%; height: auto; }}
pre {{ background: #f4f4f4; padding: 1rem; overflow-x: auto; font-size: .85rem; }} h2 {{ margin-top: 2.5rem; }}
</style></head><body>
<h1>{title}</h1>
<p>{lead}</p>
{body}
<p>Written by gspool {version}.</p>
</body></html>
"""


class Examples(NamedTuple):
    """Queries as the model sees them, their nearest neighbours, which of these have the query's class, and weights.

    ``confused`` are pairs of a query and its nearest neighbour of another class.
    """

    queries: UInt8[Tensor, "Q 3 H W"]
    neighbours: UInt8[Tensor, "Q K 3 H W"]
    right: Bool[Tensor, "Q K"]
    weights: Float[Tensor, "Q h w"] | None
    confused: UInt8[Tensor, "P 2 3 H W"] | None = None


@torch.no_grad()
def choose_examples(
    model: Any,
    images: ImageSet | TensorSet,
    embeddings: Float[Tensor, "N D"],
    confused: Sequence[tuple[int, int]] = (),
    count: int = 6,
    k: int = 7,
) -> Examples:
    """Choose queries of different classes and the ``k`` nearest neighbours of each among embeddings of an evaluation.

    The model gives the pooling weights of the queries; ``confused`` are rows of queries and of the neighbours of
    another class that are shown beside them.
    """
    asked, gallery = search_rows(images)
    rows = spread_rows(images.labels, asked, count)
    # A query is in the gallery itself where the set has no roles.
    itself = int(query_rows(images) is None)
    k = min(k, len(gallery) - itself)
    found = gallery[nearest_neighbours(embeddings[rows], embeddings[gallery], k=k + itself).indices.cpu()]
    others = torch.tensor(
        [[row for row in line if row != query][:k] for query, line in zip(rows.tolist(), found.tolist(), strict=True)]
    )
    queries = _pictures(images, rows)
    with evaluating(model):
        embedded = model.embed(queries.to(next(model.parameters()).device))
    weights = None
    if embedded.weights is not None and embedded.grid is not None:
        weights = embedded.weights.float().reshape(len(rows), *embedded.grid).cpu()
    neighbours = _pictures(images, others.flatten()).unflatten(0, others.shape)
    pairs = _pictures(images, torch.tensor(confused).flatten()).unflatten(0, (-1, 2)) if confused else None
    return Examples(queries, neighbours, images.labels[others] == images.labels[rows][:, None], weights, pairs)


def has_pictures(images: ImageSet | TensorSet) -> bool:
    """Check whether a set holds images that can be shown with neighbours, rather than feature maps or tokens."""
    if len(images) < 2:
        return False
    first = images.pixels[0] if isinstance(images, TensorSet) else images[0][0]
    return first.dtype == torch.uint8 and first.ndim == 3


def _pictures(images: ImageSet | TensorSet, rows: Int64[Tensor, " R"]) -> UInt8[Tensor, "R 3 H W"]:
    if isinstance(images, TensorSet):
        return images.evaluation_images(rows).cpu()
    return torch.stack([images[row][0] for row in rows.tolist()])


def spread_rows(labels: Int64[Tensor, " N"], candidates: Int64[Tensor, " M"], count: int) -> Int64[Tensor, " Q"]:
    """Choose candidates of different classes, spread evenly over them.

    Example:
        >>> spread_rows(torch.tensor([0, 0, 1, 1, 2, 2]), torch.arange(6), 2)
        tensor([0, 2])
    """
    first: dict[int, int] = {}
    for row in candidates.tolist():
        first.setdefault(int(labels[row]), row)
    rows = [first[label] for label in sorted(first)]
    count = min(count, len(rows))
    return torch.tensor([rows[place * len(rows) // count] for place in range(count)])


def write_examples(folder: Path, examples: Examples) -> None:
    """Write examples into the folder of a run."""
    from safetensors.torch import save

    content = {name: value.contiguous() for name, value in examples._asdict().items() if value is not None}
    write_atomic(folder / FILE, save(content))


def read_examples(folder: Path) -> Examples | None:
    """Read the examples of a run; None if it has none."""
    from safetensors.torch import load

    if not (folder / FILE).is_file():
        return None
    content = load((folder / FILE).read_bytes())
    optional = (content.get("weights"), content.get("confused"))
    return Examples(content["queries"], content["neighbours"], content["right"], *optional)


def page(title: str, lead: str, sections: Mapping[str, str]) -> bytes:
    """Return the page of a report: plain text in title and lead, and sections of HTML under their headings."""
    body = "\n".join(f"<h2>{html.escape(heading)}</h2>\n{content}" for heading, content in sections.items())
    return PAGE.format(title=html.escape(title), lead=html.escape(lead), body=body, version=__version__).encode()


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows of HTML cells with the same keys as a table."""
    lines = [f"<tr>{''.join(f'<th>{html.escape(name)}</th>' for name in rows[0])}</tr>"]
    lines += [f"<tr>{''.join(f'<td>{cell}</td>' for cell in row.values())}</tr>" for row in rows]
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def _figure(rows: int, columns: int, width: float, height: float) -> Any:
    """Return a figure without pyplot's global state."""
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
    """Draw the parts of the loss, each by itself, and the watched MAP@R or accuracy of every run over its steps.

    The zero-shot loss begins when prototypes are chosen: in one curve with the metric loss, it would look like a jump.
    """
    columns = {column for rows in histories.values() for row in rows for column in row}
    panels = [("loss_metric", "training loss", 1.0)]
    if "loss_zero_shot" in columns:
        panels = [("loss_metric", "metric loss", 1.0), ("loss_zero_shot", "zero-shot loss", 1.0)]
    watched = {"map@r": "MAP@R", "accuracy": "accuracy"}
    panels += [(column, f"{name} while training", 100.0) for column, name in watched.items() if column in columns]
    figure, axes = _figure(1, len(panels), 4.5 * len(panels), 3.4)
    for axis, (column, label, factor) in zip(axes[0], panels, strict=True):
        for name, rows in histories.items():
            points = [(row["step"], factor * row[column]) for row in rows if column in row]
            if points:
                axis.plot(*zip(*points, strict=True), label=name, marker="." if column in watched else None)
        axis.set_xlabel("step")
        axis.set_title(label)
        if axis.lines:
            axis.legend()
    return _as_html(figure, f"{', '.join(label for _, label, _ in panels)} over steps")


def pairs(pictures: UInt8[Tensor, "P 2 3 H W"], captions: Sequence[str]) -> str:
    """Show pairs of a query and what was found for it, a caption above each."""
    figure, axes = _figure(len(pictures), 2, 4.0, 2.3 * len(pictures))
    for line, pair, caption in zip(axes, pictures, captions, strict=True):
        for axis, picture in zip(line, pair, strict=True):
            _show(axis, picture)
            axis.set_axis_off()
        line[0].set_title(caption, loc="left", fontsize=8)
    return _as_html(figure, "the closest mistake of each pair of classes")


def neighbours(examples: Examples) -> str:
    """Show queries and their nearest neighbours."""
    figure, axes = _figure(len(examples.queries), examples.neighbours.shape[1] + 1, 9.0, 1.2 * len(examples.queries))
    for line, query, found, right in zip(axes, examples.queries, examples.neighbours, examples.right, strict=True):
        _show(line[0], query)
        line[0].set_axis_off()
        for axis, image, is_right in zip(line[1:], found, right, strict=True):
            _show(axis, image)
            axis.spines[:].set(color=RIGHT if is_right else WRONG, linewidth=3)
    return _as_html(figure, "queries and their nearest neighbours")


def bars(points: Sequence[tuple[str, float, float]], metric: str = "MAP@R", held_out: str = "classes") -> str:
    """Draw a metric of every head on validation and test, the first on top."""
    figure, axes = _figure(1, 1, 6.5, 0.9 + 0.35 * len(points))
    axis = axes[0][0]
    places = range(len(points))
    for column, shift, split in ((1, -0.2, "validation"), (2, 0.2, "test")):
        values = [float(point[column]) for point in points]
        axis.barh([place + shift for place in places], values, height=0.38, label=f"{split} {held_out}")
    axis.set_yticks(list(places), [point[0] for point in points])
    axis.invert_yaxis()
    axis.set_xlabel(f"{metric}, percent")
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    return _as_html(figure, f"{metric} of the heads on validation and test {held_out}")


def weight_grid(pictures: Sequence[UInt8[Tensor, "3 H W"]], maps: Mapping[str, Tensor]) -> str:
    """Show the same pictures once a head with its weights over them, relative to equal weights, on one scale."""
    figure, axes = _figure(1 + len(maps), len(pictures), 1.6 * len(pictures), 1.7 * (1 + len(maps)))
    relative = {name: map_ * map_[0].numel() for name, map_ in maps.items()}
    highest = max(float(map_.quantile(0.99)) for map_ in relative.values())
    for column, picture in enumerate(pictures):
        height, width = picture.shape[1:]
        extent = (-0.5, width - 0.5, height - 0.5, -0.5)
        for axis, name in zip(axes[:, column], ["", *relative], strict=True):
            _show(axis, picture)
            if name:
                over = relative[name][column].numpy()
                axis.imshow(
                    over, cmap="inferno", alpha=0.65, extent=extent, vmin=0, vmax=highest, interpolation="bilinear"
                )
            if column == 0:
                axis.set_ylabel(name, fontsize=8)
    return _as_html(figure, "pictures, and the weights of their tokens")


def _show(axis: Any, image: UInt8[Tensor, "3 H W"]) -> None:
    axis.set(xticks=[], yticks=[])
    axis.imshow(image.permute(1, 2, 0).numpy())
