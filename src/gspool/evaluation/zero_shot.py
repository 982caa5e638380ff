"""The zero-shot prediction test: do attributes of some classes predict the embeddings of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.functional import normalize

from gspool.evaluation.averages import MeanStd
from gspool.evaluation.checked_input import as_embeddings, as_labels, check_integer
from gspool.functional import ridge_regression

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class ZeroShotPrediction(NamedTuple):
    """Mean and deviation over class splits, for l2 and cosine, beside the accuracy of guessing.

    ``accuracy`` is the share of held-out classes whose predicted mean lies nearest to their own true mean; with one
    right answer a query it is MAP@R as well. ``map`` is the mean average precision over the whole ranking.
    """

    accuracy_l2: MeanStd
    accuracy_cosine: MeanStd
    map_l2: MeanStd
    map_cosine: MeanStd
    chance: float


@torch.no_grad()
def zero_shot_prediction(
    attributes: Any, embeddings: Any, labels: Any, splits: int = 1000, seed: int = 0, ridge: float = 0.05
) -> ZeroShotPrediction:
    """Predict class embeddings of unseen classes from their attributes (Sec. 5.1, Supp. 2.3).

    A class is described by the mean ``z`` of its attribute histograms, and its true vector is the mean of its
    embeddings. For each random split of the classes into halves, the linear map ``A`` of the ridge regression (P3) is
    fitted on one half; ``A z`` predicts the vectors of the other, which are then looked up among the true vectors of
    that other half.

    Args:
        attributes: attribute histograms [N, M], one an image, as pooling layers return them.
        embeddings: embeddings [N, D] of the same images.
        labels: their classes, integers [N].
        splits: how many random class splits.
        seed: seed of the splits.
        ridge: the regularisation of the regression.

    Raises:
        ValueError: if shapes or types do not fit, there are fewer than four classes, or ``ridge`` is not positive.

    Example:
        >>> classes = torch.arange(8)
        >>> histograms = torch.softmax(torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), dim=1)
        >>> zero_shot_prediction(histograms, histograms @ torch.ones(4, 3).tril(), classes, ridge=1e-9).chance
        0.25
    """
    vectors = as_embeddings(embeddings, "embeddings")
    histograms = as_embeddings(attributes, "attributes", vectors.device)
    if len(histograms) != len(vectors):
        raise ValueError(
            f"attributes and embeddings must be of the same images, got {len(histograms)} and {len(vectors)}"
        )
    classes = as_labels(labels, "labels", len(vectors), vectors.device).unique(return_inverse=True)[1]
    count = int(classes.max()) + 1
    if count < 4:
        raise ValueError(f"two classes to fit and two to tell apart make at least 4 classes, got {count}")
    if not ridge > 0:
        raise ValueError(f"ridge must be positive, or fewer classes than attributes leave A undetermined, got {ridge}")
    check_integer(splits, 1, "splits is how many class splits are drawn and must be an integer of at least 1")
    z, means = _class_means(histograms, classes, count), _class_means(vectors, classes, count)
    # Drawn on the CPU, so that every device sees the same splits.
    draws = torch.Generator().manual_seed(seed)
    orders = torch.stack([torch.randperm(count, generator=draws) for _ in range(splits)]).to(vectors.device)
    seen, unseen = orders.tensor_split([count // 2], dim=1)
    columns = []
    for fit, test in zip(seen, unseen, strict=True):
        predicted, true = z[test] @ ridge_regression(z[fit], means[fit], ridge), means[test]
        l2 = _rank_of_own(torch.cdist(predicted, true, compute_mode="donot_use_mm_for_euclid_dist"))
        cosine = _rank_of_own(-normalize(predicted) @ normalize(true).T)
        shares = [(l2 == 1).double(), (cosine == 1).double(), 1.0 / l2, 1.0 / cosine]
        columns.append(torch.stack([share.mean() for share in shares]))
    table = torch.stack(columns, dim=1)
    accuracy_l2, accuracy_cosine, map_l2, map_cosine = (
        MeanStd(float(row.mean()), float(row.std(correction=0))) for row in table
    )
    return ZeroShotPrediction(accuracy_l2, accuracy_cosine, map_l2, map_cosine, chance=1.0 / unseen.shape[1])


def _class_means(rows: Float[Tensor, "N D"], classes: Int[Tensor, " N"], count: int) -> Float[Tensor, "K D"]:
    sums = torch.zeros(count, rows.shape[1], dtype=torch.float64, device=rows.device)
    sums.index_add_(0, classes, rows.double())
    return sums / classes.bincount(minlength=count)[:, None]


def _rank_of_own(distance: Float[Tensor, "U U"]) -> Float[Tensor, " U"]:
    """Return the rank, from 1, of each row's own column, the diagonal; of equal distances the lower column is first."""
    own = distance.diagonal()[:, None]
    earlier = torch.ones_like(distance, dtype=torch.bool).tril(-1)
    return 1.0 + ((distance < own) | ((distance == own) & earlier)).sum(dim=1).double()
