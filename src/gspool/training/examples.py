"""Examples of an evaluation for the report: some queries, what was found for them, and where the model looked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool.evaluation import nearest_neighbours
from gspool.files import write_atomic
from gspool.training.embed import query_rows
from gspool.training.gpu_data import TensorSet

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int64, UInt8
    from torch import Tensor

    from gspool.data import ImageSet

FILE = "examples.safetensors"


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
    """Choose queries of different classes and their nearest neighbours among embeddings that evaluation has computed.

    Args:
        model: for the pooling weights of the queries.
        images: the set that was evaluated.
        embeddings: its embeddings.
        confused: rows of queries and of neighbours of another class.
        count: number of queries.
        k: neighbours of each.
    """
    asks, everything = query_rows(images), torch.arange(len(images))
    rows = spread_rows(images.labels, everything if asks is None else asks.nonzero().flatten(), count)
    gallery = everything if asks is None else (~asks).nonzero().flatten()
    k = min(k, len(gallery) - 1)
    found = gallery[nearest_neighbours(embeddings[rows], embeddings[gallery], k=k + 1).indices.cpu()]
    # A query is in the gallery itself where the set has no roles.
    others = torch.tensor(
        [[row for row in line if row != query][:k] for query, line in zip(rows.tolist(), found.tolist(), strict=True)]
    )
    queries = _pictures(images, rows)
    was_training, device = model.training, next(model.parameters()).device
    embedded = model.eval().embed(queries.to(device))
    model.train(was_training)
    weights = None
    if embedded.weights is not None and embedded.grid is not None:
        weights = embedded.weights.float().reshape(len(rows), *embedded.grid).cpu()
    neighbours = _pictures(images, others.flatten()).unflatten(0, others.shape)
    pairs = _pictures(images, torch.tensor(confused).flatten()).unflatten(0, (-1, 2)) if confused else None
    return Examples(queries, neighbours, images.labels[others] == images.labels[rows][:, None], weights, pairs)


def has_pictures(images: ImageSet | TensorSet) -> bool:
    """Check whether a set holds images that can be shown, rather than feature maps or tokens."""
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
