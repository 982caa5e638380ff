"""The guard before the server: who may ask, how much may come in and how slowly, which addresses exist."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gspool.search.serve.access import RateLimit, has_token, is_host, is_own_origin, own_headers

# Boundaries, names and the other fields of a form, around the file that the limit is about.
FORM_BYTES = 64 * 2**10
# What the page and programs need. Gradio has more than fifty further routes (proxies, histories, editors); whatever is
# not named here does not exist.
GRADIO = ("cancel", "info", "queue/data", "queue/join", "reset", "startup-events", "upload", "upload_progress")
EXACT = {"/", "/config", "/docs", "/favicon.ico", "/manifest.json", "/openapi.json", "/theme.css"}
EXACT |= {f"/gradio_api/{name}" for name in GRADIO}
PREFIXES = ("/api/", "/assets/", "/static/", "/gradio_api/heartbeat/")
FILE, UPLOAD, PICTURES = "/gradio_api/file=", "/gradio_api/upload", "/api/pictures/"
SAFE = ("GET", "HEAD", "OPTIONS")
# A body may take this many times the limit for one pause.
PAUSES = 10
# An upload counts as this many bytes at least: a million small files would fill a disk too.
LEAST_BYTES = 64 * 2**10
# Gradio writes scripts and styles into its page; only this server's addresses are open to it.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; media-src 'self' blob:; worker-src 'self' blob:; "
    "connect-src 'self' data: blob:; object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Rules(NamedTuple):
    """What the guard allows.

    Args:
        hosts: the names of the server; ``*`` is any.
        origins: further names whose pages may send requests, see `is_own_origin`.
        token: what every request must carry; None if none is needed.
        rate: how many requests a client may send.
        max_bytes: the largest file of an upload.
        seconds: how long a client may pause while it sends a request.
        folder_bytes: how much the folder of uploads may hold.
    """

    hosts: tuple[str, ...] = ("*",)
    origins: tuple[str, ...] = ()
    token: str | None = None
    rate: RateLimit = RateLimit(0)
    max_bytes: int = 10 * 2**20
    seconds: float = 30.0
    folder_bytes: int = 256 * 2**20


class Guard:
    """An ASGI application around another one, which sees only requests that it should.

    Args:
        app: the application inside.
        uploads: the folder in which Gradio keeps uploads: the only files that may be read by path.
        rules: what is allowed.
    """

    def __init__(self, app: ASGIApp, uploads: Path, rules: Rules) -> None:
        self.app, self.uploads, self.rules = app, uploads, rules
        self.max_body = rules.max_bytes + FORM_BYTES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        scope = {**scope, "headers": own_headers(scope["headers"])}
        refusal = self.refusal(scope)
        if refusal is None:
            if scope["path"] == UPLOAD:
                await asyncio.to_thread(make_room, self.uploads, self.rules.folder_bytes - self.max_body)
            refusal = await self._pass_on(scope, receive, send)
        if refusal is not None:
            await refusal(scope, receive, send)

    def refusal(self, scope: Scope) -> JSONResponse | None:
        """Return the answer to a request that is refused, by what is known before its body; None if it may pass."""
        headers, rules, method = Headers(scope=scope), self.rules, scope["method"]
        if not is_host(headers, rules.hosts):
            return _refused(400, "host not allowed; gspool serve --allow-host NAME allows it")
        authorised = has_token(headers, rules.token)
        # Requests that cost work count, and wrong tokens, which could be tried by the million.
        counts = method not in SAFE or scope["path"].startswith(PICTURES) or not authorised
        if counts and not rules.rate.allows((scope.get("client") or ("unknown", 0))[0]):
            detail = f"at most {rules.rate.per_minute} requests a minute; wait and try again"
            return _refused(429, detail, {"retry-after": "60"})
        if not authorised:
            detail = "a token is needed: as a Bearer token, or as the password of HTTP Basic"
            return _refused(401, detail, {"www-authenticate": 'Basic realm="gspool", charset="UTF-8"'})
        if not self.exists(scope["path"]):
            return _refused(404, "there is nothing at this address; /docs lists all routes")
        if method not in SAFE and not is_own_origin(headers, rules.origins):
            return _refused(403, "requests from pages of other sites are not allowed; --allow-host NAME allows one")
        if not all(_is_at_most(length, self.max_body) for length in headers.getlist("content-length")):
            return self.too_large()
        return None

    def too_large(self) -> JSONResponse:
        """Return the answer to a request with too many bytes."""
        return _refused(413, f"a request may have at most {self.max_body:,} bytes; send a smaller picture")

    def exists(self, path: str) -> bool:
        """Return whether an address is one of this server's.

        Example:
            >>> guard = Guard(None, Path("/uploads"), Rules())
            >>> guard.exists("/api/search"), guard.exists("/gradio_api/file=/etc/passwd"), guard.exists("/monitoring")
            (True, False, False)
        """
        # The server has decoded the address once; a second layer of %2e%2e is always an attempt.
        if ".." in unquote(path).split("/") or "\\" in path or "\0" in path:
            return False
        if path.startswith(FILE):
            place = Path(path.removeprefix(FILE))
            return place.is_absolute() and place.resolve().is_relative_to(self.uploads.resolve())
        return path in EXACT or path.startswith(PREFIXES)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> JSONResponse | None:
        """Pass a request on; return the answer to it if its body was too large or too slow."""
        # A request need not state its length, and may lie about it: count the bytes and the seconds of the body.
        left, ends, more = self.max_body, time.monotonic() + PAUSES * self.rules.seconds, True
        problem: JSONResponse | None = None
        answered = False

        async def received() -> Message:
            nonlocal left, more, problem
            if not more:
                # The body is complete; the application waits for the client to leave.
                return await receive()
            try:
                async with asyncio.timeout(min(self.rules.seconds, ends - time.monotonic())):
                    message = await receive()
            except TimeoutError as error:
                problem = _refused(408, f"nothing came for {self.rules.seconds:g} s; send the request faster")
                raise BodyError("the body came too slowly") from error
            if message["type"] == "http.request":
                more = message.get("more_body", False)
                left -= len(message.get("body", b""))
                if left < 0:
                    problem = self.too_large()
                    raise BodyError("more bytes than a request may have")
            return message

        async def sent(message: Message) -> None:
            nonlocal answered
            # What is inside may answer in its own way to a body that broke off; ours gives the reason.
            if problem is not None and not answered:
                return
            if message["type"] == "http.response.start":
                answered = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self.app(scope, received, sent)
        except Exception:
            # The request was at fault, whatever it became on its way out.
            if problem is None:
                raise
        return None if answered else problem


class BodyError(Exception):
    """A body that is too large or too slow; the guard answers, whoever catches this."""


def _is_at_most(length: str, most: int) -> bool:
    # Python itself refuses to read numbers of thousands of digits.
    return length.isascii() and length.isdigit() and len(length) < 20 and int(length) <= most


def _refused(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    # Closing ends an upload that is still coming, which would otherwise be read to its end.
    return JSONResponse({"detail": detail}, status, {**HEADERS, **(headers or {}), "connection": "close"})


def make_room(folder: Path, most: int) -> None:
    """Delete the oldest uploads until the others take at most ``most`` bytes."""
    files: list[tuple[float, int, Path]] = []
    for file in folder.rglob("*"):
        try:
            if file.is_file():
                files.append((file.stat().st_mtime, max(file.stat().st_size, LEAST_BYTES), file))
        except OSError:
            continue  # deleted meanwhile
    total = sum(size for _, size, _ in files)
    for _, size, file in sorted(files):
        if total <= most:
            return
        file.unlink(missing_ok=True)
        if file.parent != folder and not any(file.parent.iterdir()):
            shutil.rmtree(file.parent, ignore_errors=True)
        total -= size
