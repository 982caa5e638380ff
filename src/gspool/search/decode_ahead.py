"""Pictures decoded by several threads a little ahead of the model, in order, the broken ones with the reason."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from gspool.data.decode import BrokenImageError
from gspool.search.image_list import Listed
from gspool.search.images import MAX_BYTES, MAX_PIXELS, open_image, prepare

if TYPE_CHECKING:
    from jaxtyping import UInt8
    from torch import Tensor

    from gspool.models import Embedder


class Decoded(NamedTuple):
    """A picture as the model wants it, and the size it had in its file, upright."""

    listed: Listed
    image: UInt8[Tensor, "3 H W"]
    width: int
    height: int


class Broken(NamedTuple):
    """A picture that could not be read, and why."""

    listed: Listed
    reason: str


class Limits(NamedTuple):
    """The largest file and the largest picture that are read."""

    max_bytes: int = MAX_BYTES
    max_pixels: int = MAX_PIXELS


LIMITS = Limits()


def decode_one(listed: Listed, model: Embedder, limits: Limits = LIMITS) -> Decoded | Broken:
    """Open one picture and cut it for the model."""
    try:
        # Names on disk may be any bytes; a table of vectors holds text.
        listed.path.encode()
        image = open_image(listed.path, max_bytes=limits.max_bytes, max_pixels=limits.max_pixels)
    except UnicodeEncodeError:
        name = os.fsencode(listed.path).decode(errors="backslashreplace")
        return Broken(listed._replace(path=name), "the name of the file is not UTF-8; rename it")
    except BrokenImageError as error:
        return Broken(listed, str(error).removeprefix(f"{listed.path}: "))
    return Decoded(listed, prepare(image, model), *image.size)


def decode_ahead(
    images: Iterable[Listed], model: Embedder, workers: int, ahead: int, limits: Limits = LIMITS
) -> Generator[Decoded | Broken, None, None]:
    """Decode pictures by ``workers`` threads, at most ``ahead`` of them before they are asked for.

    Threads and not processes: Pillow lets go of Python's lock while it decodes and resizes, nothing has to be copied
    between processes, and a program that calls this needs no guard around its main part.
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
        # Left early, by Ctrl-C for example: what has not begun is not wanted any more.
        pool.shutdown(wait=True, cancel_futures=True)
