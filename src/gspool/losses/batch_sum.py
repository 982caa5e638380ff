"""The reduction of C1: the sum over all pairs, divided by the number of embeddings in the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytorch_metric_learning.reducers import BaseReducer

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class SumOverBatchSize(BaseReducer):
    """Divide the sum of the pair losses by the batch size, as the authors of XBM do for their contrastive loss.

    With a memory a query meets thousands of pairs; a mean over them would let the few that still violate the margin
    vanish among the many that do not.
    """

    def pos_pair_reduction(
        self, losses: Float[Tensor, P], loss_indices: Any, embeddings: Float[Tensor, "B D"], labels: Any
    ) -> Float[Tensor, ""]:
        """Reduce the positive pairs; the negative ones alike."""
        return losses.sum() / len(embeddings)

    neg_pair_reduction = pos_pair_reduction
