"""Make the server of routes for programs, the page for people and the guard before both, and run it."""

from __future__ import annotations

import asyncio
import atexit
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from gspool.search.serve.guard import Guard, Rules, client_of, is_loopback
from gspool.search.serve.lookup import UPLOAD_LIMITS, Lookup

if TYPE_CHECKING:
    from fastapi import FastAPI

    from gspool.search.model import Limits

LOOPBACK = ("127.0.0.1", "localhost", "::1")
# Open pages keep a connection for ever; do not wait for them after Ctrl-C.
SECONDS_TO_END = 1
# Connections of the whole server, and of one client elsewhere; a page needs about seven.
MOST_CONNECTIONS, MOST_CONNECTIONS_EACH = 512, 64


def create_app(
    lookup: Lookup, limits: Limits | None = None, hosts: Sequence[str] = LOOPBACK, rules: Rules | None = None
) -> FastAPI:
    """Return the whole server as an ASGI application, for uvicorn or any other.

    Gradio keeps uploads in the folder that the environment variable GRADIO_TEMP_DIR names. Where it is not set, it is
    set to a new folder, which is deleted when this process ends: by default all programs with Gradio share one.

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
    if not os.environ.get("GRADIO_TEMP_DIR"):
        os.environ["GRADIO_TEMP_DIR"] = tempfile.mkdtemp(prefix="gspool-serve-")
        atexit.register(shutil.rmtree, os.environ["GRADIO_TEMP_DIR"], ignore_errors=True)
    import gradio as gr
    from gradio.utils import get_upload_folder

    from gspool.search.serve.api import create_api
    from gspool.search.serve.page import create_page, page_options

    limits = limits or UPLOAD_LIMITS
    app, page = create_api(lookup, limits), create_page(lookup, limits)
    gr.mount_gradio_app(app, page, path="", max_file_size=limits.max_bytes, **page_options())
    # Gradio checks the paths of requests only once a page counts as launched, which a mounted one never does.
    page.has_launched = True
    names = tuple(host.lower() for host in hosts)
    allowed = (rules or Rules())._replace(hosts=names, max_bytes=limits.max_bytes)
    app.add_middleware(Guard, uploads=Path(get_upload_folder()), rules=allowed)
    return app


class Connection(H11Protocol):
    """uvicorn's connection, closed where the head of a request does not come in time, or one client opens too many.

    uvicorn itself waits for ever for the first request, and for the rest of one that has begun. Bodies have a limit of
    their own, in the guard.
    """

    def __init__(self, *arguments: Any, seconds: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._seconds = seconds
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        clients = [client_of((getattr(other, "client", None) or ("", 0))[0]) for other in self.connections]
        if not is_loopback(address) and clients.count(client_of(address)) > MOST_CONNECTIONS_EACH:
            transport.abort()
            return
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take bytes; wait for the rest of a head, if it is not complete."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        super().connection_lost(exc)
        self._stop_watch()

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop_watch()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self._seconds, self.transport.abort)

    def _stop_watch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


@contextmanager
def listening(host: str, port: int) -> Iterator[tuple[socket.socket, int]]:
    """Take a port before anything slow begins; yield it with its number, which is free with 0."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as problem:
            raise ValueError(
                f"cannot listen at {host}, port {port} ({problem.strerror or problem}); choose another --port "
                "(0 takes a free one), or an address of this machine as --host"
            ) from problem
        yield listener, listener.getsockname()[1]


def run_server(app: FastAPI, listener: socket.socket, address: str, seconds: float) -> None:
    """Serve on a bound socket until Ctrl-C or SIGTERM; a client has some seconds for the head of a request."""
    print(f"page    {address}\napi     {address}/docs\nCtrl-C stops it", flush=True)
    config = uvicorn.Config(
        app,
        http=partial(Connection, seconds=seconds),  # type: ignore[arg-type]
        log_level="critical",
        ws="none",
        server_header=False,
        # Anybody can write X-Forwarded-For: the address of a client is that of its connection.
        proxy_headers=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=SECONDS_TO_END,
    )
    try:
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        # The server has ended in order by now, and raises the signal again.
        print()
    print("stopped", flush=True)


def open_tunnel(port: int) -> str:
    """Ask Gradio's service for a public address that leads here, for as long as this process runs."""
    from gradio import networking

    try:
        return networking.setup_tunnel("127.0.0.1", port, secrets.token_urlsafe(32), None, None)
    except (OSError, RuntimeError) as problem:
        raise ValueError(
            f"no public address could be opened ({problem}); --share needs the internet and Gradio's service. "
            "Leave it out, and use a reverse proxy of your own"
        ) from problem
