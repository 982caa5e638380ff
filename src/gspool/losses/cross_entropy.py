"""Classification: a linear layer on the pooled features, and cross-entropy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class CrossEntropyLoss(nn.Module):
    """Classify features with a linear layer, which is part of the loss; they are not scaled to unit length before.

    Args:
        num_classes: number of classes.
        embedding_size: length of the features.
        label_smoothing: share of the target that is spread over all classes.
        dropout: share of the features that is set to zero in training.

    Raises:
        ValueError: if a share is not in [0, 1).

    Example:
        >>> import torch
        >>> loss = CrossEntropyLoss(num_classes=10, embedding_size=8)
        >>> loss(torch.randn(4, 8), torch.tensor([0, 1, 2, 9])).shape
        torch.Size([])
    """

    def __init__(
        self, num_classes: int, embedding_size: int, label_smoothing: float = 0.0, dropout: float = 0.0
    ) -> None:
        super().__init__()
        for name, share in (("label_smoothing", label_smoothing), ("dropout", dropout)):
            if not 0 <= share < 1:
                raise ValueError(f"{name} must lie in [0, 1), got {share!r}")
        self.label_smoothing, self.dropout = float(label_smoothing), float(dropout)
        self.classifier = nn.Linear(embedding_size, num_classes)

    def forward(self, features: Float[Tensor, "B D"], labels: Int[Tensor, B]) -> Float[Tensor, ""]:
        """Compute the mean cross-entropy of the batch."""
        logits = self.classifier(functional.dropout(features, self.dropout, self.training))
        return functional.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)
