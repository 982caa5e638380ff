"""Compare two images by the prototypes that both of them use."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int64
    from torch import Tensor

    from gspool.search.explanation.image import Explanation


class Shared(NamedTuple):
    """The prototypes that two images share, the largest share first.

    The ``share`` of a prototype is the smaller of its attributes in the two images. All shares, listed or not, sum to
    the ``overlap`` of the two histograms: 1 for equal ones, 0 for images that use different prototypes.
    ``similarity`` is the cosine of the two embeddings, by which search ranks.
    """

    prototypes: Int64[Tensor, " K"]
    share: Float[Tensor, " K"]
    first: Float[Tensor, " K"]
    second: Float[Tensor, " K"]
    overlap: float
    similarity: float

    def rows(self) -> list[tuple[int, float, float, float]]:
        """Return each prototype with its share and its attributes in the two images, as numbers."""
        columns = (self.prototypes, self.share, self.first, self.second)
        return list(zip(*(column.tolist() for column in columns), strict=True))


def shared_prototypes(first: Explanation, second: Explanation, top: int = 8) -> Shared:
    """Compare the attributes of two images, explained by one model; list at most ``top`` prototypes.

    Raises:
        ValueError: if the model has no prototypes, the two images come from different models, or ``top`` is below 1.

    Example:
        >>> from PIL import Image
        >>> from gspool.models import Embedder
        >>> from gspool.search.explanation.image import explain
        >>> model = Embedder("small_cnn", pooling="gsp", dim=16, pooling_options={"prototypes": 4})
        >>> teal = explain(model, Image.new("RGB", (64, 64), "teal"))
        >>> round(shared_prototypes(teal, teal).overlap, 4)
        1.0
    """
    if first.attributes is None or second.attributes is None:
        lacking = first if first.attributes is None else second
        raise ValueError(f"there are no prototypes to compare: {lacking.missing}")
    if first.attributes.shape != second.attributes.shape:
        raise ValueError(
            f"the images were explained by different models: {len(first.attributes)} and {len(second.attributes)} "
            "prototypes; explain both with one model"
        )
    if top < 1:
        raise ValueError(f"top is the number of prototypes to list and must be at least 1, got {top}")
    smaller = torch.minimum(first.attributes, second.attributes)
    share, prototypes = smaller.sort(descending=True, stable=True)
    kept = prototypes[:top]
    return Shared(
        prototypes=kept,
        share=share[:top],
        first=first.attributes[kept],
        second=second.attributes[kept],
        overlap=float(smaller.sum()),
        similarity=float(first.embedding.double() @ second.embedding.double()),
    )
