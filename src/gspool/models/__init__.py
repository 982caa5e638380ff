"""Backbones by name, the embedding model around them, and the one-line swap of a pooling layer.

Names are imported on first use: the swap needs torch alone, the embedding model needs `gspool[train]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gspool.on_demand import import_on_demand, importable

if TYPE_CHECKING:
    from gspool.models.backbone import Backbone
    from gspool.models.create import create_backbone, list_backbones
    from gspool.models.embedder import Embedded, Embedder, FeatureMapEmbedder
    from gspool.models.freezing import Freeze, Lora, parameter_groups
    from gspool.models.pixels import Pixels
    from gspool.models.replace import replace_pooling

_HOME = {
    "Backbone": "backbone",
    "Embedded": "embedder",
    "Embedder": "embedder",
    "FeatureMapEmbedder": "embedder",
    "Freeze": "freezing",
    "Lora": "freezing",
    "Pixels": "pixels",
    "create_backbone": "create",
    "list_backbones": "create",
    "parameter_groups": "freezing",
    "replace_pooling": "replace",
}

# Hidden from type checkers: to them a module with __getattr__ has every name, and a wrong one would go unnoticed.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return import_on_demand("gspool.models", _HOME, name, "train")

    def __dir__() -> list[str]:
        return importable("gspool.models", _HOME)
