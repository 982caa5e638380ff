"""Who may ask: hosts, origins, a token, a rate, and what is believed of a proxy."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import time
from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

Headers = list[tuple[bytes, bytes]]
# Clients that are remembered; beyond, those that have not asked for longest are forgotten.
MOST_CLIENTS = 10_000


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


def bare_host(name: str) -> str:
    """Return a host without its port.

    Example:
        >>> bare_host("localhost:7860"), bare_host("[::1]:7860")
        ('localhost', '::1')
    """
    return (name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]).lower()


def values_of(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[str]:
    """Return all values of a header."""
    return [value.decode("latin-1") for key, value in headers if key.lower() == name]


def own_headers(headers: Headers) -> Headers:
    """Drop what a client may invent about proxies before this server.

    Gradio would build the addresses of its page from X-Forwarded-Host. Only whether the visitor came by HTTPS is kept:
    it changes nothing but the scheme of those addresses.

    Example:
        >>> own_headers([(b"host", b"a"), (b"x-forwarded-host", b"evil"), (b"x-forwarded-proto", b"https")])
        [(b'host', b'a'), (b'x-forwarded-proto', b'https')]
    """

    def kept(name: bytes, value: bytes) -> bool:
        if name == b"x-forwarded-proto":
            return value in (b"http", b"https")
        return not name.startswith((b"x-forwarded", b"forwarded", b"x-gradio", b"x-original", b"x-real-ip"))

    return [(name, value) for name, value in headers if kept(name.lower(), value)]


def is_host(headers: Headers, hosts: Collection[str]) -> bool:
    """Return whether a request asks for this server by one of its names; ``*`` is any.

    Example:
        >>> [is_host([(b"host", name)], ["localhost", "::1"]) for name in (b"localhost:80", b"[::1]", b"evil.example")]
        [True, True, False]
    """
    named = values_of(headers, b"host")
    return "*" in hosts or (len(named) == 1 and bare_host(named[0]) in hosts)


def is_own_origin(headers: Headers, origins: Collection[str]) -> bool:
    """Return whether a request comes from this server's own page, or from a program, which sends no Origin.

    Args:
        headers: of the request.
        origins: further host names whose pages may ask, for a proxy that changes the Host header.

    Example:
        >>> page, foreign = (b"origin", b"http://localhost:7860"), (b"origin", b"https://evil.example")
        >>> host = (b"host", b"localhost:7860")
        >>> [is_own_origin([host, *more], []) for more in ([], [page], [foreign])]
        [True, True, False]
    """
    named = values_of(headers, b"origin")
    if not named:
        return True
    try:
        origin = urlsplit(named[0])
        asked = values_of(headers, b"host")
        same = len(named) == 1 == len(asked) and bool(origin.netloc) and origin.netloc.lower() == asked[0].lower()
        return same or (origin.hostname or "") in origins
    except ValueError:
        return False


def has_token(headers: Headers, token: str | None) -> bool:
    """Return whether a request carries the token, as a Bearer token or as the password of HTTP Basic.

    Example:
        >>> has_token([(b"authorization", b"Bearer secret")], "secret"), has_token([], "secret"), has_token([], None)
        (True, False, True)
    """
    if token is None:
        return True
    for value in values_of(headers, b"authorization"):
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
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False)) if parsed.version == 6 else address
