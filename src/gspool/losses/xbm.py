"""Cross-batch memory: the loss of a batch, and its loss against embeddings of earlier batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class CrossBatchMemoryLoss(nn.Module):
    """Add to a loss of the batch the same loss against a memory of earlier batches (XBM; Supp. "Hyperparameters").

    For the first ``start`` steps the batch is alone, so that embeddings have become slow enough to be remembered; then
    each batch is compared with what the memory holds, and takes the place of the oldest. A pair loss compares every
    embedding with the memory. A loss with proxies has no pairs: there the remembered embeddings meet the proxies, which
    alone learn from it. Memory and counters are buffers, so that an interrupted run goes on where it was.

    Args:
        loss: a loss of pytorch-metric-learning.
        dim: length of the embeddings.
        capacity: how many embeddings the memory holds.
        start: steps before the memory is used and filled.
        weight: factor of the memory's loss.

    Raises:
        ValueError: if capacity or start is not a number of things, the weight is negative, or the loss can compare
            a batch neither with a memory nor with proxies.

    Example:
        >>> from gspool import losses
        >>> loss = losses.create("xbm+c1", num_classes=10, dim=2, memory_batches=2, batch_size=4, start=0)
        >>> embeddings, labels = torch.eye(2)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])
        >>> loss(embeddings, labels)
        tensor(0.)
        >>> loss.extra_repr()
        '4 of 8 embeddings, from step 0'
    """

    embeddings: Tensor
    labels: Tensor
    seen: Tensor
    steps: Tensor

    def __init__(self, loss: nn.Module, dim: int, capacity: int, start: int = 1_000, weight: float = 1.0) -> None:
        super().__init__()
        for name, value, least in (("capacity", capacity, 1), ("start", start, 0)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
        if not weight >= 0:
            raise ValueError(f"weight is the factor of the memory's loss and must not be negative, got {weight!r}")
        self.loss, self.capacity, self.start, self.weight = loss, capacity, start, float(weight)
        self.has_proxies = _has_proxies(loss)
        self.register_buffer("embeddings", torch.zeros(capacity, dim))
        self.register_buffer("labels", torch.zeros(capacity, dtype=torch.int64))
        self.register_buffer("seen", torch.tensor(0))
        self.register_buffer("steps", torch.tensor(0))

    def forward(
        self, embeddings: Float[Tensor, "B D"], labels: Int[Tensor, B], indices_tuple: Any = None
    ) -> Float[Tensor, ""]:
        """Compare the batch with itself and with the memory; in training the batch is remembered afterwards.

        ``indices_tuple`` holds the pairs or triplets within the batch that a miner has chosen.
        """
        loss = self.loss(embeddings, labels, indices_tuple)
        if int(self.steps) >= self.start:
            filled = min(int(self.seen), self.capacity)
            if filled:
                loss = loss + self.weight * self._memory_loss(embeddings, labels, filled)
            if self.training:
                self._remember(embeddings, labels)
        if self.training:
            self.steps += 1
        return loss

    def _memory_loss(self, embeddings: Tensor, labels: Tensor, filled: int) -> Float[Tensor, ""]:
        # A copy: the oldest rows are overwritten below, before the backward pass reads them.
        old, old_labels = self.embeddings[:filled].to(embeddings, copy=True), self.labels[:filled].clone()
        if self.has_proxies:
            return self.loss(old, old_labels)
        return self.loss(embeddings, labels, ref_emb=old, ref_labels=old_labels)

    @torch.no_grad()
    def _remember(self, embeddings: Tensor, labels: Tensor) -> None:
        # A batch larger than the memory fills it with its last rows.
        new, new_labels = embeddings.detach()[-self.capacity :], labels[-self.capacity :]
        rows = (self.seen + torch.arange(len(new), device=self.seen.device)) % self.capacity
        self.embeddings[rows] = new.to(self.embeddings)
        self.labels[rows] = new_labels.to(self.labels)
        self.seen += len(new)

    def extra_repr(self) -> str:
        """Show how full the memory is in `print(model)`."""
        return f"{min(int(self.seen), self.capacity)} of {self.capacity} embeddings, from step {self.start}"


def _has_proxies(loss: nn.Module) -> bool:
    """Check early whether a loss has proxies or compares pairs, before the first step that depends on it."""
    from pytorch_metric_learning.losses import CrossBatchMemory, WeightRegularizerMixin

    if isinstance(loss, WeightRegularizerMixin):
        return True
    pair_losses = CrossBatchMemory.supported_losses()
    if type(loss).__name__ not in pair_losses:
        raise ValueError(
            f"{type(loss).__name__} is computed on one batch as a whole and cannot be used with a memory; "
            f"xbm+ goes with losses with proxies and with {', '.join(pair_losses)}"
        )
    return False
