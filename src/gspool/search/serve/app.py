"""Make the server: routes for programs, the page for people, and the guard before both."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gspool.search.serve.guard import Guard, Rules
from gspool.search.serve.lookup import UPLOAD_LIMITS, Lookup

if TYPE_CHECKING:
    from fastapi import FastAPI

    from gspool.search.images import Limits

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def create_app(
    lookup: Lookup, limits: Limits | None = None, hosts: Sequence[str] = LOOPBACK, rules: Rules | None = None
) -> FastAPI:
    """Return the whole server as an ASGI application, for uvicorn or any other.

    Args:
        lookup: the model and the corpus.
        limits: of one upload.
        hosts: the names under which it may be asked for. A page of another site can lead its own name to a loopback
            address, and would read the answers; ``*`` allows every name.
        rules: further rules: a token, a rate, timeouts.

    Raises:
        ValueError: if a limit is not positive.
    """
    # Before Gradio is imported, which reads them then: no telemetry, no history of questions.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = os.environ["GRADIO_RUN_HISTORY"] = "False"
    import gradio as gr
    from gradio.utils import get_upload_folder

    from gspool.search.serve.api import create_api
    from gspool.search.serve.page import create_page, page_options

    limits = (limits or UPLOAD_LIMITS).check()
    uploads = Path(get_upload_folder())
    app = create_api(lookup, limits)
    page = create_page(lookup, limits)
    gr.mount_gradio_app(app, page, path="", max_file_size=limits.max_bytes, **page_options())
    # Gradio checks the paths of requests only once a page counts as launched, which a mounted one never does.
    page.has_launched = True
    names = tuple(host.lower() for host in hosts)
    allowed = (rules or Rules())._replace(hosts=names, max_bytes=limits.max_bytes)
    app.add_middleware(Guard, uploads=uploads, rules=allowed)
    return app


@contextmanager
def private_uploads() -> Iterator[Path]:
    """Make a folder for uploads, and delete it with everything in it at the end."""
    before = os.environ.get("GRADIO_TEMP_DIR")
    with tempfile.TemporaryDirectory(prefix="gspool-serve-", ignore_cleanup_errors=True) as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ["GRADIO_TEMP_DIR"]
            else:
                os.environ["GRADIO_TEMP_DIR"] = before
