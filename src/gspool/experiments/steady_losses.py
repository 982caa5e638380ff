"""The losses of the paper's studies without a branch that waits for the device, so that a step can be captured.

Twins of `gspool.losses.create("c2")` and ``("pnca")``, whose library picks non-zero terms by indexing and by asking how
many there are, and of `gspool.ZSRLoss`, whose solver asks whether it succeeded. Values and gradients are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy, normalize, relu

from gspool.losses import LossParts
from gspool.losses.zsr import random_half_of_classes

if TYPE_CHECKING:
    from jaxtyping import Float, Float64, Int64
    from torch import Tensor, nn

    from gspool.losses import MetricLoss, ZSRLoss

# Enough for every batch of 64: attributes sum to 1, so that 32 of them that are all the same give the Gram matrix 32 at
# most, 641 times the ridge of 0.05; the error (1 - 2 / 642)^(2^15) is below 1e-40.
HALVINGS = 15
# The losses that have a twin here, by the library's names of their classes.
STEADY = ("ContrastiveLoss", "NormalizedSoftmaxLoss")


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
    if kind not in STEADY:
        raise ValueError(f"steps with the losses c2 and pnca can be captured, got {kind}")
    if kind == "ContrastiveLoss":
        return contrastive(embeddings, labels, float(loss.pos_margin), float(loss.neg_margin))  # type: ignore[arg-type]
    return proxy_nca(embeddings, labels, loss.W, float(loss.temperature))  # type: ignore[arg-type]


def steady_parts(
    loss: MetricLoss,
    embeddings: Float[Tensor, "B D"],
    labels: Int64[Tensor, " B"],
    attributes: Float[Tensor, "B M"] | None,
) -> LossParts:
    """Mix the metric loss with the regularisation, as `gspool.losses.MetricLoss` does; without either, it is alone."""
    metric = steady_loss(loss.metric, embeddings, labels)
    if loss.zsr is None or attributes is None:
        return LossParts(total=metric, metric=metric)
    zero_shot = steady_zsr(loss.zsr, attributes, labels)
    total = (1 - loss.zsr_weight) * metric + loss.zsr_weight * zero_shot
    return LossParts(total=total, metric=metric, zero_shot=zero_shot)


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


def steady_zsr(zsr: ZSRLoss, attributes: Float[Tensor, "B M"], labels: Int64[Tensor, " B"]) -> Float[Tensor, ""]:
    """Compute the zero-shot regularisation (Sec. 4.3) by products of matrices alone, in float64.

    Example:
        >>> from gspool import ZSRLoss
        >>> zsr, labels = ZSRLoss(num_classes=4, dim=8), torch.arange(4).repeat(3)
        >>> attributes = torch.rand(12, 16).softmax(1)
        >>> _ = torch.manual_seed(0); library = zsr(attributes, labels)
        >>> _ = torch.manual_seed(0); torch.testing.assert_close(steady_zsr(zsr, attributes, labels), library)
    """
    with torch.autocast(attributes.device.type, enabled=False):
        z, embeddings = attributes.double(), zsr.class_embeddings.double()
        # A product with zeros and ones in the place of an index, whose gradient sorts.
        own = labels[:, None] == torch.arange(len(embeddings), device=labels.device)
        targets = own.double() @ embeddings
        total = z.new_zeros(())
        for _ in range(zsr.repeats):
            first = random_half_of_classes(labels, len(embeddings))
            # Both directions at once: [2, B], what the regression is fitted on; the other half is predicted.
            fitted = torch.stack((first, ~first)).double()
            seen = z * fitted[:, :, None]
            gram = seen @ seen.mT + zsr.ridge * torch.eye(len(z), dtype=z.dtype, device=z.device)
            predictor = seen.mT @ (SteadyInverse.apply(gram, zsr.ridge) @ (targets * fitted[:, :, None]))
            logits = zsr.scale * z @ predictor @ embeddings.t()
            each = cross_entropy(logits.flatten(0, 1), labels.repeat(2), reduction="none").view(2, -1)
            total = total + ((each * (1 - fitted)).sum(1) / (1 - fitted).sum(1)).sum()
        return (total / zsr.repeats).to(attributes.dtype)


class SteadyInverse(torch.autograd.Function):
    """The inverse of symmetric matrices whose eigenvalues are at least ``least``, by Newton's iteration.

    ``X <- X (2 I - K X)`` squares the error ``I - K X`` at every step. From ``X = 2 / (least + most) I``, with the
    largest sum of a row as a bound on the eigenvalues, the error starts below 1. The gradient is ``-X' G X'``.
    """

    @staticmethod
    def forward(context: Any, matrix: Float64[Tensor, "2 B B"], least: float) -> Float64[Tensor, "2 B B"]:
        """Invert."""
        most = matrix.abs().sum(-1).amax(-1)[:, None, None]
        one = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        inverse, twice = 2 / (least + most) * one, 2 * one.expand_as(matrix)
        for _ in range(HALVINGS):
            inverse = inverse @ torch.baddbmm(twice, matrix, inverse, alpha=-1)
        context.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Pass the gradient on to the matrix."""
        (inverse,) = context.saved_tensors
        return -(inverse.mT @ gradients[0] @ inverse.mT), None
