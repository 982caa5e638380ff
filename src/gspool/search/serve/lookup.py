"""A served model and its corpus: read an upload, embed, search, explain, show a picture."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, NamedTuple, TypeVar

from gspool.data import BrokenImageError
from gspool.evaluation.verification import check_threshold
from gspool.search.explanation.image import explain
from gspool.search.images import Limits, open_image, read_pixels
from gspool.search.index.index import label_filter
from gspool.search.model_source import embed_batch

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8
    from PIL.Image import Image
    from torch import Tensor

    from gspool.models import Embedder
    from gspool.search.explanation.image import Explanation
    from gspool.search.index.index import Index
    from gspool.search.index.rerank import Rerank

UPLOAD_LIMITS = Limits(max_bytes=10 * 2**20, max_pixels=25_000_000)
MOST_NEIGHBOURS = 100
Result = TypeVar("Result")


class Neighbour(NamedTuple):
    """A picture of the corpus that was found: its number, cosine, label and file name. Its path stays in the server.

    ``match`` is whether the cosine reaches the threshold of the model; None without one.
    """

    id: int
    score: float
    label: str | None
    name: str
    match: bool | None = None


class UnknownPictureError(LookupError):
    """A number that no picture of the corpus has."""


class Lookup:
    """A model and its corpus, asked by many at once and working on one picture at a time.

    Decoding and embedding run in one thread. That bounds the memory of any number of requests: a decoded picture never
    leaves the thread, only the crop that the model sees does.

    Args:
        model: an embedding model.
        index: the vectors that the same model made of a corpus.
        rerank: query expansion and whitening.
        match: the least score of a match, see `gspool.search.model_source.match_threshold`.

    Raises:
        ValueError: if another model made the vectors.
    """

    def __init__(self, model: Embedder, index: Index, rerank: Rerank | None = None, match: float | None = None) -> None:
        index.check_model(model)
        self.model = model
        self.index = index
        self.rerank, self.match = rerank, match
        self.labels = index.labels()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="lookup")

    def _run(self, work: Callable[[], Result]) -> Result:
        return self._worker.submit(work).result()

    def read(self, file: IO[bytes], limits: Limits = UPLOAD_LIMITS) -> UInt8[Tensor, "3 H W"]:
        """Read an upload and crop it for the model; neither its name nor the type that the sender states counts.

        Raises:
            BrokenImageError: if it is empty, too large, of an unknown format, truncated or damaged.
        """

        def crop() -> UInt8[Tensor, "3 H W"]:
            # One byte more than allowed tells a file that is too long from one that just fits.
            content = file.read(limits.max_bytes + 1)
            if not content:
                raise BrokenImageError("this upload is empty; send the bytes of a picture")
            return read_pixels(content, self.model, limits, "this upload")[0]

        return self._run(crop)

    def embed(self, pixels: UInt8[Tensor, "3 H W"]) -> Float[Tensor, " D"]:
        """Return the unit vector of an image."""
        return self._run(lambda: embed_batch(self.model, pixels[None]).embedding[0].float().cpu())

    def explain(self, pixels: UInt8[Tensor, "3 H W"]) -> Explanation:
        """Compute where the model looks in an image.

        Raises:
            ValueError: if its pooling layer has no weights.
        """
        return self._run(lambda: explain(self.model, pixels))

    def search(
        self, query: UInt8[Tensor, "3 H W"] | int, k: int = 10, threshold: float = -1.0, labels: Sequence[str] = ()
    ) -> list[Neighbour]:
        """Find the pictures nearest to an image, best first: at most ``k``, with a cosine of at least ``threshold``.

        A number is a picture of the corpus: its stored vector is used, and it is not among its own neighbours. With
        ``labels`` only pictures that have one of them are searched.

        Raises:
            ValueError: if ``k`` or ``threshold`` is out of range, or no picture has one of the labels.
            UnknownPictureError: if there is no picture of that number.
        """
        if not 1 <= k <= MOST_NEIGHBOURS:
            raise ValueError(f"k is the number of neighbours, from 1 to {MOST_NEIGHBOURS}, got {k}")
        check_threshold(threshold)
        unknown = sorted(set(labels) - set(self.labels))
        if unknown:
            some = ", ".join(self.labels[:5]) or "none"
            raise ValueError(
                f"no picture of the corpus has the label {', '.join(unknown[:5])}; it has {len(self.labels)} labels: "
                f"{some}{', ...' if len(self.labels) > 5 else ''}"
            )
        condition = label_filter(labels) if labels else None
        if isinstance(query, int):
            vector = self.index.vectors([self.picture(query).id])[query][None]
            hits = self.index.search(vector, k + 1, condition, rerank=self.rerank)[0]
            hits = [hit for hit in hits if hit.row != query][:k]
        else:
            hits = self.index.search(self.embed(query)[None], k, condition, rerank=self.rerank)[0]
        return [
            Neighbour(
                hit.row,
                # Rounding makes 1.0000001 of a picture's cosine with itself.
                min(hit.score, 1.0),
                hit.label,
                os.path.basename(hit.path),
                None if self.match is None else hit.score >= self.match,
            )
            for hit in hits
            if hit.score >= threshold
        ]

    def picture(self, number: int) -> Neighbour:
        """Return number, label and file name of a picture of the corpus.

        Raises:
            UnknownPictureError: if there is no such number.
        """
        path, label = self._row(number)
        return Neighbour(number, 1.0, label, os.path.basename(path))

    def thumbnail(self, number: int, side: int) -> Image:
        """Return a picture of the corpus by its number, its longer side at most ``side``; raises as `pixels`."""
        path = self._row(number)[0]

        def reduced() -> Image:
            image = open_image(path, name=f"picture {number}")
            image.thumbnail((side, side))
            return image

        return self._run(reduced)

    def pixels(self, number: int) -> UInt8[Tensor, "3 H W"]:
        """Return a picture of the corpus as the model sees it.

        Raises:
            UnknownPictureError: if there is no such number.
            BrokenImageError: if its file is gone, or no longer a picture.
        """
        path = self._row(number)[0]
        return self._run(lambda: read_pixels(path, self.model, name=f"picture {number}")[0])

    def _row(self, number: int) -> tuple[str, str | None]:
        # The number is an int: nothing in the condition comes from outside.
        rows = self.index.read(["path", "label"], f"row = {int(number)}").to_pylist() if 0 <= number < 2**63 else []
        if not rows:
            raise UnknownPictureError(f"there is no picture {number} in this corpus of {len(self.index):,}")
        return rows[0]["path"], rows[0]["label"]
