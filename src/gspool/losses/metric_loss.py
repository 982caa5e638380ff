"""What is minimised: a metric-learning loss, mixed with the zero-shot regularisation where that is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn
from torch.nn.functional import normalize

from gspool.losses.create import CLASSIFIERS
from gspool.losses.zsr import ZSRLoss

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Int
    from torch import Tensor


class LossParts(NamedTuple):
    """The loss and what it is made of; ``zero_shot`` is None where there is no regularisation."""

    total: Float[Tensor, ""]
    metric: Float[Tensor, ""]
    zero_shot: Float[Tensor, ""] | None = None


class SplitLoss(nn.Module):
    """Sum a loss over parts of the embeddings that lie side by side; each part is a unit vector to its loss.

    Args:
        losses: one for every part, each with proxies or a memory of its own.
        lengths: numbers of every part.

    Example:
        >>> import torch
        >>> from gspool import losses
        >>> loss = SplitLoss([losses.create("pnca", num_classes=4, dim=dim) for dim in (8, 2)], [8, 2])
        >>> loss(torch.rand(4, 10), torch.tensor([0, 1, 2, 3])).shape
        torch.Size([])
    """

    def __init__(self, losses: Sequence[nn.Module], lengths: Sequence[int]) -> None:
        super().__init__()
        self.losses, self.lengths = nn.ModuleList(losses), list(lengths)

    def forward(
        self, embeddings: Float[Tensor, "B D"], labels: Int[Tensor, B], *pairs: tuple[Tensor, ...]
    ) -> Float[Tensor, ""]:
        """Compute the sum of the losses; pairs of a miner are those of all parts."""
        parts = embeddings.split(self.lengths, dim=1)
        each = [loss(normalize(part), labels, *pairs) for loss, part in zip(self.losses, parts, strict=True)]
        return torch.stack(each).sum()


class MetricLoss(nn.Module):
    r"""Mix a loss of the embeddings with the zero-shot loss of the attributes (Supp. "Hyperparameters").

    .. math:: L = (1 - \lambda) L_{DML} + \lambda L_{ZS}

    Args:
        metric: the loss of embeddings and labels, such as one of `gspool.losses.create`.
        zsr: the regularisation, or None for the metric loss alone.
        zsr_weight: lambda; 0.1 in the paper, 0.5 on Cifar Collage.
        miner: chooses the pairs or triplets that the metric loss sees, such as one of `gspool.losses.create_miner`.

    Raises:
        ValueError: if lambda is outside [0, 1], or a miner comes with LIBC or cross-entropy; on use, if there are no
            attributes to regularise.

    Example:
        >>> import torch
        >>> from gspool import losses
        >>> loss = MetricLoss(losses.create("pnca", num_classes=4, dim=8), ZSRLoss(num_classes=4, dim=8), 0.1)
        >>> labels = torch.tensor([0, 1, 2, 3])
        >>> parts = loss(torch.eye(8)[:4], labels, attributes=torch.rand(4, 16).softmax(1))
        >>> bool((parts.total - (0.9 * parts.metric + 0.1 * parts.zero_shot)).abs() < 1e-6)
        True
    """

    def __init__(
        self,
        metric: nn.Module,
        zsr: ZSRLoss | None = None,
        zsr_weight: float = 0.1,
        miner: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= zsr_weight <= 1:
            raise ValueError(f"zsr_weight is lambda of (1 - lambda) L_DML + lambda L_ZS, in [0, 1], got {zsr_weight!r}")
        self.classifies = isinstance(metric, tuple(CLASSIFIERS.values()))
        if miner is not None and self.classifies:
            raise ValueError(
                f"{type(metric).__name__} classifies images and has no pairs for a miner to choose; leave it out"
            )
        self.metric, self.zsr, self.zsr_weight, self.miner = metric, zsr, float(zsr_weight), miner

    def metric_part(self, embeddings: Float[Tensor, "B D"], labels: Int[Tensor, B]) -> Float[Tensor, ""]:
        """Compute the loss of the embeddings alone, on the pairs of the miner where there is one."""
        if self.miner is None:
            return self.metric(embeddings, labels)
        return self.metric(embeddings, labels, self.miner(embeddings, labels))

    def forward(
        self,
        embeddings: Float[Tensor, "B D"],
        labels: Int[Tensor, B],
        attributes: Float[Tensor, "B M"] | None = None,
    ) -> LossParts:
        """Compute the loss of one batch, and its parts."""
        metric = self.metric_part(embeddings, labels)
        if self.zsr is None:
            return LossParts(total=metric, metric=metric)
        if attributes is None:
            raise ValueError(
                "zero-shot regularisation needs attributes, which this pooling layer does not give; "
                "use gsp, gmp+gsp or gemean+gsp, or leave the regularisation out (zsr_weight 0)"
            )
        zero_shot = self.zsr(attributes, labels)
        total = (1 - self.zsr_weight) * metric + self.zsr_weight * zero_shot
        return LossParts(total=total, metric=metric, zero_shot=zero_shot)
