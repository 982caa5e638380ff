"""Run the server: a port, a line that says where, a clean end."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gspool.search.serve_app import LOOPBACK

if TYPE_CHECKING:
    from fastapi import FastAPI

# Open pages keep a connection for ever; after Ctrl-C nobody wants to wait for them.
SECONDS_TO_END = 1


@contextmanager
def listening(host: str, port: int) -> Iterator[tuple[socket.socket, int]]:
    """Take a port before anything slow begins, and give it with its number, which 0 leaves open.

    Raises:
        ValueError: if the address is none of this machine's, or the port is taken or not allowed.

    Example:
        >>> with listening("127.0.0.1", 0) as (listener, port):
        ...     port > 0
        True
    """
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


def is_loopback(host: str) -> bool:
    """Say whether an address can be reached from this machine alone.

    Example:
        >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
        (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def served_names(host: str, more: Sequence[str], public: str | None) -> list[str]:
    """List the names that requests may ask for; all, where a machine listens everywhere and nobody named any.

    Example:
        >>> served_names("127.0.0.1", ["search.example.org"], None)
        ['127.0.0.1', 'localhost', '::1', '127.0.0.1', 'search.example.org']
        >>> served_names("0.0.0.0", [], None)
        ['*']
    """
    if host in ("0.0.0.0", "::") and not more:
        return ["*"]
    tunnel = [] if public is None else [public.partition("://")[2].partition("/")[0]]
    return [*LOOPBACK, host, *more, *tunnel]


def run_server(app: FastAPI, listener: socket.socket, host: str, port: int, public: str | None = None) -> None:
    """Serve until Ctrl-C or SIGTERM, then say so."""
    import uvicorn

    shown = f"[{host}]" if ":" in host else host
    address = f"http://{'127.0.0.1' if host == '0.0.0.0' else shown}:{port}"
    print(f"page    {address}\napi     {address}/docs")
    if public is not None:
        print(f"public  {public}")
    if not is_loopback(host) or public is not None:
        print("others can reach this server, and it has no password")
    print("Ctrl-C stops it", flush=True)
    config = uvicorn.Config(
        app,
        log_level="critical",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=SECONDS_TO_END,
    )
    try:
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        # The server has ended in order by now, and passes on the signal that ended it.
        print()
    print("stopped", flush=True)


def open_tunnel(port: int) -> str:
    """Ask Gradio's service for a public address that leads here; it lasts as long as this process.

    Raises:
        ValueError: if the service cannot be reached.
    """
    import secrets

    from gradio import networking

    try:
        return networking.setup_tunnel("127.0.0.1", port, secrets.token_urlsafe(32), None, None)
    except (OSError, RuntimeError) as problem:
        raise ValueError(
            f"no public address could be opened ({problem}); --share needs the internet and Gradio's service. "
            "Leave it out, and let a proxy of your own lead to this server"
        ) from problem
