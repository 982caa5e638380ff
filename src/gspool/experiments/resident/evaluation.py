"""Measure retrieval on a resident set, without leaving the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gspool.evaluation import retrieval_metrics
from gspool.experiments.resident.views import evaluation_view
from gspool.training.embed import Evaluation, relative_entropy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from torch import Tensor

    from gspool.experiments.resident.images import ResidentSet
    from gspool.training import DataConfig


@torch.no_grad()
def evaluate_resident(
    model: Any,
    images: ResidentSet,
    data: DataConfig,
    size: int,
    *,
    precision: str = "32-true",
    ks: Sequence[int] = (1, 2, 4, 8),
    batch_size: int = 256,
    looks: bool = False,
) -> Evaluation:
    """Embed every image and measure retrieval: among all of them, or queries in the gallery where there is one.

    Args:
        model: `gspool.Embedder`, or another model with ``embed``.
        images: what to embed.
        data: how images are seen: the transform is "crop" or "none".
        size: side of the crop.
        precision: "32-true" or "bf16-mixed".
        ks: ranks of R@K.
        batch_size: images at a time.
        looks: keep what every place weighs on average, too.

    Example:
        >>> from gspool import Embedder, data
        >>> from gspool.training import DataConfig
        >>> from gspool.experiments.resident import load_resident
        >>> letters = load_resident(data.create("glyphs", split="test", images_per_class=2), shorter_side=None)
        >>> evaluate_resident(Embedder("small_cnn", dim=8), letters, DataConfig(), 64).metrics.queries
        200
    """
    was_training = model.training
    model.eval()
    vectors, entropies, maps = [], [], []
    for places in torch.arange(len(images), device=images.rows.device).split(batch_size):
        seen = evaluation_view(images, places, data, size)
        with autocast(seen.device, precision):
            embedded = model.embed(channels_last(seen))
        vectors.append(embedded.embedding.float())
        if embedded.weights is not None:
            weights = embedded.weights.float()
            entropies.append(relative_entropy(weights))
            maps += [weights] if looks else []
    model.train(was_training)
    embeddings = torch.cat(vectors)
    flatness = float(torch.cat(entropies).double().mean()) if entropies else None
    if images.asks is None:
        metrics = retrieval_metrics(embeddings, images.labels, ks=ks)
    else:
        asks = images.asks
        metrics = retrieval_metrics(
            embeddings[asks], images.labels[asks], embeddings[~asks], images.labels[~asks], ks=ks
        )
    return Evaluation(metrics, flatness, embeddings, relative_weights(torch.cat(maps)) if maps else None)


def relative_weights(weights: Float[Tensor, "B P"]) -> list[float]:
    """Give what every place weighs on average over images; 1 is what it would if all weighed the same.

    Example:
        >>> relative_weights(torch.tensor([[0.75, 0.25], [0.25, 0.75], [1.0, 0.0], [0.5, 0.5]]))
        [1.25, 0.75]
    """
    # Equal weights are 1 / P each, so that the mean times P is relative to them.
    return [round(weight, 4) for weight in (weights.shape[1] * weights.double().mean(0)).tolist()]


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Give the context of a precision.

    Raises:
        ValueError: if it is neither "32-true" nor "bf16-mixed".

    Example:
        >>> with autocast(torch.device("cpu"), "32-true"):
        ...     torch.is_autocast_enabled("cpu")
        False
    """
    if precision not in ("32-true", "bf16-mixed"):
        raise ValueError(f"resident training knows the precisions 32-true and bf16-mixed, got {precision!r}")
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16-mixed")


def channels_last(images: torch.Tensor) -> torch.Tensor:
    """Lay images out as tensor cores read them; on a CPU, and for tokens, as they are."""
    if images.device.type != "cuda" or images.ndim != 4:
        return images
    return images.contiguous(memory_format=torch.channels_last)
