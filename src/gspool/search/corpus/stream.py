"""Turn a stream of listed pictures into a stream of vectors, batch by batch, on this machine or on a Ray cluster."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from gspool.data.batches import read_ahead
from gspool.data.decode import BrokenImageError, printable
from gspool.executor import Executor, Failure, run_tasks
from gspool.models.device import chosen_device
from gspool.search.index.table import ImageRecord
from gspool.search.model import LIMITS, Limits, embed_batch, read_pixels

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float32, UInt8
    from torch import Tensor

    from gspool.models import Embedder

# Batches in one task of a cluster: enough that sending it costs nothing, few enough that little is lost with a machine.
BATCHES_PER_TASK = 16
Item = TypeVar("Item")


class Decoded(NamedTuple):
    """A picture as the model expects it, or the vector that is known of it, or the problem why it cannot be read."""

    record: ImageRecord
    image: UInt8[Tensor, "3 H W"] | None = None
    vector: Float32[np.ndarray, " D"] | None = None
    problem: str | None = None


class EmbeddedBatch(NamedTuple):
    """Pictures and their vectors in host memory; or no vectors, and a picture that could not be read."""

    records: list[ImageRecord]
    vectors: Float32[Tensor, "B D"] | None
    broken: Decoded | None = None


def decode_one(record: ImageRecord, model: Embedder, limits: Limits = LIMITS) -> Decoded:
    """Open one picture and crop it for the model; the record gets its upright size."""
    if printable(record.path) != record.path:
        # All text of a table is UTF-8; names on disk may be any bytes.
        problem = "the file name is not UTF-8; rename it"
        return Decoded(record._replace(path=printable(record.path)), problem=problem)
    try:
        pixels, (width, height) = read_pixels(record.path, model, limits)
        return Decoded(record._replace(width=width, height=height), pixels)
    except BrokenImageError as error:
        return Decoded(record, problem=str(error).removeprefix(f"{record.path}: "))


def embed_stream(
    images: Iterable[ImageRecord], model: Embedder, batch_size: int, precision: str, workers: int, limits: Limits
) -> Generator[EmbeddedBatch, None, None]:
    """Decode and embed; yield whole batches (the last may be short), and each broken picture by itself."""

    def embedded(batch: list[Decoded]) -> EmbeddedBatch:
        pixels = torch.stack([picture.image for picture in batch if picture.image is not None])
        vectors = embed_batch(model, pixels, precision).embedding.float().cpu()
        return EmbeddedBatch([picture.record for picture in batch], vectors)

    batch: list[Decoded] = []
    decode = partial(decode_one, model=model, limits=limits)
    pictures = read_ahead(images, decode, workers, ahead=2 * batch_size + workers)
    try:
        for picture in pictures:
            if picture.problem is not None:
                yield EmbeddedBatch([], None, picture)
                continue
            batch.append(picture)
            if len(batch) == batch_size:
                yield embedded(batch)
                batch = []
        if batch:
            yield embedded(batch)
    finally:
        pictures.close()


def embed_on(
    executor: Executor, images: Iterable[ImageRecord], model: Embedder, batch_size: int, *options: Any
) -> Generator[EmbeddedBatch, None, None]:
    """Embed on this machine, or on the Ray cluster of the executor, in the order of the list; see `embed_stream`.

    In this process the stream is not cut into tasks: decoding then never waits for the end of one, and batches after an
    interruption are those of an uninterrupted run, to the last bit. On a cluster every machine must find the pictures
    under the same paths; the weights are sent from here.
    """
    if executor.ray is None:
        yield from embed_stream(images, model, batch_size, *options)
        return
    tasks = chunks(images, batch_size * BATCHES_PER_TASK)
    worker = partial(make_worker, copy.deepcopy(model).cpu(), batch_size, *options)
    for _, result in run_tasks(worker, tasks, executor, ordered=True):
        if isinstance(result, Failure):
            raise RuntimeError(f"a worker of the Ray cluster failed:\n{result.message}")
        yield from result


def make_worker(model: Embedder, *options: Any) -> Callable[[list[ImageRecord]], list[EmbeddedBatch]]:
    """Return the function that embeds a list of pictures on one machine of a cluster."""
    placed = model.to(chosen_device(None)).eval()
    return lambda images: list(embed_stream(images, placed, *options))


def chunks(images: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield a stream in lists of ``size``; the last may be shorter."""
    left = iter(images)
    while chunk := list(itertools.islice(left, size)):
        yield chunk
