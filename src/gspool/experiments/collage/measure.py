"""Embed a resident set and measure retrieval on it, as the collage study does after every pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from gspool.evaluation import RetrievalMetrics, retrieval_metrics
from gspool.training.embed import relative_entropy

if TYPE_CHECKING:
    from gspool.experiments.collage.models import CollageEmbedder, MapHead
    from gspool.experiments.resident import ResidentSet


class Measured(NamedTuple):
    """Retrieval figures, and the entropy of the weights against equal ones; None where there are no weights."""

    metrics: RetrievalMetrics
    entropy: float | None


@torch.no_grad()
def measured(model: MapHead | CollageEmbedder, images: ResidentSet, batch_size: int = 800) -> Measured:
    """Embed everything and measure retrieval; the model stays in its mode."""
    was_training = model.training
    model.eval()
    vectors, entropies = [], []
    for places in torch.arange(len(images), device=images.rows.device).split(batch_size):
        embedded = model.embed(images.pixels[images.rows[places]])
        vectors.append(embedded.embedding.float())
        if embedded.weights is not None:
            entropies.append(relative_entropy(embedded.weights.float()))
    model.train(was_training)
    flatness = float(torch.cat(entropies).double().mean()) if entropies else None
    return Measured(retrieval_metrics(torch.cat(vectors), images.labels, ks=()), flatness)
