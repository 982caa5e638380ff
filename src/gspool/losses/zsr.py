"""Cross-batch zero-shot regularisation: attributes learned on some classes must predict the others (Sec. 4.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gspool.functional import ridge_regression
from gspool.functional.checks import check_tensor, computing_dtype, full_precision

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


class ZSRLoss(nn.Module):
    """Fit class embeddings from attributes on one half of the classes, predict the other half, and the other way round.

    Each class has a learned embedding. The batch is split by label into two class-disjoint halves; a ridge regression
    (P3) on one half maps attributes to embeddings, and its predictions for the other half are classified among all
    classes. The loss is the sum of the two halves' mean cross-entropies, as in Sec. 4.3.

    Args:
        num_classes: number of training classes.
        dim: size of the class embeddings.
        ridge: the regularisation of the regression, epsilon in (P3).
        scale: factor on the logits; the paper shows none, the authors' reference implementation uses 9.5.
        repeats: number of random splits of each batch, averaged (the paper's footnote 1).

    Raises:
        ValueError: for values outside their range; on use, for attributes or labels that do not fit.

    Example:
        >>> zsr = ZSRLoss(num_classes=10, dim=16)
        >>> attributes = torch.rand(8, 64).softmax(-1)
        >>> loss = zsr(attributes, labels=torch.tensor([0, 0, 3, 3, 5, 5, 7, 7]))
        >>> loss.shape
        torch.Size([])
    """

    def __init__(
        self, num_classes: int, dim: int = 128, ridge: float = 0.05, scale: float = 9.5, repeats: int = 1
    ) -> None:
        super().__init__()
        for name, value, least in (("num_classes", num_classes, 2), ("dim", dim, 1), ("repeats", repeats, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
        if not ridge > 0 or not scale > 0:
            raise ValueError(f"ridge and scale must be positive, got ridge={ridge!r} and scale={scale!r}")
        self.ridge, self.scale, self.repeats = float(ridge), float(scale), repeats
        self.class_embeddings = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.kaiming_normal_(self.class_embeddings)

    def forward(self, attributes: Float[Tensor, "B M"], labels: Int[Tensor, B]) -> Float[Tensor, ""]:
        """Regularise one batch of attributes, in any order of the labels."""
        check_batch(attributes, labels, self.class_embeddings.shape[0])
        with full_precision(attributes):
            dtype = computing_dtype(attributes, self.class_embeddings)
            attributes, embeddings = attributes.to(dtype), self.class_embeddings.to(dtype)
            halves = [random_half_of_classes(labels, embeddings.shape[0]) for _ in range(self.repeats)]
            fitted = torch.stack([half for first in halves for half in (first, ~first)])
            predicted, seen = ~fitted, fitted[..., None]
            # A sample of the other half counts as a row of zeros, so that no shape depends on the labels.
            predictors = ridge_regression(attributes * seen, embeddings[labels] * seen, self.ridge)
            logits = self.scale * (attributes @ predictors) @ embeddings.t()
            each = cross_entropy(logits.flatten(0, 1), labels.repeat(len(fitted)), reduction="none").view_as(fitted)
            return ((each * predicted).sum(1) / predicted.sum(1)).sum() / self.repeats

    def extra_repr(self) -> str:
        """Name the sizes in `print(model)`."""
        classes, dim = self.class_embeddings.shape
        return f"num_classes={classes}, dim={dim}, ridge={self.ridge}, scale={self.scale}, repeats={self.repeats}"


def random_half_of_classes(labels: Int[Tensor, B], num_classes: int) -> Bool[Tensor, B]:
    """Mark the samples of a random half of the classes in the batch (the larger half, where their number is odd)."""
    # A draw for every class of the data, present or not, costs no synchronisation and no shape that depends on labels.
    order = torch.rand(num_classes, device=labels.device)
    present = torch.zeros(num_classes, dtype=torch.bool, device=labels.device).index_fill(0, labels, True)
    order = torch.where(present, order, torch.inf)
    rank = torch.empty_like(order, dtype=torch.long)
    rank = rank.scatter(0, order.argsort(), torch.arange(num_classes, device=labels.device))
    return (2 * rank < present.sum())[labels]


def check_batch(attributes: Any, labels: Any, num_classes: int) -> None:
    """Refuse attributes and labels that do not fit, and a batch of a single class."""
    check_tensor(attributes, "attributes", "[B, M]")
    if attributes.ndim != 2 or attributes.shape[1] == 0:
        raise ValueError(f"attributes must be [B, M], one row an image, got shape {tuple(attributes.shape)}")
    if not isinstance(labels, torch.Tensor) or labels.dtype == torch.bool or labels.is_floating_point():
        got = labels.dtype if isinstance(labels, torch.Tensor) else type(labels).__name__
        raise ValueError(
            f"labels must be a tensor of integers (torch.int64), got {got}; "
            "floating-point labels may hold NaN, so convert them yourself with labels.long() after checking"
        )
    if tuple(labels.shape) != (attributes.shape[0],):
        raise ValueError(f"labels must have shape ({attributes.shape[0]},), one an image, got {tuple(labels.shape)}")
    if labels.device != attributes.device:
        raise ValueError(
            f"attributes are on {attributes.device} and labels on {labels.device}; move both to one device"
        )
    capturing = labels.is_cuda and torch.cuda.is_current_stream_capturing()
    if torch.compiler.is_compiling() or capturing:
        return
    # They are equal only where there is a single class. Both at once: a GPU is waited for.
    low, high = torch.stack(torch.aminmax(labels)).tolist() if labels.numel() else (0, 0)
    if low == high:
        raise ValueError(
            "zero-shot regularisation needs at least two classes in a batch, one to fit on and one to predict, "
            f"got {f'only class {low}' if labels.numel() else 'an empty batch'}; "
            "use a sampler that draws several classes for each batch"
        )
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"labels must lie in 0 .. {num_classes - 1} (num_classes={num_classes}), "
            f"got {low} .. {high}; number the training classes from 0"
        )
