"""LIBC: the images of a batch exchange messages by attention, and the refined features are classified."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.nn.functional import cross_entropy, normalize

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class LIBCLoss(nn.Module):
    r"""Classify the embeddings before and after messages between all images of the batch.

    "Learning Intra-Batch Connections for Deep Metric Learning" (Seidenschwarz, Elezi, Leal-Taixé, ICML 2021). The
    embeddings :math:`x` come at their own length. From :math:`h^0 = W x / |x| + b` every layer computes, without
    positions,

    .. math:: g = \mathrm{LN}(h + \mathrm{MHA}(h)), \quad h' = \mathrm{LN}(g + W_2 \mathrm{ReLU}(W_1 g))

    and the loss is :math:`\mathrm{CE}(V\,\mathrm{BN}(h^L) / T) + a\,\mathrm{CE}((U x + u) / T)` with smoothed labels,
    averaged over the images. The network is part of the loss: at test time :math:`x / |x|` is used alone.

    Args:
        num_classes: number of training classes.
        embedding_size: length of the embeddings.
        layers: layers of message passing.
        heads: heads of the attention; they divide the length of the embeddings.
        temperature: T, which divides the logits of both classifiers.
        label_smoothing: share of the target that is spread over all classes.
        dropout: dropout of the attention weights, of the messages and of the feed-forward network.
        auxiliary_weight: a, the factor of the cross-entropy of the embeddings themselves.

    Raises:
        ValueError: if a number is outside its range, or the heads do not divide the embedding.

    Example:
        >>> import torch
        >>> loss = LIBCLoss(num_classes=10, embedding_size=8, layers=2)
        >>> loss(torch.eye(8), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])).shape
        torch.Size([])
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        layers: int = 1,
        heads: int = 2,
        temperature: float = 0.2,
        label_smoothing: float = 0.1,
        dropout: float = 0.1,
        auxiliary_weight: float = 1.0,
    ) -> None:
        super().__init__()
        for name, count in (("layers", layers), ("heads", heads)):
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ValueError(f"{name} must be a positive integer, got {count!r}")
        if embedding_size % heads:
            raise ValueError(
                f"the heads of libc divide the embedding among them: {heads} heads do not divide {embedding_size} "
                "numbers; set the option heads to a divisor, or change the length of the embedding"
            )
        if not temperature > 0:
            raise ValueError(f"temperature divides the logits and must be positive, got {temperature!r}")
        for name, share in (("label_smoothing", label_smoothing), ("dropout", dropout)):
            if not 0 <= share < 1:
                raise ValueError(f"{name} must lie in [0, 1), got {share!r}")
        if not auxiliary_weight >= 0:
            raise ValueError(f"auxiliary_weight is a factor and must not be negative, got {auxiliary_weight!r}")
        self.temperature, self.label_smoothing = float(temperature), float(label_smoothing)
        self.auxiliary_weight = float(auxiliary_weight)
        self.project = nn.Linear(embedding_size, embedding_size)
        # Their defaults are those of LIBC: ReLU, and the layer norm after the residual sum.
        self.layers = nn.Sequential(
            *(nn.TransformerEncoderLayer(embedding_size, heads, 4 * embedding_size, dropout) for _ in range(layers))
        )
        self.norm = nn.BatchNorm1d(embedding_size)
        self.norm.bias.requires_grad_(False)
        self.refined = nn.Linear(embedding_size, num_classes, bias=False)
        nn.init.normal_(self.refined.weight, std=0.001)
        self.auxiliary = nn.Linear(embedding_size, num_classes)

    def refine(self, embeddings: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        """Compute the features of the images after the messages of the batch."""
        return self.layers(self.project(normalize(embeddings)))

    def forward(self, embeddings: Float[Tensor, "B D"], labels: Int[Tensor, B]) -> Float[Tensor, ""]:
        """Compute the cross-entropy of the refined features, plus that of the embeddings."""
        refined = self._cross_entropy(self.refined(self.norm(self.refine(embeddings))), labels)
        return refined + self.auxiliary_weight * self._cross_entropy(self.auxiliary(embeddings), labels)

    def _cross_entropy(self, logits: Float[Tensor, "B K"], labels: Int[Tensor, B]) -> Float[Tensor, ""]:
        return cross_entropy(logits / self.temperature, labels, label_smoothing=self.label_smoothing)
