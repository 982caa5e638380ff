"""Turn a stream of listed pictures into a stream of vectors, batch by batch, on this machine or on a Ray cluster."""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

from gspool.data.decode import BrokenImageError
from gspool.executor import Executor, Failure, run_tasks
from gspool.models.device import chosen_device
from gspool.search.corpus.sources import Listed
from gspool.search.images import LIMITS, Limits, printable, read_pixels
from gspool.search.model_source import embed_batch

if TYPE_CHECKING:
    from jaxtyping import Float32, UInt8
    from torch import Tensor

    from gspool.models import Embedder

# Batches in one task of a cluster: enough that sending it costs nothing, few enough that little is lost with a machine.
BATCHES_PER_TASK = 16


class Decoded(NamedTuple):
    """A picture as the model expects it, and its upright size in the file."""

    listed: Listed
    image: UInt8[Tensor, "3 H W"]
    width: int
    height: int


class Broken(NamedTuple):
    """A picture that could not be read, and why."""

    listed: Listed
    reason: str


class Seen(NamedTuple):
    """A picture without its pixels: what a table of vectors stores about it."""

    listed: Listed
    width: int
    height: int


class EmbeddedBatch(NamedTuple):
    """Pictures and their vectors, in the same order, in host memory."""

    pictures: list[Seen]
    vectors: Float32[Tensor, "B D"]


Piece = EmbeddedBatch | Broken


class StreamSettings(NamedTuple):
    """How pictures become vectors: batch size, mixed precision, decoding threads, the largest picture to read."""

    batch_size: int
    precision: str
    workers: int
    limits: Limits


def decode_one(listed: Listed, model: Embedder, limits: Limits = LIMITS) -> Decoded | Broken:
    """Open one picture and crop it for the model."""
    try:
        # Names on disk may be any bytes; a table of vectors holds text.
        listed.path.encode()
        pixels, size = read_pixels(listed.path, model, limits)
        return Decoded(listed, pixels, *size)
    except UnicodeEncodeError:
        return Broken(listed._replace(path=printable(listed.path)), "the file name is not UTF-8; rename it")
    except BrokenImageError as error:
        return Broken(listed, str(error).removeprefix(f"{listed.path}: "))


def decode_ahead(
    images: Iterable[Listed], model: Embedder, workers: int, ahead: int, limits: Limits = LIMITS
) -> Generator[Decoded | Broken, None, None]:
    """Decode pictures in ``workers`` threads, at most ``ahead`` of them in advance, and yield them in order.

    Threads, not processes: Pillow releases Python's lock while it decodes and resizes, nothing is copied between
    processes, and a calling program needs no guard around its main part.
    """
    pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")
    waiting: deque[Future[Decoded | Broken]] = deque()
    try:
        for listed in images:
            waiting.append(pool.submit(decode_one, listed, model, limits))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        # Left early, by Ctrl-C for example: drop what has not begun.
        pool.shutdown(wait=True, cancel_futures=True)


def embed_stream(images: Iterable[Listed], model: Embedder, settings: StreamSettings) -> Generator[Piece, None, None]:
    """Decode and embed; yield whole batches (the last may be short), and each broken picture by itself."""
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
    return EmbeddedBatch([Seen(each.listed, each.width, each.height) for each in batch], vectors.float().cpu())


def embed_on(
    executor: Executor, images: Iterable[Listed], model: Embedder, settings: StreamSettings
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
    tasks = _chunks(images, settings.batch_size * BATCHES_PER_TASK)
    worker = partial(make_worker, copy.deepcopy(model).cpu(), settings)
    for _, result in run_tasks(worker, tasks, executor, ordered=True):
        if isinstance(result, Failure):
            raise RuntimeError(f"a worker of the Ray cluster failed:\n{result.message}")
        yield from result


def make_worker(model: Embedder, settings: StreamSettings) -> Callable[[list[Listed]], list[Piece]]:
    """Return the function that embeds a list of pictures on one machine of a cluster."""
    placed = model.to(chosen_device(None)).eval()
    return lambda images: list(embed_stream(images, placed, settings))


def _chunks(images: Iterable[Listed], size: int) -> Iterator[list[Listed]]:
    left = iter(images)
    while chunk := list(itertools.islice(left, size)):
        yield chunk
