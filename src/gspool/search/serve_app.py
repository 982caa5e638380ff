"""The server: the interface for programs, the page for people, and the guard before both."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gspool.search.serve_guard import Guard
from gspool.search.upload import UploadLimits

if TYPE_CHECKING:
    from fastapi import FastAPI

    from gspool.search.serve_lookup import Lookup

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def create_app(lookup: Lookup, limits: UploadLimits | None = None, hosts: Sequence[str] = LOOPBACK) -> FastAPI:
    """Make the whole server as an ASGI application, for uvicorn or any other.

    Args:
        lookup: the model and the corpus.
        limits: of one upload.
        hosts: the names under which it may be asked for. A page of another site can make a browser ask a loopback
            address under its own name, and would read the answer; ``*`` allows every name.

    Raises:
        ValueError: if a limit is not positive.
    """
    # Before Gradio is imported, which asks for them then: nothing is reported, and no questions are kept.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = os.environ["GRADIO_RUN_HISTORY"] = "False"
    import gradio as gr
    from gradio.utils import get_upload_folder

    from gspool.search.api import create_api
    from gspool.search.page import create_page, page_options

    limits = (limits or UploadLimits()).check()
    uploads = Path(get_upload_folder())
    app = create_api(lookup, limits)
    page = create_page(lookup, limits)
    gr.mount_gradio_app(app, page, path="", max_file_size=limits.bytes, **page_options())
    # Gradio looks at the paths of requests only once a page counts as launched, which a mounted one never does.
    page.has_launched = True
    app.add_middleware(Guard, max_bytes=limits.bytes, uploads=uploads, hosts=hosts)
    return app


@contextmanager
def private_uploads() -> Iterator[Path]:
    """Give uploads a folder of this server's own, which is deleted with everything in it at the end."""
    before = os.environ.get("GRADIO_TEMP_DIR")
    with tempfile.TemporaryDirectory(prefix="gspool-serve-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ["GRADIO_TEMP_DIR"]
            else:
                os.environ["GRADIO_TEMP_DIR"] = before
