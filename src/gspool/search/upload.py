"""Pictures that strangers send: within limits of bytes and pixels, of known formats, or refused in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gspool.data import BrokenImageError
from gspool.search.images import ImageTooLargeError, UnknownFormatError, open_image

if TYPE_CHECKING:
    from PIL.Image import Image

TOO_LARGE, UNKNOWN_FORMAT, UNREADABLE = 413, 415, 422


class UploadLimits(NamedTuple):
    """How much one upload may bring: bytes of the file, and pixels, width times height, once it is decoded."""

    bytes: int = 10 * 2**20
    pixels: int = 25_000_000

    def check(self) -> UploadLimits:
        """Give the same limits.

        Raises:
            ValueError: if one is not positive.
        """
        for name, value in zip(self._fields, self, strict=True):
            if value < 1:
                raise ValueError(f"the limit of {name} of an upload must be positive, got {value}")
        return self


class UploadRefusedError(ValueError):
    """An upload that is not read; ``status`` is the HTTP status that says why: 413, 415 or 422."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def read_upload(content: bytes, limits: UploadLimits) -> Image:
    """Decode the bytes of an upload to an upright RGB image.

    Nothing is believed but the bytes: neither the name of the file nor the type that the sender states is looked at.

    Raises:
        UploadRefusedError: 413 for too many bytes or pixels, 415 for what is no picture of a known format, 422 for a
            picture that is empty, cut off or damaged.

    Example:
        >>> read_upload(b"GIF87a, it says", UploadLimits())
        Traceback (most recent call last):
        gspool.search.upload.UploadRefusedError: ...
    """
    if not content:
        raise UploadRefusedError(UNREADABLE, "this upload is empty; send the bytes of a picture")
    try:
        return open_image(content, max_bytes=limits.bytes, max_pixels=limits.pixels, name="this upload")
    except ImageTooLargeError as problem:
        raise UploadRefusedError(TOO_LARGE, str(problem)) from problem
    except UnknownFormatError as problem:
        raise UploadRefusedError(UNKNOWN_FORMAT, str(problem)) from problem
    except BrokenImageError as problem:
        raise UploadRefusedError(UNREADABLE, str(problem)) from problem
