"""Embed an image set and measure retrieval on it, on one process or shared among many."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool.data import ImageSet, Shard
from gspool.data.batches import ShieldedLoader, loading_processes
from gspool.evaluation import RetrievalMetrics, retrieval_metrics
from gspool.evaluation.entropy import relative_entropy
from gspool.terminal.bar import work_bar
from gspool.training.gather import gather_blocks
from gspool.training.gpu_data import TensorSet, read_ahead

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jaxtyping import Bool, Float
    from torch import Tensor

    from gspool.training.diagnosis import Diagnosis


class EmbeddedSet(NamedTuple):
    """The vectors of a whole set in its order, and what the pooling layer did on average.

    ``entropy`` is the mean entropy of the pooling weights (1 is average pooling, 0 a single token), ``mean_weights``
    the mean weight of every place relative to equal weights; both None where the layer has no weights.
    """

    embeddings: Float[Tensor, "N D"]
    entropy: float | None
    mean_weights: list[float] | None = None


class Evaluation(NamedTuple):
    """Retrieval metrics of a set, the embeddings and weights behind them, and what they were measured on.

    ``diagnosis``, the content of threshold.json and a warning about flat weights are set by `evaluate_run`.
    """

    metrics: RetrievalMetrics
    entropy: float | None
    embeddings: Float[Tensor, "N D"]
    mean_weights: list[float] | None = None
    classes: int = 0
    split: str = ""
    diagnosis: Diagnosis | None = None
    threshold: dict[str, Any] | None = None
    warning: str | None = None

    def counts(self) -> str:
        """Return what the metrics were measured on, in words."""
        metrics = self.metrics
        alone = f" ({metrics.lone_queries:,} left out, alone in their class)" if metrics.lone_queries else ""
        return f"{self.classes:,} classes, {metrics.queries:,} queries{alone}, gallery of {metrics.gallery:,}"


@torch.no_grad()
def embed_images(
    model: Any,
    images: ImageSet | TensorSet,
    *,
    batch_size: int = 128,
    workers: int = 0,
    progress: bool = False,
    autocast: Any = None,
) -> EmbeddedSet:
    """Embed every image of a set once, in evaluation mode, on the model's device; several processes share the work.

    Args:
        model: an `Embedder`, or another module with ``embed`` and ``out_dim``.
        images: the images.
        batch_size: images at a time.
        workers: processes that load images.
        progress: show a progress bar.
        autocast: a Fabric whose precision is used; full precision without one.

    Example:
        >>> from gspool import Embedder, data
        >>> letters = data.create("glyphs", split="test", images_per_class=1)
        >>> embed_images(Embedder("small_cnn", dim=8), letters).embeddings.shape
        torch.Size([100, 8])
    """
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    shard = Shard(len(images))
    batches = math.ceil(len(shard) / batch_size)
    vectors, entropies, weight_sums = [], [], []
    try:
        with work_bar(f"embedding {images.name}/{images.split}", 0, batches, progress, "batches") as bar:
            for pictures in _batches(images, shard, batch_size, workers, device):
                with nullcontext() if autocast is None else autocast.autocast():
                    embedded = model.embed(pictures.to(device, non_blocking=True))
                vectors.append(embedded.embedding)
                if embedded.weights is not None:
                    weights = embedded.weights.to(torch.promote_types(embedded.weights.dtype, torch.float32))
                    entropies.append(relative_entropy(weights))
                    weight_sums.append(weights.double().sum(0, keepdim=True))
                bar.advance()
    finally:
        model.train(was_training)
    embeddings = gather_blocks(torch.cat(vectors) if vectors else torch.zeros(0, model.out_dim))
    flatness = gather_blocks(torch.cat(entropies) if entropies else torch.zeros(0))
    # Images of several sizes have several numbers of places: their weights have no common mean.
    alike = len({part.shape for part in weight_sums}) == 1
    sums = gather_blocks(torch.cat(weight_sums) if alike else torch.zeros(0))
    if not len(flatness):
        return EmbeddedSet(embeddings, None)
    relative = (sums.shape[1] / len(embeddings) * sums.sum(0)).tolist() if len(sums) else None
    mean_weights = None if relative is None else [round(weight, 4) for weight in relative]
    return EmbeddedSet(embeddings, float(flatness.double().mean()), mean_weights)


def _batches(
    images: ImageSet | TensorSet, shard: Shard, batch_size: int, workers: int, device: torch.device
) -> Iterator[Tensor]:
    if isinstance(images, TensorSet):
        parts = [part for part in torch.tensor(list(shard), dtype=torch.int64).split(batch_size) if len(part)]
        in_memory = isinstance(images.pixels, torch.Tensor)
        yield from map(images.evaluation_images, parts) if in_memory else read_ahead(images.evaluation_images, parts)
        return
    processes = loading_processes(workers)
    loader = ShieldedLoader(images, batch_size, sampler=shard, num_workers=processes, pin_memory=device.type == "cuda")
    for pictures, _ in loader:
        yield pictures


def evaluate_images(
    model: Any,
    images: ImageSet | TensorSet,
    *,
    ks: Sequence[int] = (1, 2, 4, 8),
    batch_size: int = 128,
    workers: int = 0,
    progress: bool = False,
    autocast: Any = None,
) -> Evaluation:
    """Embed a set and measure retrieval: among all images, or queries in the gallery where the set has both.

    Arguments are those of `embed_images`; ``ks`` are the ranks of R@K.

    Raises:
        ValueError: if no image has another one of its class to be found.
    """
    embedded = embed_images(model, images, batch_size=batch_size, workers=workers, progress=progress, autocast=autocast)
    vectors, labels = embedded.embeddings, images.labels
    device = next(model.parameters()).device
    queries = query_rows(images)
    if queries is None:
        metrics = retrieval_metrics(vectors, labels, ks=ks, device=device)
    else:
        metrics = retrieval_metrics(
            vectors[queries], labels[queries], vectors[~queries], labels[~queries], ks=ks, device=device
        )
    classes = len(labels.unique())
    return Evaluation(metrics, embedded.entropy, vectors, embedded.mean_weights, classes, images.split)


def query_rows(images: ImageSet | TensorSet) -> Bool[Tensor, " N"] | None:
    """Return which images of a set are queries; None where every image is query and gallery at once."""
    if isinstance(images, TensorSet):
        return images.queries
    return None if images.roles is None else torch.tensor([role == "query" for role in images.roles])
