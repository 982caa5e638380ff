"""Use a trained model: embed a corpus, search it, explain what was found, serve it.

Names are imported on first use, because each needs libraries of its own.

Example:
    >>> from gspool import search
    >>> search.label_filter(["ant"])
    "label IN ('ant')"
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gspool.on_demand import import_on_demand, importable

if TYPE_CHECKING:
    from gspool.search.corpus import EmbeddedCorpus, embed_corpus
    from gspool.search.explanation import Explanation, explain
    from gspool.search.index import Hit, Index, label_filter, open_index
    from gspool.search.index.rerank import Rerank
    from gspool.search.model import Limits, fingerprint, load_model, open_image, prepare
    from gspool.search.query import Answer, search_images

_HOME = {
    "Answer": "query",
    "EmbeddedCorpus": "corpus",
    "Explanation": "explanation",
    "Hit": "index",
    "Index": "index",
    "Limits": "model",
    "Rerank": "index.rerank",
    "embed_corpus": "corpus",
    "explain": "explanation",
    "fingerprint": "model",
    "label_filter": "index",
    "load_model": "model",
    "open_image": "model",
    "open_index": "index",
    "prepare": "model",
    "search_images": "query",
}

# Hidden from type checkers: to them a module with __getattr__ has every name, and a wrong one would go unnoticed.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return import_on_demand("gspool.search", _HOME, name, "search")

    def __dir__() -> list[str]:
        return importable("gspool.search", _HOME)
