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
    from gspool.search.corpus.embed import EmbeddedCorpus, embed_corpus
    from gspool.search.explanation.image import Explanation, explain
    from gspool.search.images import Limits, open_image, prepare
    from gspool.search.index.index import Hit, Index, label_filter, open_index
    from gspool.search.index.rerank import Rerank
    from gspool.search.model_source import fingerprint, load_model
    from gspool.search.query import Answer, search_images

_HOME = {
    "Answer": "query",
    "EmbeddedCorpus": "corpus.embed",
    "Explanation": "explanation.image",
    "Hit": "index.index",
    "Index": "index.index",
    "Limits": "images",
    "Rerank": "index.rerank",
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

# Hidden from type checkers: to them a module with __getattr__ has every name, and a wrong one would go unnoticed.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return import_on_demand("gspool.search", _HOME, name, "search")

    def __dir__() -> list[str]:
        return importable("gspool.search", _HOME)
