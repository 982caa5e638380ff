"""Why an image has its embedding: where the pooling looks, which prototypes it finds, what two images share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import nn

from gspool import functional
from gspool.evaluation.entropy import FLAT_ENTROPY, relative_entropy
from gspool.models import Embedder
from gspool.models.embedder import embed_features
from gspool.models.freezing import evaluating
from gspool.pooling.class_token import WithClassToken
from gspool.pooling.embedding import PoolThenEmbed
from gspool.pooling.gsp import GSP
from gspool.pooling.layer import as_tokens
from gspool.search.model import as_input, prepare

if TYPE_CHECKING:
    from jaxtyping import Float, Int64, UInt8
    from PIL.Image import Image
    from torch import Tensor


class Explanation(NamedTuple):
    """How one image became its embedding; every map is on the grid of h x w tokens over ``image``.

    ``owners``, ``attributes`` (sum 1) and ``plan`` are None for a pooling layer without prototypes. ``plan`` is the
    part of the transported mass that each prototype takes from each place, and sums to 1: over the places to
    ``attributes``, and over the prototypes to ``weights`` (for the background role to its opposite, what is *not*
    pooled). Without attributes, which also a layer with one prototype in every group has not, ``missing`` gives the
    reason. ``patch_share`` is the part of the embedding that was pooled from the places, the rest is the class token:
    the length along the embedding of what each of them adds to it.
    """

    image: UInt8[Tensor, "3 H W"]
    embedding: Float[Tensor, " D"]
    weights: Float[Tensor, "h w"]
    owners: Int64[Tensor, "h w"] | None = None
    attributes: Float[Tensor, " M"] | None = None
    plan: Float[Tensor, "M h w"] | None = None
    missing: str = ""
    patch_share: float = 1.0

    @property
    def entropy(self) -> float:
        """Compute how even the weights are: 1 is average pooling, 0 a single token."""
        return relative_entropy(self.weights.double().flatten()[None]).item()

    @property
    def is_flat(self) -> bool:
        """Whether the weights are nearly uniform."""
        return self.entropy >= FLAT_ENTROPY

    @property
    def caveat(self) -> str | None:
        """Return why the maps mean little, if they do: nearly uniform weights, or an embedding of the class token."""
        if self.is_flat:
            remedy = "" if self.plan is None else "; train with a smaller mu or a larger epsilon to make GSP select"
            return f"the weights are nearly uniform (entropy {self.entropy:.4f}), so the maps mean little{remedy}"
        if self.patch_share < 0.5:
            return (
                f"the class token makes {1 - self.patch_share:.0%} of the embedding, and the maps show the rest; train "
                "with the pooling layer alone if the maps are to explain all of it"
            )
        return None

    @property
    def prominent(self) -> list[int]:
        """Return the prototypes with at least their even share of the mass, 1 / M; none without attributes."""
        if self.attributes is None:
            return []
        # Rounding must not drop a prototype of exactly even share.
        return (self.attributes >= 0.9999 / len(self.attributes)).nonzero().flatten().tolist()

    def most_used(self, top: int) -> list[tuple[int, float]]:
        """Return the prototypes with the largest attributes, at most ``top`` of them; none without attributes."""
        if self.attributes is None:
            return []
        values, prototypes = self.attributes.topk(min(top, len(self.attributes)))
        return list(zip(prototypes.tolist(), values.tolist(), strict=True))

    def figures(self) -> dict[str, Any]:
        """Return the maps and attributes as lists of numbers, ready for JSON."""
        maps = {name: getattr(self, name) for name in ("weights", "owners", "attributes")}
        figures = {name: None if value is None else value.tolist() for name, value in maps.items()}
        return {
            "grid": list(self.weights.shape),
            "entropy": self.entropy,
            "patch_share": self.patch_share,
            **figures,
        }


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

    def figures(self) -> dict[str, Any]:
        """Return overlap, cosine and the prototypes as lists of numbers, ready for JSON."""
        columns = {"prototype": self.prototypes, "share": self.share, "first": self.first, "second": self.second}
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        prototypes = [dict(zip(columns, row, strict=True)) for row in rows]
        return {"overlap": self.overlap, "similarity": self.similarity, "prototypes": prototypes}


@torch.no_grad()
def explain(model: Embedder, image: Image | UInt8[Tensor, "3 H W"]) -> Explanation:
    """Compute where a model looks in an image, and which of its prototypes owns which region (Fig. 4).

    The owner of a place is the prototype that takes most of its mass in the solution of (P2), ``argmax_i pi_ij``.

    Args:
        model: an embedding model; it is used in evaluation mode, and left in the mode it was in.
        image: a PIL image of any size, which is resized and cropped as the model expects, or a uint8 tensor that is so
            already.

    Raises:
        ValueError: if the pooling layer has no weights, its tokens form no grid, or the image is not one.

    Example:
        >>> from PIL import Image
        >>> model = Embedder("small_cnn", pooling="gsp", dim=16, pooling_options={"prototypes": 4})
        >>> explanation = explain(model, Image.new("RGB", (80, 60), "teal"))
        >>> explanation.weights.shape == explanation.owners.shape, explanation.attributes.shape
        (True, torch.Size([4]))
    """
    pixels = image if isinstance(image, torch.Tensor) else prepare(image, model)
    if pixels.dtype != torch.uint8 or pixels.ndim != 3 or pixels.shape[0] != 3:
        raise ValueError(
            f"an image to explain is a PIL image or a uint8 tensor [3, H, W], got {pixels.dtype} of shape "
            f"{tuple(pixels.shape)}; take one image of a batch with images[0]"
        )
    missing = missing_prototypes(model) or equal_attributes(model)
    with evaluating(model):
        features, class_token, _ = model.features(as_input(model, pixels[None]))
        pooled = embed_features(model.head, features, class_token)
        plan = None if missing else transport(model, features).plan[0].cpu()
        patch_share = 1 - share_of_class_token(model, cast("Tensor", pooled.pooled)[0], class_token)
    if pooled.weights is None:
        raise ValueError(
            f"the pooling layer {model.settings.pooling!r} of this model gives no weight to the places of an image, so "
            "there is no map to show; layers with weights are gsp, gmp+gsp, gemean+gsp, gap, crow, delf, tsmk, ep, "
            "abmilp and aim"
        )
    if features.ndim != 4:
        raise ValueError(
            f"the {pooled.weights.shape[1]} tokens of this backbone form no grid over the image, so their weights "
            "cannot be drawn on it; model.embed(images).weights has them as a list"
        )
    grid = (features.shape[2], features.shape[3])
    whole = Explanation(
        pixels.cpu(),
        pooled.embedding[0].cpu(),
        pooled.weights[0].unflatten(0, grid).cpu(),
        missing=missing,
        patch_share=patch_share,
    )
    if plan is not None:
        plan = (plan / plan.sum()).unflatten(1, grid)
        return whole._replace(owners=plan.argmax(0), attributes=plan.sum((1, 2)), plan=plan)
    # What GSP gives as attributes says nothing before its prototypes are set, nor with one in every group.
    return whole


def shared_prototypes(first: Explanation, second: Explanation, top: int = 8) -> Shared:
    """Compare the attributes of two images, explained by one model; list at most ``top`` prototypes.

    Raises:
        ValueError: if the model has no prototypes, the two images come from different models, or ``top`` is below 1.

    Example:
        >>> from PIL import Image
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


