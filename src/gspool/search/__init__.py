"""Use a trained model: embed a corpus, search it, explain what was found, serve it.

Names are imported on first use, because each needs libraries of its own.

Example:
    >>> from gspool import search
    >>> search.label_filter(["ant"])
    "label IN ('ant')"
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gspool.on_demand import at_hand, import_on_demand

if TYPE_CHECKING:
    from gspool.search.corpus.embed import EmbeddedCorpus, embed_corpus
    from gspool.search.explanation.image import Explanation, explain
    from gspool.search.images import Limits, open_image, prepare
    from gspool.search.index.index import Hit, Index, label_filter, open_index
    from gspool.search.model_source import fingerprint, load_model
    from gspool.search.query import Answer, search_images

_HOME = {
    "Answer": "query",
    "EmbeddedCorpus": "corpus.embed",
    "Explanation": "explanation.image",
    "Hit": "index.index",
    "Index": "index.index",
    "Limits": "images",
    "embed_corpus": "corpus.embed",
    "explain": "explanation.image",
    "fingerprint": "model_source",
    "label_filter": "index.index",
    "load_model": "model_source",
    "open_image": "images",
    "open_index": "index.index",
    "prepare": "images",
    "search_images": "query",
}

__all__ = [
    "Answer",
    "EmbeddedCorpus",
    "Explanation",
    "Hit",
    "Index",
    "Limits",
    "embed_corpus",
    "explain",
    "fingerprint",
    "label_filter",
    "load_model",
    "open_image",
    "open_index",
    "prepare",
    "search_images",
]
_MODEL = ("huggingface_hub", "safetensors", "yaml")
_PICTURES = ("PIL", "numpy")
_INDEX = (*_MODEL, "filelock", "lancedb", "numpy", "pyarrow")
_NEEDS = {
    "Answer": (*_INDEX, "PIL"),
    "EmbeddedCorpus": (*_INDEX, "PIL"),
    "Explanation": ("huggingface_hub", "safetensors"),
    "Hit": _INDEX,
    "Index": _INDEX,
    "Limits": _PICTURES,
    "embed_corpus": (*_INDEX, "PIL"),
    "explain": ("huggingface_hub", "safetensors"),
    "fingerprint": _MODEL,
    "label_filter": _INDEX,
    "load_model": _MODEL,
    "open_image": _PICTURES,
    "open_index": _INDEX,
    "prepare": _PICTURES,
    "search_images": (*_INDEX, "PIL"),
}

# Hidden from type checkers: to them a module with __getattr__ has every name there is, and no slip would be noticed.
if not TYPE_CHECKING:
    __all__ = at_hand(__all__, _NEEDS)

    def __getattr__(name: str) -> Any:
        """Import a public name from its file when it is first asked for."""
        return import_on_demand("gspool.search", _HOME, name, "search")

    def __dir__() -> list[str]:
        """Name what can be imported."""
        return [*__all__]
