"""Who may ask: hosts, origins, a token, a rate, and what is believed of a proxy."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import time
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers

# Clients that are remembered; beyond, those that have not asked for longest are forgotten.
MOST_CLIENTS = 10_000
# What a client may invent about proxies before this server.
INVENTED = (b"x-forwarded", b"forwarded", b"x-gradio", b"x-original", b"x-real-ip")


def is_loopback(host: str) -> bool:
    """Return whether an address can only be reached from this machine.

    Example:
        >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
        (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def own_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Drop what a client may invent about proxies: Gradio would build the addresses of its page from it.

    Only whether the visitor came by HTTPS is kept: it changes nothing but the scheme of those addresses.

    Example:
        >>> own_headers([(b"host", b"a"), (b"x-forwarded-host", b"evil"), (b"x-forwarded-proto", b"https")])
        [(b'host', b'a'), (b'x-forwarded-proto', b'https')]
    """
    believed = ((b"x-forwarded-proto", b"http"), (b"x-forwarded-proto", b"https"))
    return [each for each in headers if each in believed or not each[0].lower().startswith(INVENTED)]


def is_host(headers: Headers, hosts: Collection[str]) -> bool:
    """Return whether a request asks for this server by one of its names; ``*`` is any.

    Starlette's TrustedHostMiddleware does not read addresses of IPv6.

    Example:
        >>> named = [Headers({"host": name}) for name in ("localhost:80", "[::1]", "evil.example")]
        >>> [is_host(each, ["localhost", "::1"]) for each in named]
        [True, True, False]
    """
    if "*" in hosts:
        return True
    names = [
        name[1:].partition("]")[0] if name[:1] == "[" else name.partition(":")[0] for name in headers.getlist("host")
    ]
    return len(names) == 1 and names[0].lower() in hosts


def is_own_origin(headers: Headers, origins: Collection[str]) -> bool:
    """Return whether a request comes from this server's own page, or from a program, which sends no Origin.

    ``origins`` are further host names whose pages may ask, for a proxy that changes the Host header.

    Example:
        >>> host, own, foreign = "localhost:7860", "http://localhost:7860", "https://evil.example"
        >>> [is_own_origin(Headers({"host": host, "origin": origin}), []) for origin in (own, foreign)]
        [True, False]
    """
    named, asked = headers.getlist("origin"), headers.getlist("host")
    if not named:
        return True
    try:
        origin = urlsplit(named[0])
        same = len(named) == 1 == len(asked) and bool(origin.netloc) and origin.netloc.lower() == asked[0].lower()
        return same or (origin.hostname or "") in origins
    except ValueError:
        return False


def has_token(headers: Headers, token: str | None) -> bool:
    """Return whether a request carries the token, as a Bearer token or as the password of HTTP Basic.

    Example:
        >>> secret = Headers({"authorization": "Bearer secret"})
        >>> has_token(secret, "secret"), has_token(Headers({}), "secret"), has_token(Headers({}), None)
        (True, False, True)
    """
    if token is None:
        return True
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


class RateLimit:
    """A token bucket per client: as many requests at once as in a minute, refilled evenly.

    Args:
        per_minute: requests per client; 0 is no limit.
        loopback: whether clients of this machine are limited too.

    Example:
        >>> limit = RateLimit(2, loopback=False)
        >>> [limit.allows("192.0.2.1", now=0.0) for _ in range(3)], limit.allows("192.0.2.1", now=30.0)
        ([True, True, False], True)
        >>> all(limit.allows("127.0.0.1", now=0.0) for _ in range(100))
        True
    """

    def __init__(self, per_minute: int, loopback: bool = True) -> None:
        self.per_minute, self.loopback = per_minute, loopback
        self._left: dict[str, tuple[float, float]] = {}

    def allows(self, address: str, now: float | None = None) -> bool:
        """Count a request; return whether the client still has one left."""
        if not self.per_minute or (not self.loopback and is_loopback(address)):
            return True
        now = time.monotonic() if now is None else now
        client = _network(address)
        # Taken out and put back at the end, so that the oldest come first.
        left, before = self._left.pop(client, (float(self.per_minute), now))
        left = min(float(self.per_minute), left + (now - before) * self.per_minute / 60)
        self._left[client] = (left - 1 if left >= 1 else left, now)
        if len(self._left) > MOST_CLIENTS:
            del self._left[next(iter(self._left))]
        return left >= 1


def _network(address: str) -> str:
    """One client has many addresses of IPv6: count its network."""
    try:
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    except ValueError:
        return address
