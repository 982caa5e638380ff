"""The guard before the server: who may ask, how much may come in and how slowly, which addresses exist."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ipaddress
import logging
import shutil
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Clients that are remembered; beyond, those that have not asked for longest are forgotten.
MOST_CLIENTS = 10_000
# What a client may invent about proxies before this server: Gradio would build the addresses of its page from it. Only
# whether the visitor came by HTTPS is believed: it changes nothing but the scheme of those addresses.
INVENTED = (b"x-forwarded", b"forwarded", b"x-gradio", b"x-original", b"x-real-ip")
BELIEVED = ((b"x-forwarded-proto", b"http"), (b"x-forwarded-proto", b"https"))
# Boundaries, names and the other fields of a form, around the file that the limit is about.
FORM_BYTES = 64 * 2**10
# What the page and programs need. Gradio has more than fifty further routes (proxies, histories, editors); whatever is
# not named here does not exist.
GRADIO = (
    "cancel",
    "info",
    "queue/data",
    "queue/join",
    "reset",
    "run/predict",
    "startup-events",
    "upload",
    "upload_progress",
)
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


class RateLimit:
    """A token bucket per client: as many requests at once as in a minute, refilled evenly.

    Args:
        per_minute: requests per client; 0 is no limit.
        loopback: whether clients of this machine are limited too.

    Example:
        >>> limit = RateLimit(2, loopback=False)
        >>> [limit.allows("192.0.2.1", now=0.0) for _ in range(3)], limit.allows("192.0.2.1", now=30.0)
        ([True, True, False], True)
    """

    def __init__(self, per_minute: int, loopback: bool = True) -> None:
        self.per_minute, self.loopback = per_minute, loopback
        self._left: dict[str, tuple[float, float]] = {}

    def allows(self, address: str, now: float | None = None) -> bool:
        """Count a request; return whether the client still has one left."""
        if not self.per_minute or (not self.loopback and is_loopback(address)):
            return True
        now, client = time.monotonic() if now is None else now, client_of(address)
        # Taken out and put back at the end, so that the oldest come first.
        left, before = self._left.pop(client, (float(self.per_minute), now))
        left = min(float(self.per_minute), left + (now - before) * self.per_minute / 60)
        self._left[client] = (left - 1 if left >= 1 else left, now)
        if len(self._left) > MOST_CLIENTS:
            del self._left[next(iter(self._left))]
        return left >= 1


class Rules(NamedTuple):
    """What the guard allows.

    Args:
        hosts: the names of the server; ``*`` is any.
        origins: further names whose pages may send requests, for a proxy that changes the Host header.
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
        own = [each for each in scope["headers"] if each in BELIEVED or not each[0].lower().startswith(INVENTED)]
        scope = {**scope, "headers": own}
        refusal = self._refusal(scope)
        if refusal is None:
            if scope["path"] == UPLOAD:
                await asyncio.to_thread(make_room, self.uploads, self.rules.folder_bytes - self.max_body)
            refusal = await self._pass_on(scope, receive, send)
        if refusal is not None:
            await refusal(scope, receive, send)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        """Return the answer to a request that is refused, by what is known before its body; None if it may pass."""
        headers, rules, method = Headers(scope=scope), self.rules, scope["method"]
        if not _is_host(headers, rules.hosts):
            return _refused(400, "host not allowed; gspool serve --allow-host NAME allows it")
        authorised = rules.token is None or _has_token(headers, rules.token)
        # Requests that cost work count, and wrong tokens, which could be tried by the million.
        counts = method not in SAFE or scope["path"].startswith(PICTURES) or not authorised
        if counts and not rules.rate.allows((scope.get("client") or ("unknown", 0))[0]):
            detail = f"at most {rules.rate.per_minute} requests a minute; wait and try again"
            return _refused(429, detail, {"retry-after": "60"})
        if not authorised:
            detail = "a token is needed: as a Bearer token, or as the password of HTTP Basic"
            return _refused(401, detail, {"www-authenticate": 'Basic realm="gspool", charset="UTF-8"'})
        if not self._exists(scope["path"]):
            return _refused(404, "there is nothing at this address; /docs lists all routes")
        if method not in SAFE and not _is_own_origin(headers, rules.origins):
            return _refused(403, "requests from pages of other sites are not allowed; --allow-host NAME allows one")
        for length in headers.getlist("content-length"):
            # Python itself refuses to read numbers of thousands of digits.
            if not (length.isascii() and length.isdigit() and len(length) < 20 and int(length) <= self.max_body):
                return self._too_large()
        return None

    def _too_large(self) -> JSONResponse:
        return _refused(413, f"a request may have at most {self.max_body:,} bytes; send a smaller picture")

    def _exists(self, path: str) -> bool:
        """Return whether an address is one of this server's."""
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
            except TimeoutError:
                problem = _refused(408, f"nothing came for {self.rules.seconds:g} s; send the request faster")
                raise
            if message["type"] == "http.request":
                more = message.get("more_body", False)
                left -= len(message.get("body", b""))
                if left < 0:
                    problem = self._too_large()
                    raise ValueError("more bytes than a request may have")
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
        except Exception as error:
            # The request was at fault, whatever it became on its way out.
            if problem is None:
                # A page that is closed in the middle of an upload is no mistake of the server.
                if not isinstance(error, ClientDisconnect):
                    logging.getLogger(__name__).exception("%s %r", scope["method"], scope["path"])
                raise
        return None if answered else problem


