"""The place of the page where a picture is dropped: Gradio's, with our limits before its decoder."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr
from gradio.utils import get_upload_folder

from gspool.search.upload import UploadLimits, UploadRefusedError, read_upload

if TYPE_CHECKING:
    from PIL.Image import Image


def picture_drop(limits: UploadLimits, **options: Any) -> gr.Image:
    """Make an image input whose value reaches functions as an RGB image within limits, or not at all.

    Args:
        limits: of one upload.
        options: those of `gr.Image`, besides its type and sources.
    """
    drop = gr.Image(type="filepath", sources=["upload", "clipboard"], **options)
    # On the one object, not by a class of our own: Gradio writes a file beside the source of every class it sees.
    drop.preprocess = partial(uploaded_picture, limits)  # type: ignore[method-assign]
    return drop


def uploaded_picture(limits: UploadLimits, payload: Any) -> Image | None:
    """Read what was uploaded, in the place of Gradio, which would decode up to 179 million pixels.

    Raises:
        gr.Error: in words for the page, if it is refused.
    """
    if payload is None:
        return None
    place = Path(payload.path or "").resolve()
    if not place.is_relative_to(Path(get_upload_folder()).resolve()) or not place.is_file():
        raise gr.Error("this picture was not uploaded here; drop it once more", print_exception=False)
    try:
        with place.open("rb") as file:
            # One byte more than allowed tells a file that is too long from one that just fits.
            return read_upload(file.read(limits.bytes + 1), limits)
    except UploadRefusedError as problem:
        raise gr.Error(str(problem), title="Not read", print_exception=False) from problem
