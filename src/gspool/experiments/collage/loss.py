"""The two losses of the collage study without a branch that waits for the device, so that a step can be captured.

Twins of `gspool.losses.create("c2")` and ``("pnca")``, whose library picks non-zero terms by indexing and by asking how
many there are. Values and gradients are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy, normalize, relu

if TYPE_CHECKING:
    from jaxtyping import Float, Int64
    from torch import Tensor, nn


def steady_loss(loss: nn.Module, embeddings: Float[Tensor, "B D"], labels: Int64[Tensor, " B"]) -> Float[Tensor, ""]:
    """Compute what a loss of pytorch-metric-learning does, in shapes that do not depend on values.

    Raises:
        ValueError: if the loss is neither contrastive nor ProxyNCA++.

    Example:
        >>> from gspool import losses
        >>> contrastive = losses.create("c2", num_classes=2, dim=4)
        >>> points, labels = torch.randn(6, 4), torch.tensor([0, 0, 0, 1, 1, 1])
        >>> torch.testing.assert_close(steady_loss(contrastive, points, labels), contrastive(points, labels))
    """
    kind = type(loss).__name__
    if kind == "ContrastiveLoss":
        return contrastive(embeddings, labels, float(loss.pos_margin), float(loss.neg_margin))  # type: ignore[arg-type]
    if kind == "NormalizedSoftmaxLoss":
        return proxy_nca(embeddings, labels, loss.W, float(loss.temperature))  # type: ignore[arg-type]
    raise ValueError(f"the collage study knows the losses c2 and pnca, got {kind}")


def contrastive(
    embeddings: Float[Tensor, "B D"], labels: Int64[Tensor, " B"], pos_margin: float, neg_margin: float
) -> Float[Tensor, ""]:
    """Average what exceeds the margins over the pairs that do, positives and negatives apart."""
    unit = normalize(embeddings)
    distance = torch.cdist(unit, unit)
    same = labels[:, None] == labels[None, :]
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    parts = (relu(distance - pos_margin) * (same & ~itself), relu(neg_margin - distance) * ~same)
    average = [part.sum() / (part > 0).sum().clamp(min=1) for part in parts]
    return average[0] + average[1]


def proxy_nca(
    embeddings: Float[Tensor, "B D"], labels: Int64[Tensor, " B"], proxies: Float[Tensor, "D K"], temperature: float
) -> Float[Tensor, ""]:
    """Classify embeddings among the proxies, both of length 1."""
    return cross_entropy(normalize(embeddings) @ normalize(proxies, dim=0) / temperature, labels)
