"""Search with pictures: embed them in batches, search in bulk, answer each with its neighbours."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from gspool.data.batches import read_ahead
from gspool.search.corpus.sources import list_images
from gspool.search.corpus.stream import Decoded, chunks, decode_one
from gspool.search.index import Hit, Index
from gspool.search.index.rerank import Rerank
from gspool.search.model import LIMITS, Limits, embed_batch

if TYPE_CHECKING:
    from gspool.models import Embedder


class Answer(NamedTuple):
    """A query and its neighbours, best first; or, for a picture that could not be read, the ``problem``."""

    query: str
    hits: list[Hit]
    label: str | None = None
    problem: str | None = None


def search_images(
    model: Embedder,
    index: Index,
    queries: Sequence[str | Path] | str | Path,
    k: int = 10,
    *,
    where: str | None = None,
    exact: bool = False,
    leave_out_itself: bool = False,
    rerank: Rerank | None = None,
    batch_size: int = 64,
    limits: Limits = LIMITS,
) -> Iterator[Answer]:
    """Find the neighbours of pictures, in the order of the pictures, a batch at a time.

    A picture that is in the corpus is not embedded again, unless its file has changed since; its label is the one it
    has there.

    Args:
        model: the model that embedded the corpus.
        index: the corpus.
        queries: files, folders, globs or CSV lists, see `list_images`.
        k: how many neighbours.
        where: a condition on the neighbours, see `Index.search`.
        exact: do not use the approximate index, if there is one.
        leave_out_itself: leave out the file of the query itself, if it is in the corpus.
        rerank: query expansion and whitening.
        batch_size: how many queries are embedded and searched at once.
        limits: the largest file and picture to read.

    Raises:
        ValueError: if the corpus was embedded by another model, or the condition is not valid.
        FileNotFoundError: if there is no such query.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> from gspool import Embedder
        >>> from gspool.search import embed_corpus, open_index
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("red", "green"):
        ...         Image.new("RGB", (40, 40), name).save(Path(folder) / f"{name}.png")
        ...     model = Embedder("resnet20", pooling="gap", dim=8)
        ...     _ = embed_corpus(model, f"{folder}/*.png", Path(folder) / "vectors.lance")
        ...     answer = next(search_images(model, open_index(Path(folder) / "vectors.lance"), f"{folder}/green.png"))
        >>> len(answer.hits), round(answer.hits[0].score, 3)
        (2, 1.0)
    """
    index.check_model(model)
    sources = [queries] if isinstance(queries, str | Path) else list(queries)

    def looked_up() -> Iterator[Decoded]:
        for some in chunks(list_images(sources), batch_size):
            stored = index.stored(record.path for record in some)
            for record in some:
                vector, label = stored.get(record.path, (None, None))
                yield Decoded(record._replace(label=record.label or label), vector=vector)

    def decode(picture: Decoded) -> Decoded:
        return picture if picture.vector is not None else decode_one(picture.record, model, limits)

    for batch in chunks(read_ahead(looked_up(), decode, min(os.cpu_count() or 1, 16), 2 * batch_size), batch_size):
        new = [picture.image for picture in batch if picture.image is not None]
        embedded = iter(
            embed_batch(model, torch.stack(new), index.settings.precision).embedding.cpu().numpy() if new else ()
        )
        vectors = [
            next(embedded) if picture.vector is None else picture.vector for picture in batch if picture.problem is None
        ]
        found = iter(index.search(np.stack(vectors), k + leave_out_itself, where, exact, rerank) if vectors else ())
        for picture in batch:
            query, label = picture.record.path, picture.record.label
            hits = next(found) if picture.problem is None else []
            others = [hit for hit in hits if not (leave_out_itself and hit.path == query)]
            yield Answer(query, others[:k], label, picture.problem)
