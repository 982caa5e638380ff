"""Turn a stream of listed pictures into a stream of vectors, batch by batch, on this machine or on a Ray cluster."""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch

from gspool.data.decode import BrokenImageError, printable
from gspool.executor import Executor, Failure, run_tasks
from gspool.models.device import chosen_device
from gspool.search.images import LIMITS, Limits, read_pixels
from gspool.search.index.rows import ImageRecord, is_text
from gspool.search.model_source import embed_batch

if TYPE_CHECKING:
    from jaxtyping import Float32, UInt8
    from torch import Tensor

    from gspool.models import Embedder

# Batches in one task of a cluster: enough that sending it costs nothing, few enough that little is lost with a machine.
BATCHES_PER_TASK = 16
Item = TypeVar("Item")
Result = TypeVar("Result")


class Decoded(NamedTuple):
    """A picture as the model expects it; the record has its upright size in the file."""

    record: ImageRecord
    image: UInt8[Tensor, "3 H W"]


class Broken(NamedTuple):
    """A picture that could not be read, and why."""

    record: ImageRecord
    reason: str


class EmbeddedBatch(NamedTuple):
    """Pictures and their vectors, in the same order, in host memory."""

    records: list[ImageRecord]
    vectors: Float32[Tensor, "B D"]


Piece = EmbeddedBatch | Broken


class StreamSettings(NamedTuple):
    """How pictures become vectors: batch size, mixed precision, decoding threads, the largest picture to read."""

    batch_size: int
    precision: str
    workers: int
    limits: Limits


def decode_one(record: ImageRecord, model: Embedder, limits: Limits = LIMITS) -> Decoded | Broken:
    """Open one picture and crop it for the model."""
    if not is_text(record.path):
        return Broken(record._replace(path=printable(record.path)), "the file name is not UTF-8; rename it")
    try:
        pixels, (width, height) = read_pixels(record.path, model, limits)
        return Decoded(record._replace(width=width, height=height), pixels)
    except BrokenImageError as error:
        return Broken(record, str(error).removeprefix(f"{record.path}: "))


def decode_ahead(
    images: Iterable[Item], decode: Callable[[Item], Result], workers: int, ahead: int
) -> Generator[Result, None, None]:
    """Decode pictures in ``workers`` threads, at most ``ahead`` of them in advance, and yield them in order.

    Threads, not processes: Pillow releases Python's lock while it decodes and resizes, nothing is copied between
    processes, and a calling program needs no guard around its main part.
    """
    pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")
    waiting: deque[Future[Result]] = deque()
    try:
        for record in images:
            waiting.append(pool.submit(decode, record))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        # Left early, by Ctrl-C for example: drop what has not begun.
        pool.shutdown(wait=True, cancel_futures=True)


def embed_stream(
    images: Iterable[ImageRecord], model: Embedder, settings: StreamSettings
) -> Generator[Piece, None, None]:
    """Decode and embed; yield whole batches (the last may be short), and each broken picture by itself."""
    batch: list[Decoded] = []
    ahead = 2 * settings.batch_size + settings.workers
    pictures = decode_ahead(images, partial(decode_one, model=model, limits=settings.limits), settings.workers, ahead)
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
    return EmbeddedBatch([picture.record for picture in batch], vectors.float().cpu())


def embed_on(
    executor: Executor, images: Iterable[ImageRecord], model: Embedder, settings: StreamSettings
) -> Generator[Piece, None, None]:
    """Embed on this machine, or on the Ray cluster of the executor, in the order of the list.

    In this process the stream is not cut into tasks: decoding then never waits for the end of one, and batches after an
    interruption are those of an uninterrupted run, to the last bit. On a cluster every machine must find the pictures
    under the same paths; the weights are sent from here.

    Raises:
        ValueError: if Ray is not installed, or there is no cluster at the address.
        RuntimeError: if a worker fails.
    """
    if executor.ray is None:
        yield from embed_stream(images, model, settings)
        return
    tasks = chunks(images, settings.batch_size * BATCHES_PER_TASK)
    worker = partial(make_worker, copy.deepcopy(model).cpu(), settings)
    for _, result in run_tasks(worker, tasks, executor, ordered=True):
        if isinstance(result, Failure):
            raise RuntimeError(f"a worker of the Ray cluster failed:\n{result.message}")
        yield from result


def make_worker(model: Embedder, settings: StreamSettings) -> Callable[[list[ImageRecord]], list[Piece]]:
    """Return the function that embeds a list of pictures on one machine of a cluster."""
    placed = model.to(chosen_device(None)).eval()
    return lambda images: list(embed_stream(images, placed, settings))


def chunks(images: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield a stream in lists of ``size``; the last may be shorter."""
    left = iter(images)
    while chunk := list(itertools.islice(left, size)):
        yield chunk
