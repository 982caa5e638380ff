"""Backbones by name, the embedding model around them, and the one-line swap of a pooling layer.

Names are imported when they are asked for: the swap needs torch alone, the embedding model what `gspool[train]` brings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gspool.on_demand import at_hand, import_on_demand

if TYPE_CHECKING:
    from gspool.models.backbone import Backbone
    from gspool.models.create import create_backbone, list_backbones
    from gspool.models.embedded import Embedded
    from gspool.models.embedder import Embedder
    from gspool.models.feature_maps import FeatureMapEmbedder
    from gspool.models.freezing import Freeze
    from gspool.models.groups import parameter_groups
    from gspool.models.pixels import Pixels
    from gspool.models.replace import replace_pooling

__all__ = [
    "Backbone",
    "Embedded",
    "Embedder",
    "FeatureMapEmbedder",
    "Freeze",
    "Pixels",
    "create_backbone",
    "list_backbones",
    "parameter_groups",
    "replace_pooling",
]

_HOME = {
    "Backbone": "backbone",
    "Embedded": "embedded",
    "Embedder": "embedder",
    "FeatureMapEmbedder": "feature_maps",
    "Freeze": "freezing",
    "Pixels": "pixels",
    "create_backbone": "create",
    "list_backbones": "create",
    "parameter_groups": "groups",
    "replace_pooling": "replace",
}
_NEEDS = {
    "Embedder": ("huggingface_hub", "safetensors"),
    "FeatureMapEmbedder": ("huggingface_hub", "safetensors"),
    "create_backbone": ("safetensors",),
    "list_backbones": ("safetensors",),
}

# Hidden from type checkers: to them a module with __getattr__ has every name there is, and no slip would be noticed.
if not TYPE_CHECKING:
    __all__ = at_hand(__all__, _NEEDS)

    def __getattr__(name: str) -> Any:
        """Import a public name from its file when it is first asked for."""
        return import_on_demand("gspool.models", _HOME, name, "train")

    def __dir__() -> list[str]:
        """Name what can be imported."""
        return [*__all__]
