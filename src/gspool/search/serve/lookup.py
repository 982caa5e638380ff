"""A served model and its corpus: read an upload, embed, search, explain, show a picture."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import IO, TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import torch
from PIL import Image as Pillow
from pydantic import BaseModel, Field, computed_field

from gspool.data import BrokenImageError
from gspool.data.decode import FORMATS
from gspool.evaluation.verification import check_threshold
from gspool.search.explanation import explain
from gspool.search.index import label_filter
from gspool.search.index.rerank import Rerank
from gspool.search.model import Limits, embed_batch, open_image, read_pixels

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8
    from PIL.Image import Image
    from torch import Tensor

    from gspool.models import Embedder
    from gspool.search.explanation import Explanation
    from gspool.search.index import Index

UPLOAD_LIMITS = Limits(max_bytes=10 * 2**20, max_pixels=25_000_000)
MOST_NEIGHBOURS = 100
Given = ParamSpec("Given")
Result = TypeVar("Result")


class Neighbour(BaseModel):
    """A picture that was found; its path stays in the server."""

    id: int = Field(description="Its number in the corpus.")
    score: float = Field(description="Cosine to the image that was sent, at most 1.")
    label: str | None = Field(description="Its label, where known.")
    name: str = Field(description="Its file name, without folders.")
    match: bool | None = Field(
        default=None, description="Whether the score reaches the threshold of the model, if it has one."
    )

    @computed_field(description="The route that shows it.")  # type: ignore[prop-decorator]
    @property
    def picture(self) -> str:
        """The route that shows it."""
        return f"/api/pictures/{self.id}"


class QuestionError(ValueError):
    """A question that has no answer; the message gives the reason."""


class UnknownPictureError(LookupError):
    """A number that no picture of the corpus has."""


def one_at_a_time(
    method: Callable[Concatenate[Lookup, Given], Result],
) -> Callable[Concatenate[Lookup, Given], Result]:
    """Run a method of `Lookup` in its one thread."""

    @wraps(method)
    def run(self: Lookup, *arguments: Given.args, **options: Given.kwargs) -> Result:
        return self.worker.submit(method, self, *arguments, **options).result()

    return run


class Lookup:
    """A model and its corpus, asked by many at once and working on one picture at a time.

    Decoding and embedding run in one thread. That bounds the memory of any number of requests: a decoded picture never
    leaves the thread, only the crop that the model sees does.

    Args:
        model: an embedding model.
        index: the vectors that the same model made of a corpus.
        rerank: query expansion and whitening.
        match: the least score of a match, see `gspool.search.model.match_threshold`.

    Raises:
        ValueError: if another model made the vectors, or they cannot be re-ranked so.
    """

    def __init__(self, model: Embedder, index: Index, rerank: Rerank | None = None, match: float | None = None) -> None:
        index.check_model(model)
        (rerank or Rerank()).check(index.settings.dim)
        self.model, self.index, self.rerank, self.match = model, index, rerank, match
        self._labels: tuple[int, list[str]] = (-1, [])
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="lookup")

    @property
    def labels(self) -> list[str]:
        """The labels of the corpus as it is now, sorted."""
        version = self.index.version
        # Only after a change: it takes a pass over all rows.
        if version != self._labels[0]:
            self._labels = version, self.index.labels()
        return self._labels[1]

    @one_at_a_time
    def pixels_in(self, file: IO[bytes]) -> int:
        """Read from the head of an upload how many pixels it has; 0 for what is no picture."""
        try:
            with Pillow.open(file, formats=FORMATS) as picture:
                return picture.width * picture.height
        except Exception:  # damaged bytes make parsers raise nearly anything
            return 0
        finally:
            file.seek(0)

    @one_at_a_time
    def read(self, file: IO[bytes], limits: Limits = UPLOAD_LIMITS) -> UInt8[Tensor, "3 H W"]:
        """Read an upload and crop it for the model; neither its name nor the type that the sender states counts.

        Raises:
            BrokenImageError: if it is empty, too large, of an unknown format, truncated or damaged.
        """
        # One byte more than allowed tells a file that is too long from one that just fits.
        content = file.read(limits.max_bytes + 1)
        if not content:
            raise BrokenImageError("this upload is empty; send the bytes of a picture")
        return read_pixels(content, self.model, limits, "this upload")[0]

    @one_at_a_time
    def embed(self, pixels: UInt8[Tensor, "3 H W"]) -> Float[Tensor, " D"]:
        """Return the unit vector of an image; raises a BrokenImageError if it has none."""
        return _with_direction(embed_batch(self.model, pixels[None]).embedding[0].float().cpu())

    @one_at_a_time
    def explain(self, pixels: UInt8[Tensor, "3 H W"]) -> Explanation:
        """Compute where the model looks in an image; raises a QuestionError if its pooling layer has no weights."""
        try:
            return explain(self.model, pixels)
        except ValueError as problem:
            raise QuestionError(str(problem)) from problem

    def search(
        self, query: UInt8[Tensor, "3 H W"] | int, k: int = 10, threshold: float = -1.0, labels: Sequence[str] = ()
    ) -> list[Neighbour]:
        """Find the pictures nearest to an image, best first: at most ``k``, with a cosine of at least ``threshold``.

        A number is a picture of the corpus: its stored vector is used, and it is not among its own neighbours. With
        ``labels`` only pictures that have one of them are searched.

        Raises:
            QuestionError: if ``k`` or ``threshold`` is out of range, or no picture has one of the labels.
            UnknownPictureError: if there is no picture of that number.
            BrokenImageError: if the vector of the image has no direction.
        """
        if not 1 <= k <= MOST_NEIGHBOURS:
            raise QuestionError(f"k is the number of neighbours, from 1 to {MOST_NEIGHBOURS}, got {k}")
        check_threshold(threshold)
        known = self.labels if labels else []
        unknown = sorted(set(labels) - set(known))
        if unknown:
            some = ", ".join(known[:5]) or "none"
            raise QuestionError(
                f"no picture of the corpus has the label {', '.join(unknown[:5])}; it has {len(known)} labels: "
                f"{some}{', ...' if len(known) > 5 else ''}"
            )
        own = query if isinstance(query, int) else None
        if isinstance(query, int):
            stored = self.index.vectors([self.picture(query).id]).get(query)
            if stored is None:
                raise self._unknown(query)
            vector = _with_direction(torch.tensor(stored))
        else:
            vector = self.embed(query)
        condition = label_filter(labels) if labels else None
        hits = self.index.search(vector, k + (own is not None), condition, rerank=self.rerank)[0]
        return [
            Neighbour(
                id=hit.row,
                # Rounding makes 1.0000001 of a picture's cosine with itself.
                score=min(hit.score, 1.0),
                label=hit.label,
                name=os.path.basename(hit.path),
                match=None if self.match is None else hit.score >= self.match,
            )
            for hit in [hit for hit in hits if hit.row != own][:k]
            if hit.score >= threshold
        ]

    def picture(self, number: int) -> Neighbour:
        """Return number, label and file name of a picture of the corpus, or raise an UnknownPictureError."""
        path, label = self._row(number)
        return Neighbour(id=number, score=1.0, label=label, name=os.path.basename(path))

    @one_at_a_time
    def thumbnail(self, number: int, side: int) -> Image:
        """Return a picture of the corpus by its number, its longer side at most ``side``; raises as `pixels`."""
        image = open_image(self._row(number)[0], name=f"picture {number}")
        image.thumbnail((side, side))
        return image

    @one_at_a_time
    def pixels(self, number: int) -> UInt8[Tensor, "3 H W"]:
        """Return a picture of the corpus as the model sees it.

        Raises:
            UnknownPictureError: if there is no such number.
            BrokenImageError: if its file is gone, or no longer a picture.
        """
        return read_pixels(self._row(number)[0], self.model, name=f"picture {number}")[0]

    def _row(self, number: int) -> tuple[str, str | None]:
        # The number is an int: nothing in the condition comes from outside.
        rows = self.index.read(["path", "label"], f"row = {int(number)}").to_pylist() if 0 <= number < 2**63 else []
        if not rows:
            raise self._unknown(number)
        return rows[0]["path"], rows[0]["label"]

    def _unknown(self, number: int) -> UnknownPictureError:
        return UnknownPictureError(f"there is no picture {number} in this corpus of {len(self.index):,}")


def _with_direction(vector: Float[Tensor, " D"]) -> Float[Tensor, " D"]:
    """Return a vector that compares with others."""
    # Written so that a NaN is refused as well.
    if not 0 < float(vector.norm()) < math.inf:
        raise BrokenImageError("the vector of this image is zero or not finite and compares with no other")
    return vector
