"""Read uploaded pictures: within limits, of known formats, or refused with a status and a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gspool.data import BrokenImageError
from gspool.search.images import ImageTooLargeError, Limits, UnknownFormatError, read_pixels

if TYPE_CHECKING:
    from jaxtyping import UInt8
    from torch import Tensor

    from gspool.models import Embedder

UPLOAD_LIMITS = Limits(max_bytes=10 * 2**20, max_pixels=25_000_000)
TOO_LARGE, UNKNOWN_FORMAT, UNREADABLE = 413, 415, 422


class UploadRefusedError(ValueError):
    """An upload that is not read; ``status`` is the HTTP status: 413, 415 or 422."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def read_upload(content: bytes, model: Embedder, limits: Limits = UPLOAD_LIMITS) -> UInt8[Tensor, "3 H W"]:
    """Decode the bytes of an upload and crop it for a model.

    Only the bytes count: neither the file name nor the type that the sender states is looked at.

    Raises:
        UploadRefusedError: 413 for too many bytes or pixels, 415 for content that is not a picture of a known format,
            422 for a picture that is empty, truncated or damaged.

    Example:
        >>> from gspool import Embedder
        >>> read_upload(b"GIF87a, it says", Embedder("resnet20", pooling="gap"))
        Traceback (most recent call last):
        gspool.search.serve.upload.UploadRefusedError: ...
    """
    if not content:
        raise UploadRefusedError(UNREADABLE, "this upload is empty; send the bytes of a picture")
    try:
        return read_pixels(content, model, limits, "this upload")[0]
    except ImageTooLargeError as problem:
        raise UploadRefusedError(TOO_LARGE, str(problem)) from problem
    except UnknownFormatError as problem:
        raise UploadRefusedError(UNKNOWN_FORMAT, str(problem)) from problem
    except BrokenImageError as problem:
        raise UploadRefusedError(UNREADABLE, str(problem)) from problem
