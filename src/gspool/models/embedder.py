"""The embedding model: image -> feature map -> pooled, embedded features -> unit vector."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from huggingface_hub import ModelCard, ModelHubMixin
from torch import nn

from gspool.models import model_card, pretrained
from gspool.models.backbone import Backbone, Features
from gspool.models.create import create_backbone
from gspool.models.freezing import (
    Freeze,
    Lora,
    freeze_parameters,
    hold_statistics,
    insert_adapters,
    learnable_names,
    parameter_groups,
)
from gspool.models.pixels import PixelNormalisation, Pixels, check_images
from gspool.models.pretrained import Settings, portable
from gspool.pooling.embedding import create_embedding

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from gspool.pooling.layer import PoolingLayer

# Below this length a vector has no meaningful direction; dividing by less would only blow up the gradient.
SHORTEST = 1e-6


class Embedded(NamedTuple):
    """One unit vector per image, and what it was pooled from.

    ``weights`` (sum 1 over the N tokens, row by row on a ``grid`` of h x w) and ``attributes`` (sum 1 over
    the prototypes) are None if the pooling layer has none; ``grid`` is None if the tokens form none. ``pooled`` is the
    vector before it was scaled to unit length, which a classifier reads.
    """

    embedding: Float[Tensor, "B D"]
    weights: Float[Tensor, "B N"] | None = None
    attributes: Float[Tensor, "B M"] | None = None
    grid: tuple[int, int] | None = None
    pooled: Float[Tensor, "B D"] | None = None


def embed_features(
    head: PoolingLayer, features: Float[Tensor, "B C h w"], class_token: Float[Tensor, "B C"] | None = None
) -> Embedded:
    """Pool and embed features, with the class token if the head takes one, and scale to unit length."""
    pooled = head.pool(features, *((None, class_token) if head.takes_class_token else ()))
    # Half precision ends here: a norm of 128 squares overflows float16, and the losses compare small angles.
    vector = pooled.pooled.to(torch.promote_types(pooled.pooled.dtype, torch.float32))
    return Embedded(
        embedding=F.normalize(vector, dim=-1, eps=SHORTEST),
        weights=pooled.weights,
        attributes=pooled.attributes,
        grid=(features.shape[2], features.shape[3]) if features.ndim == 4 else None,
        pooled=vector,
    )


class FeatureMapEmbedder(nn.Module):
    """Pool and embed feature maps that a frozen backbone has computed beforehand.

    Args:
        channels: channels of the feature maps.
        pooling: a name of `gspool.pooling.list()`.
        dim: length of the embedding.
        **options: options of the pooling layer.

    Example:
        >>> model = FeatureMapEmbedder(64, "gsp", 16, prototypes=8)
        >>> model.embed(torch.randn(2, 64, 8, 8)).embedding.shape
        torch.Size([2, 16])
    """

    def __init__(self, channels: int, pooling: str = "gsp", dim: int = 128, **options: Any) -> None:
        super().__init__()
        self.head = create_embedding(pooling, channels, dim, **options)

    @property
    def out_dim(self) -> int:
        """Length of the embedding."""
        return self.head.out_dim

    def freeze(self, freeze: Freeze) -> Self:
        """Do nothing: there is no backbone here, and the head always learns."""
        return self

    def embed(self, images: Float[Tensor, "B C H W"]) -> Embedded:
        """Embed feature maps [B, C, H, W], or tokens [B, N, C], as unit vectors."""
        return embed_features(self.head, images)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        """Embed as unit vectors."""
        return self.embed(images).embedding


class Embedder(nn.Module, ModelHubMixin):
    """Embed RGB images, uint8 or floating in [0, 1], as unit vectors (Sec. 4.4).

    Args:
        backbone: a name for `create_backbone`, or a `Backbone` of your own.
        pooling: a name of `gspool.pooling.list()`.
        dim: length of the embedding; a 1x1 convolution without bias makes it. None pools the features as they are.
        backbone_options: what `create_backbone` takes besides the name, ``{"weights": PATH}`` for example.
        pooling_options: what the pooling layer takes besides its sizes.
        freeze: ``none``; ``batchnorm``, the backbone's batch norm with its statistics; ``all``, the whole backbone; or
            ``all-but-N``, all but its last N blocks (timm).
        lora: low-rank adapters that learn instead of the weights of the backbone: see `add_lora`.
        normalise: whether the model normalises images for its backbone; otherwise they must be normalised already.

    Raises:
        ValueError: if a name, an option or a size does not fit.

    Example:
        >>> import torch
        >>> model = Embedder(backbone="resnet20", pooling="gap", dim=16).eval()
        >>> images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
        >>> model(images).shape
        torch.Size([2, 16])
        >>> model.embed(images).grid
        (8, 8)
    """

    def __init__(
        self,
        backbone: str | Backbone = "timm/resnet50",
        pooling: str = "gsp",
        dim: int | None = 128,
        *,
        backbone_options: Mapping[str, Any] | None = None,
        pooling_options: Mapping[str, Any] | None = None,
        freeze: Freeze = "none",
        lora: Lora | None = None,
        normalise: bool = True,
    ) -> None:
        super().__init__()
        if isinstance(backbone, Backbone):
            if backbone_options:
                raise ValueError(
                    "backbone_options are for a backbone given by name; pass yours where you create your own backbone"
                )
            self.backbone, name = backbone, None
        else:
            self.backbone, name = create_backbone(backbone, **(backbone_options or {})), backbone
        self.settings = Settings(
            backbone=name,
            backbone_options=portable(backbone_options or {}),
            pooling=pooling,
            pooling_options=dict(pooling_options or {}),
            dim=dim,
            freeze=freeze,
            normalise=normalise,
        )
        self.normalisation = PixelNormalisation(self.backbone.pixels) if normalise else nn.Identity()
        self.head = create_embedding(pooling, self.backbone.channels, dim, **(pooling_options or {}))
        self._learnable = learnable_names(self.backbone)
        self.freeze(freeze)
        if lora is not None and lora.rank:
            self.add_lora(lora)

    @property
    def pixels(self) -> Pixels:
        """The preprocessing of the backbone; ``pixels.transform()`` converts PIL images to tensors."""
        return self.backbone.pixels

    @property
    def out_dim(self) -> int:
        """Length of the embedding; some layers have another than ``dim``."""
        return self.head.out_dim

    def freeze(self, freeze: Freeze) -> Self:
        """Change what is frozen of the backbone, for a warm-up of the head for example; ``none`` unfreezes all of it.

        Raises:
            ValueError: if there is no such setting.
        """
        freeze_parameters(self.backbone, freeze, self._learnable)
        self.settings = self.settings._replace(freeze=freeze)
        return self.train(self.training)

    def add_lora(self, lora: Lora) -> Self:
        """Add low-rank adapters to the backbone, which learn instead of its weights; a new adapter changes nothing.

        What is frozen stays so: with ``all-but-2`` the adapters of the last two blocks learn. `save_pretrained` adds
        what they have learned to the weights, and a loaded model has none.

        Raises:
            ValueError: if the backbone has no layer of these names.
            ImportError: if peft is not installed.
        """
        insert_adapters(self.backbone, lora)
        self._learnable = learnable_names(self.backbone)
        return self.freeze(self.settings.freeze)

    def train(self, mode: bool = True) -> Self:
        """Set the mode; what is frozen keeps its statistics in either."""
        super().train(mode)
        hold_statistics(self.backbone, self.settings.freeze)
        return self

    def feature_map(self, images: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C h w"]:
        """Return the backbone's features, before embedding and pooling.

        Raises:
            ValueError: if ``images`` is not a batch of RGB images, uint8 or floating in [0, 1].
        """
        return self.features(images).map

    def features(self, images: Float[Tensor, "B 3 H W"]) -> Features:
        """Compute the backbone's feature map, with its class and register tokens where it has them.

        Raises:
            ValueError: as `feature_map`.
        """
        check_images(images, normalised=not self.settings.normalise)
        return self.backbone.features(self.normalisation(images))

    def embed(self, images: Float[Tensor, "B 3 H W"]) -> Embedded:
        """Embed, and return the weights of the tokens and the attributes of the images as well.

        Raises:
            ValueError: as `feature_map`.
        """
        features, class_token, _ = self.features(images)
        return embed_features(self.head, features, class_token)

    def forward(self, images: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B D"]:
        """Embed as unit vectors."""
        return self.embed(images).embedding

    def parameter_groups(
        self, lr: float, weight_decay: float = 0.0, multipliers: Mapping[str, float] | None = None
    ) -> list[dict[str, Any]]:
        """Split the parameters for an optimiser: see `gspool.models.parameter_groups`.

        Example:
            >>> import torch
            >>> model = Embedder("resnet20", pooling="gap")
            >>> groups = model.parameter_groups(lr=1e-5, weight_decay=1e-4, multipliers={"head": 10})
            >>> optimiser = torch.optim.Adam(groups, eps=1e-7)
        """
        return parameter_groups(self, lr, weight_decay, multipliers)

    def save_pretrained(
        self, save_directory: str | Path, *, metrics: Mapping[str, float] | None = None, **hub_options: Any
    ) -> str | None:
        """Write model.safetensors, config.json and a model card README.md into a folder.

        Files are written to a temporary folder and renamed. config.json holds the settings, without the source of the
        first weights, and the checksum of the weights. A README.md that you have edited (and whose first comment you
        have deleted) is kept.

        Args:
            save_directory: the folder; it is created if it does not exist.
            metrics: figures for the model card.
            hub_options: ``push_to_hub=True``, ``repo_id`` and so on, as in `huggingface_hub.ModelHubMixin`.

        Raises:
            ValueError: if an option of the model is one that loading would refuse.
        """
        return pretrained.save(self, Path(save_directory), metrics or {}, hub_options)

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """Return the model card: use, settings, preprocessing, figures."""
        return ModelCard(model_card.text(self.settings, self.pixels, self.out_dim, **kwargs))

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | Path, *, backbone: Backbone | None = None, **hub_options: Any
    ) -> Self:
        """Load a model from a folder that `save_pretrained` wrote, or from the Hugging Face hub, in evaluation mode.

        The files need not be trusted: weights are never a pickle, and config.json may set plain options of the
        architecture but name no file, address or folder.

        Args:
            pretrained_model_name_or_path: the folder, or a repository of the hub.
            backbone: the backbone, for a model that was saved with a custom one.
            hub_options: ``revision``, ``token``, ``cache_dir``, ``local_files_only``, ``force_download``.

        Raises:
            ValueError: if a file is missing or damaged, or config and weights do not fit together.
        """
        folder = pretrained.local_folder(pretrained_model_name_or_path, hub_options)
        return pretrained.load(cls, folder, backbone).eval()