def is_loopback(host: str) -> bool:
    """Return whether an address can only be reached from this machine."""
    address = _parsed(host)
    return host == "localhost" if address is None else address.is_loopback


def client_of(address: str) -> str:
    """Return what counts as one client: an address of IPv4, or a network of IPv6, whose owner has all its addresses.

    Example:
        >>> client_of("2001:db8::1"), client_of("::ffff:192.0.2.1")
        ('2001:db8::/64', '192.0.2.1')
    """
    found = _parsed(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((int(found), 64), strict=False))
    return address if found is None else str(found)


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return None
    # A socket of IPv6 writes an address of IPv4 as ::ffff:192.0.2.1.
    return getattr(found, "ipv4_mapped", None) or found


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


def _is_host(headers: Headers, hosts: tuple[str, ...]) -> bool:
    """Check the name that is asked for; Starlette's TrustedHostMiddleware does not read addresses of IPv6."""
    if "*" in hosts:
        return True
    names = [
        name[1:].partition("]")[0] if name[:1] == "[" else name.partition(":")[0] for name in headers.getlist("host")
    ]
    return len(names) == 1 and names[0].lower() in hosts


def _is_own_origin(headers: Headers, origins: tuple[str, ...]) -> bool:
    """Return whether a request comes from this server's own page, or from a program, which sends no Origin."""
    named, asked = headers.getlist("origin"), headers.getlist("host")
    if not named:
        return True
    try:
        origin = urlsplit(named[0])
        same = len(named) == 1 == len(asked) and bool(origin.netloc) and origin.netloc.lower() == asked[0].lower()
        return same or (origin.hostname or "") in origins
    except ValueError:
        return False


def _has_token(headers: Headers, token: str) -> bool:
    """Return whether a request carries the token, as a Bearer token or as the password of HTTP Basic."""
    for value in headers.getlist("authorization"):
        kind, _, given = value.partition(" ")
        if kind.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).decode("utf-8", "replace").partition(":")[2]
            except (binascii.Error, ValueError):
                continue
        elif kind.lower() != "bearer":
            continue
        # In constant time: the time of a comparison would give away the token letter by letter.
        if hmac.compare_digest(given.encode(), token.encode()):
            return True
    return False


def _refused(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    # Closing ends an upload that is still coming, which would otherwise be read to its end.
    return JSONResponse({"detail": detail}, status, {**HEADERS, **(headers or {}), "connection": "close"})
