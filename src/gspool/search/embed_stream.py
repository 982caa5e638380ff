"""From a stream of listed pictures to a stream of vectors, batch by batch, the broken ones among them."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, NamedTuple

import torch

from gspool.search.decode_ahead import Broken, Decoded, Limits, decode_ahead
from gspool.search.image_list import Listed
from gspool.search.model_source import embed_batch

if TYPE_CHECKING:
    from jaxtyping import Float32
    from torch import Tensor

    from gspool.models import Embedder


class Seen(NamedTuple):
    """A picture without its pixels: what a file of vectors says about it."""

    listed: Listed
    width: int
    height: int


class EmbeddedBatch(NamedTuple):
    """Pictures and their vectors, in the same order, in the memory of the host."""

    pictures: list[Seen]
    vectors: Float32[Tensor, "B D"]


class StreamSettings(NamedTuple):
    """How pictures become vectors: images at once, mixed precision, threads that decode, the largest to read."""

    batch_size: int
    precision: str
    workers: int
    limits: Limits


def embed_stream(
    images: Iterable[Listed], model: Embedder, settings: StreamSettings
) -> Generator[EmbeddedBatch | Broken, None, None]:
    """Decode, embed and give whole batches, the last one as it comes; a picture that cannot be read comes by itself."""
    batch: list[Decoded] = []
    ahead = 2 * settings.batch_size + settings.workers
    pictures = decode_ahead(images, model, settings.workers, ahead, settings.limits)
    try:
        for picture in pictures:
            if isinstance(picture, Broken):
                yield picture
                continue
            batch.append(picture)
            if len(batch) == settings.batch_size:
                yield _embedded(batch, model, settings.precision)
                batch = []
        if batch:
            yield _embedded(batch, model, settings.precision)
    finally:
        pictures.close()


def _embedded(batch: list[Decoded], model: Embedder, precision: str) -> EmbeddedBatch:
    vectors = embed_batch(model, torch.stack([picture.image for picture in batch]), precision).embedding
    # The pixels have done their work; names and sizes wait for the file.
    return EmbeddedBatch([Seen(each.listed, each.width, each.height) for each in batch], vectors.float().cpu())
