"""What stands before the server: how much may come in, which addresses exist, what a browser may load."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

# Boundaries, names and the other fields of a form, around the file that the limit is about.
FORM_BYTES = 64 * 2**10
# What the page and the programs need. Gradio offers more than fifty further routes (proxies, histories, editors);
# whatever is not named here does not exist.
EXACT = frozenset(
    {
        "/",
        "/config",
        "/docs",
        "/favicon.ico",
        "/gradio_api/cancel",
        "/gradio_api/info",
        "/gradio_api/queue/data",
        "/gradio_api/queue/join",
        "/gradio_api/reset",
        "/gradio_api/startup-events",
        "/gradio_api/upload",
        "/gradio_api/upload_progress",
        "/manifest.json",
        "/openapi.json",
        "/theme.css",
    }
)
PREFIXES = ("/api/", "/assets/", "/static/", "/gradio_api/heartbeat/")
FILE = "/gradio_api/file="
# Gradio writes scripts and styles into its page; no address but this server's is open to it.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; media-src 'self' blob:; worker-src 'self' blob:; "
    "connect-src 'self' data: blob:; object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)


class Guard:
    """An ASGI application around another one, which sees only requests that it should.

    Args:
        app: the application inside.
        max_bytes: the largest file of an upload.
        uploads: the folder in which Gradio keeps uploads: the only files that may be read by path.
        hosts: the names that the server goes by; ``*`` is any.
    """

    def __init__(self, app: Application, max_bytes: int, uploads: Path, hosts: Sequence[str] = ("*",)) -> None:
        self.app = app
        self.max_body = max_bytes + FORM_BYTES
        self.uploads = uploads
        self.hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request, or let it through."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if not self.goes_by(scope["headers"]):
            await _refuse(
                send, 400, "this server does not go by that name; gspool serve --allow-host NAME gives it one"
            )
            return
        if not self.exists(scope["path"]):
            await _refuse(send, 404, "there is nothing at this address; /docs lists what there is")
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        body = _Body(receive, self.max_body)
        body.too_large = not declared.isdigit() or int(declared) > self.max_body
        answered = False

        async def sent(message: Message) -> None:
            nonlocal answered
            # What is inside may answer in its own way to an upload that broke off; ours is the one that says why.
            if body.too_large and not answered:
                return
            if message["type"] == "http.response.start":
                answered = True
                present = {name.lower() for name, _ in message.get("headers", ())}
                extra = [(name, value) for name, value in HEADERS if name not in present]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        try:
            if not body.too_large:
                await self.app(scope, body.receive, sent)
        except Exception:
            # Whatever became of it on its way out: the request itself was at fault, and is told so below.
            if not body.too_large:
                raise
        if body.too_large and not answered:
            await _refuse(send, 413, f"a request may hold {self.max_body:,} bytes at most; send a smaller picture")

    def goes_by(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Say whether a request asks for this server by one of its names.

        Example:
            >>> guard = Guard(None, 1000, Path("/uploads"), ["localhost", "::1"])
            >>> [guard.goes_by([(b"host", name)]) for name in (b"localhost:7860", b"[::1]:7860", b"evil.example")]
            [True, True, False]
        """
        if "*" in self.hosts:
            return True
        names = [value.decode("latin-1").lower() for name, value in headers if name == b"host"]
        # [::1]:7860 has colons of its own; everything else has one before the port, if any.
        bare = [name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0] for name in names]
        return len(bare) == 1 and bare[0] in self.hosts

    def exists(self, path: str) -> bool:
        """Say whether an address is one of this server's.

        Example:
            >>> guard = Guard(None, 1000, Path("/uploads"))
            >>> guard.exists("/api/search"), guard.exists("/gradio_api/file=/etc/passwd"), guard.exists("/monitoring")
            (True, False, False)
        """
        # The server has decoded the address once; a second layer of %2e%2e is only ever an attempt.
        if ".." in unquote(path).split("/") or "\\" in path or "\0" in path:
            return False
        if path.startswith(FILE):
            place = Path(path.removeprefix(FILE))
            return place.is_absolute() and place.resolve().is_relative_to(self.uploads.resolve())
        return path in EXACT or path.startswith(PREFIXES)


class TooLargeError(Exception):
    """More bytes came than a request may have; the answer is 413, whoever catches this."""


class _Body:
    """Count what really comes: a request need not say its length, and may lie about it."""

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive, self._left = receive, most
        self.too_large = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                self.too_large = True
                raise TooLargeError("more bytes than a request may have")
        return message


async def _refuse(send: Send, status: int, detail: str) -> None:
    body = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *HEADERS]
    # Closing ends an upload that is still coming, which would otherwise be read to its end.
    headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
