"""Embed an image set and measure retrieval on it, on one process or shared among many."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.utils.data import DataLoader

from gspool.data import ImageSet, Shard
from gspool.data.loading import loading_processes
from gspool.evaluation import RetrievalMetrics, retrieval_metrics
from gspool.evaluation.progress import progress_bar
from gspool.training.gather import gather_blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from torch import Tensor

    from gspool.models import Embedder


class EmbeddedSet(NamedTuple):
    """The vectors of a whole set in its order, and the mean entropy of the weights (1 is flat, 0 a single token).

    ``entropy`` is None where the pooling layer has no weights. Near 1, pooling hardly differs from averaging.
    """

    embeddings: Float[Tensor, "N D"]
    entropy: float | None


class Evaluation(NamedTuple):
    """Retrieval metrics of a set, and the entropy of the weights behind them.

    ``mean_weights`` is the mean over images of every place's weight, relative to equal weights, where it was asked for.
    """

    metrics: RetrievalMetrics
    entropy: float | None
    embeddings: Float[Tensor, "N D"]
    mean_weights: list[float] | None = None


@torch.no_grad()
def embed_images(
    model: Embedder, images: ImageSet, *, batch_size: int = 128, workers: int = 0, progress: bool = False
) -> EmbeddedSet:
    """Embed every image of a set once, in evaluation mode, where the model is; several processes share the work.

    Example:
        >>> from gspool import Embedder, data
        >>> letters = data.create("glyphs", split="test", images_per_class=1)
        >>> embed_images(Embedder("small_cnn", dim=8), letters).embeddings.shape
        torch.Size([100, 8])
    """
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    loader = DataLoader(
        images,
        batch_size,
        sampler=Shard(len(images)),
        num_workers=loading_processes(workers),
        pin_memory=device.type == "cuda",
    )
    vectors, entropies = [], []
    try:
        with progress_bar(f"embedding {images.name}/{images.split}", len(loader), progress) as advance:
            for pictures, _ in loader:
                embedded = model.embed(pictures.to(device, non_blocking=True))
                vectors.append(embedded.embedding)
                if embedded.weights is not None:
                    entropies.append(relative_entropy(embedded.weights))
                advance()
    finally:
        model.train(was_training)
    width = model.out_dim
    embeddings = gather_blocks(torch.cat(vectors) if vectors else torch.zeros(0, width))
    flatness = gather_blocks(torch.cat(entropies) if entropies else torch.zeros(0))
    return EmbeddedSet(embeddings, float(flatness.double().mean()) if len(flatness) else None)


def relative_entropy(weights: Float[Tensor, "B N"]) -> Float[Tensor, B]:
    """Give the entropy of each row against that of equal weights.

    Example:
        >>> relative_entropy(torch.tensor([[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0]]))
        tensor([1., 0.])
    """
    tokens = weights.shape[1]
    return torch.special.entr(weights).sum(1) / math.log(tokens) if tokens > 1 else torch.ones_like(weights[:, 0])


def evaluate_images(
    model: Embedder,
    images: ImageSet,
    *,
    ks: Sequence[int] = (1, 2, 4, 8),
    batch_size: int = 128,
    workers: int = 0,
    progress: bool = False,
) -> Evaluation:
    """Embed a set and measure retrieval: among itself, or queries in the gallery where the set has both.

    Raises:
        ValueError: if no image has another one of its class to be found.
    """
    embedded = embed_images(model, images, batch_size=batch_size, workers=workers, progress=progress)
    vectors, labels = embedded.embeddings, images.labels
    device = next(model.parameters()).device
    if images.roles is None:
        metrics = retrieval_metrics(vectors, labels, ks=ks, device=device)
    else:
        asks = torch.tensor([role == "query" for role in images.roles])
        metrics = retrieval_metrics(vectors[asks], labels[asks], vectors[~asks], labels[~asks], ks=ks, device=device)
    return Evaluation(metrics, embedded.entropy, vectors)