def share_of_class_token(model: Embedder, vector: Float[Tensor, " D"], token: Float[Tensor, "1 C"] | None) -> float:
    """Return what the class token adds to a vector along its direction, as a part of its length; 0 without one."""
    if not isinstance(model.head, WithClassToken):
        return 0.0
    part = model.head.class_part(cast("Tensor", token))[0].to(vector)
    along = part @ vector[: len(part)]
    return float(along / vector.square().sum().clamp_min(torch.finfo(vector.dtype).tiny))


def prototype_layer(model: Embedder) -> GSP | None:
    """Return the GSP layer of a model's head; None where it pools in another way."""
    return next((module for module in model.head.modules() if isinstance(module, GSP)), None)


def missing_prototypes(model: Embedder) -> str:
    """Return why a model has no prototypes, or none yet; empty where it has."""
    layer = prototype_layer(model)
    if layer is None:
        return (
            f"the pooling layer {model.settings.pooling!r} of this model has no prototypes, only weights; "
            "gsp, gmp+gsp and gemean+gsp have both"
        )
    if layer.warm_start is None or not layer.warm_start.collecting:
        return ""
    seen, wanted = len(layer.warm_start.memory), layer.warm_start.wanted
    return (
        f"the {len(layer.prototypes)} prototypes of this model are not set yet: training saw {seen:,} vectors and "
        f"warm_start needs {wanted:,}, so GSP still acts as average pooling; train longer, or with a lower warm_start "
        "(--model.pooling_options.warm_start)"
    )


def equal_attributes(model: Embedder) -> str:
    """Return why the prototypes of a model take equal shares of every image; empty where they differ."""
    layer = prototype_layer(model)
    if layer is None or not 1 < layer.groups == len(layer.prototypes):
        return ""
    return f"one prototype in each of {layer.groups} groups: their shares are the same in every image"


class Transported(NamedTuple):
    """The distances between prototypes and tokens, and the solution of (P2), which the layer itself never holds."""

    cost: Float[Tensor, "B M N"]
    plan: Float[Tensor, "B M N"]


def transport(model: Embedder, features: Float[Tensor, "B C h w"]) -> Transported:
    """Solve (P2) between the prototypes of a model and the tokens or keys that it compares with them."""
    layer = cast("GSP", prototype_layer(model))
    head = model.head.layer if isinstance(model.head, WithClassToken) else model.head
    if layer.key is not None:
        tokens = layer.key(as_tokens(features, layer.dim))
    elif isinstance(head, PoolThenEmbed):
        tokens = as_tokens(features, layer.dim)
    else:
        # Every other head that is built on GSP embeds the backbone's features before it compares them.
        tokens = as_tokens(cast("nn.Module", head.embed)(features), layer.dim)
    # By differences: products lose digits exactly where a token is near a prototype.
    cost = torch.cdist(
        functional.clip_norm(layer.prototypes.float()).expand(len(tokens), -1, -1),
        functional.clip_norm(tokens.float()),
        compute_mode="donot_use_mm_for_euclid_dist",
    )
    # Every group of prototypes by itself.
    grouped = cost.unflatten(1, (layer.groups, -1))
    return Transported(cost, functional.partial_transport(grouped, layer.mu, layer.epsilon).plan.flatten(1, 2))
