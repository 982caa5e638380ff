"""What the page and the programs ask of a served model: embed, find, explain, show."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gspool.search.explain_image import explain
from gspool.search.images import open_image, prepare
from gspool.search.index import label_filter
from gspool.search.model_source import embed_batch

if TYPE_CHECKING:
    from jaxtyping import Float
    from PIL.Image import Image
    from torch import Tensor

    from gspool.models import Embedder
    from gspool.search.explain_image import Explanation
    from gspool.search.index import Index

MOST_NEIGHBOURS = 100


class Neighbour(NamedTuple):
    """A picture of the corpus that was found: a number to ask for it, its cosine, label and file name.

    The path stays inside the server.
    """

    id: int
    score: float
    label: str | None
    name: str


class UnknownPictureError(LookupError):
    """A number that no picture of the corpus has."""


class Lookup:
    """A model and its corpus, asked by many at once and answering one at a time.

    Args:
        model: an embedding model.
        index: the vectors that the same model made of a corpus.

    Raises:
        ValueError: if another model made the vectors.
    """

    def __init__(self, model: Embedder, index: Index) -> None:
        index.check_model(model)
        self.model = model
        self.index = index
        self.labels = index.labels()
        # One picture in work at a time bounds the memory, whatever comes in at once; a model takes all cores anyway.
        self._turn = threading.Lock()

    def embed(self, image: Image) -> Float[Tensor, " D"]:
        """Give the unit vector of an image."""
        with self._turn:
            return embed_batch(self.model, prepare(image, self.model)[None]).embedding[0].float().cpu()

    def explain(self, image: Image) -> Explanation:
        """Tell where the model looks in an image.

        Raises:
            ValueError: if its pooling layer has nothing to tell.
        """
        with self._turn:
            return explain(self.model, image)

    def search(self, image: Image, k: int = 10, threshold: float = -1.0, labels: Sequence[str] = ()) -> list[Neighbour]:
        """Find the pictures of the corpus that are nearest to an image, best first.

        Args:
            image: what to look for.
            k: at most this many.
            threshold: leave out those whose cosine is below it.
            labels: only pictures with one of these labels; with none, all.

        Raises:
            ValueError: if ``k`` or ``threshold`` is out of range, or a label is none of the corpus.
        """
        if not 1 <= k <= MOST_NEIGHBOURS:
            raise ValueError(f"k is the number of neighbours, from 1 to {MOST_NEIGHBOURS}, got {k}")
        if not -1 <= threshold <= 1:
            raise ValueError(f"threshold is a cosine and lies in [-1, 1], got {threshold}")
        unknown = sorted(set(labels) - set(self.labels))
        if unknown:
            some = ", ".join(self.labels[:5]) or "none"
            raise ValueError(
                f"no picture of the corpus has the label {', '.join(unknown[:5])}; it has {len(self.labels)} labels: "
                f"{some}{', ...' if len(self.labels) > 5 else ''}"
            )
        hits = self.index.search(self.embed(image)[None], k, label_filter(labels) if labels else None)[0]
        # Rounding makes 1.0000001 of a picture's cosine with itself.
        near = [Neighbour(hit.row, min(hit.score, 1.0), hit.label, os.path.basename(hit.path)) for hit in hits]
        return [neighbour for neighbour in near if neighbour.score >= threshold]

    def picture(self, number: int) -> Image:
        """Read a picture of the corpus by its number.

        Raises:
            UnknownPictureError: if there is none of that number.
            BrokenImageError: if its file is gone, or no picture any more.
        """
        if number < 0 or number >= 2**63:
            raise UnknownPictureError(f"there is no picture {number} in this corpus")
        # The number is an int: there is nothing in the condition that a stranger could have written.
        rows: list[dict[str, Any]] = (
            self.index.table.search().where(f"row = {int(number)}").select(["path"]).limit(1).to_list()
        )
        if not rows:
            raise UnknownPictureError(f"there is no picture {number} in this corpus of {len(self.index):,}")
        with self._turn:
            return open_image(rows[0]["path"], name=f"picture {number}")
