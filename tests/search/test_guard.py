"""The guard alone, around an application that would answer to everything."""

from __future__ import annotations

import asyncio
import base64
import os

import pytest
from starlette.requests import ClientDisconnect
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from gspool.search.serve.guard import FORM_BYTES, LEAST_BYTES, Guard, RateLimit, Rules, make_room

MOST = 1000
RULES = Rules(max_bytes=MOST)


class Everything:
    """Reads the whole body, and answers to every address with the number of its bytes; or fails where that is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, scope, receive, send) -> None:
        self.asked.append(scope["path"])
        self.headers = dict(scope["headers"])
        if scope["path"].startswith("/api/fails"):
            raise RuntimeError("a mistake of ours")
        if scope["path"] == "/api/leaves":
            raise ClientDisconnect
        total, more = 0, True
        try:
            while more:
                message = await receive()
                total += len(message.get("body", b""))
                more = message.get("more_body", False)
        except Exception as problem:
            if scope["path"] == "/api/answers":
                total = -1
            elif scope["path"] == "/api/wraps":
                raise ValueError("could not parse") from problem
            else:
                raise
        await send({"type": "http.response.start", "status": 200, "headers": [(b"referrer-policy", b"own")]})
        await send({"type": "http.response.body", "body": str(total).encode()})


@pytest.fixture
def inside() -> Everything:
    return Everything()


@pytest.fixture
def guarded(inside, tmp_path) -> TestClient:
    (tmp_path / "uploads").mkdir()
    return TestClient(Guard(inside, tmp_path / "uploads", RULES))


def chunks(count: int):
    for _ in range(count):
        yield bytes(1000)


@pytest.mark.parametrize("path", ["/", "/docs", "/api/search", "/assets/index.js", "/gradio_api/upload", "/theme.css"])
def test_known_addresses_pass(guarded, inside, path: str) -> None:
    assert guarded.post(path, content=b"abc").text == "3"
    assert inside.asked == [path]


@pytest.mark.parametrize(
    "path",
    [
        "/docs/",
        "/apis",
        "/gradio_api/",
        "/gradio_api/file",
        "/gradio_api/proxy=http://x",
        "/gradio_api/stream/x",
        "/assetsx",
        "//etc/passwd",
        "/api/%2e%2e/x",
        "/api/%252e%252e/x",
        "/assets/..%5c..%5cx",
        "/assets/a%00b",
    ],
)
def test_unknown_addresses_do_not_reach_what_is_inside(guarded, inside, path: str) -> None:
    assert guarded.get(f"http://testserver{path}").status_code == 404
    assert inside.asked == []


def test_only_uploads_are_read_by_path(guarded, inside, tmp_path) -> None:
    uploads = tmp_path / "uploads"
    (tmp_path / "secret").write_text("x")
    (uploads / "link").symlink_to(tmp_path / "secret")
    for place in (tmp_path / "secret", uploads / "link", f"{uploads}x/a", "etc/passwd", "~/a", "http://x/y", ""):
        assert guarded.get(f"/gradio_api/file={place}").status_code == 404, place
    assert inside.asked == []
    for name in ("a.png", "deep/b..c.png"):
        assert guarded.get(f"/gradio_api/file={uploads}/{name}").status_code == 200


def test_as_many_bytes_as_allowed_pass(guarded) -> None:
    whole = MOST + FORM_BYTES
    assert guarded.post("/api/search", content=bytes(whole)).text == str(whole)
    assert guarded.post("/api/search", content=bytes(whole + 1)).status_code == 413


@pytest.mark.parametrize("path", ["/api/search", "/api/answers", "/api/wraps"])
def test_bytes_are_counted_where_no_length_is_stated(guarded, path: str) -> None:
    """Whether what is inside lets the break pass, answers to it, or makes another error of it."""
    assert guarded.post(path, content=chunks(60)).status_code == 200
    answer = guarded.post(path, content=chunks(70))
    assert answer.status_code == 413
    assert "send a smaller picture" in answer.json()["detail"]


@pytest.mark.parametrize("length", ["-1", "x", "1e9", "9" * 30, "9" * 5000], ids=len)
def test_a_length_that_is_none_is_refused(guarded, inside, length: str) -> None:
    assert guarded.post("/api/search", content=b"", headers={"content-length": length}).status_code == 413
    assert inside.asked == []


def test_mistakes_of_the_server_are_not_hidden(guarded, caplog) -> None:
    """uvicorn, which would print them, is told to be silent."""
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        guarded.get("/api/fails%1b[2J")
    assert "GET '/api/fails\\x1b[2J'" in caplog.text
    assert "RuntimeError: a mistake of ours" in caplog.text
    caplog.clear()
    with pytest.raises(ClientDisconnect):
        guarded.post("/api/leaves")
    assert caplog.text == ""


def test_headers_are_added_and_none_is_doubled(guarded) -> None:
    headers = guarded.get("/").headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert headers.get_list("referrer-policy") == ["own"]


def test_web_sockets_are_closed(guarded) -> None:
    with pytest.raises(WebSocketDisconnect), guarded.websocket_connect("/api/search"):
        pass


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("localhost", True),
        ("LocalHost:80", True),
        ("127.0.0.1:7860", True),
        ("[::1]", True),
        ("[::1]:7860", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example:7860", False),
        ("[::2]:7860", False),
        ("", False),
    ],
)
def test_a_server_goes_by_its_own_names(inside, tmp_path, host: str, known: bool) -> None:
    guarded = TestClient(Guard(inside, tmp_path, RULES._replace(hosts=("127.0.0.1", "localhost", "::1"))))
    answer = guarded.get("/api/health", headers={"host": host})
    assert (answer.status_code == 200) == known
    assert known or "--allow-host" in answer.json()["detail"]


@pytest.mark.parametrize("path", ["/api/search", "/gradio_api/upload", "/gradio_api/queue/join"])
@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (None, True),
        ("http://testserver", True),
        ("https://testserver", True),
        ("https://Search.example.org", True),
        ("http://testserver:3000", False),
        ("http://testserver.evil.example", False),
        ("https://evil.example", False),
        ("null", False),
        ("http://[", False),
        ("", False),
    ],
)
def test_pages_of_other_sites_cannot_send_requests(inside, tmp_path, path, origin, allowed: bool) -> None:
    guarded = TestClient(Guard(inside, tmp_path, RULES._replace(origins=("search.example.org",))))
    headers = {} if origin is None else {"origin": origin}
    assert guarded.post(path, content=b"x", headers=headers).status_code == (200 if allowed else 403)
    assert inside.asked == [path] * allowed
    # Reading is the browser's affair, which keeps answers from other sites.
    assert guarded.get(path, headers=headers).status_code == 200


def test_a_token_is_needed_for_everything_and_taken_in_two_ways(inside, tmp_path) -> None:
    guarded = TestClient(Guard(inside, tmp_path, RULES._replace(token="se:crét")))
    basic = base64.b64encode("anybody:se:crét".encode()).decode()
    wrong = (
        "",
        "Bearer",
        "Bearer se",
        "bearer secret",
        "Basic !",
        f"Basic {base64.b64encode(b'a:b').decode()}",
        "Digest x",
    )
    for path in ("/", "/docs", "/api/health", "/assets/index.js", "/nowhere"):
        for value in wrong:
            answer = guarded.get(path, headers={"authorization": value})
            assert (answer.status_code, answer.headers["www-authenticate"][:5]) == (401, "Basic")
    assert inside.asked == []
    assert guarded.get("/", headers={"authorization": f"Basic {basic}"}).status_code == 200
    plain = TestClient(Guard(inside, tmp_path, RULES._replace(token="secret")))
    assert plain.get("/", headers={"authorization": "Bearer secret"}).status_code == 200


def test_work_is_limited_per_client_and_pages_are_not(inside, tmp_path) -> None:
    guarded = TestClient(Guard(inside, tmp_path, RULES._replace(rate=RateLimit(3))), client=("192.0.2.7", 1))
    assert [guarded.post("/api/search").status_code for _ in range(4)] == [200, 200, 200, 429]
    assert guarded.get("/api/pictures/1").headers["retry-after"] == "60"
    assert guarded.get("/assets/index.js").status_code == 200
    other = TestClient(guarded.app, client=("192.0.2.8", 1))
    assert other.post("/api/search").status_code == 200
    # Wrong tokens count too.
    asked = TestClient(Guard(inside, tmp_path, RULES._replace(rate=RateLimit(3), token="x")), client=("192.0.2.7", 1))
    assert [asked.get("/").status_code for _ in range(5)] == [401, 401, 401, 429, 429]


def test_this_machine_is_not_limited_unless_asked_for_and_networks_count_as_one() -> None:
    spared, everybody = RateLimit(1, loopback=False), RateLimit(1)
    assert [spared.allows("127.0.0.1", 0.0), spared.allows("::1", 0.0), spared.allows("127.0.0.1", 0.0)] == [True] * 3
    assert [everybody.allows("127.0.0.1", 0.0) for _ in range(2)] == [True, False]
    assert [everybody.allows(f"2001:db8::{number}", 0.0) for number in (1, 2)] == [True, False]
    assert everybody.allows("2001:db8:1::1", 0.0)
    # A socket of IPv6 writes addresses of IPv4 so.
    assert [spared.allows("::ffff:127.0.0.1", 0.0) for _ in range(2)] == [True, True]
    assert [everybody.allows(f"{prefix}192.0.2.1", 0.0) for prefix in ("::ffff:", "")] == [True, False]
    assert everybody.allows("::ffff:192.0.2.2", 0.0)
    assert RateLimit(0).allows("192.0.2.1")


def test_clients_are_forgotten_in_time(monkeypatch) -> None:
    monkeypatch.setattr("gspool.search.serve.guard.MOST_CLIENTS", 5)
    limit = RateLimit(1)
    for number in range(50):
        limit.allows(f"192.0.2.{number}", float(number))
    assert len(limit._left) == 5


def test_what_a_client_says_of_proxies_is_not_believed(guarded, inside) -> None:
    lies = {
        "x-forwarded-host": "evil.example",
        "X-Forwarded-For": "127.0.0.1",
        "x-forwarded-proto": "javascript",
        "forwarded": "host=evil.example",
        "x-gradio-server": "http://evil.example",
        "x-original-url": "/monitoring",
        "accept": "text/html",
    }
    guarded.get("/", headers=lies)
    assert not [name for name in inside.headers if b"forward" in name or b"gradio" in name or b"original" in name]
    assert inside.headers[b"accept"] == b"text/html"
    guarded.get("/", headers={"x-forwarded-proto": "https"})
    assert inside.headers[b"x-forwarded-proto"] == b"https"


def test_the_oldest_uploads_make_room(inside, tmp_path) -> None:
    uploads = tmp_path / "uploads"
    for age in range(5):
        (uploads / str(age)).mkdir(parents=True)
        (uploads / str(age) / "a.png").write_bytes(bytes(age))
        os.utime(uploads / str(age) / "a.png", (1000 - age, 1000 - age))
    make_room(uploads, 3 * LEAST_BYTES)
    assert sorted(folder.name for folder in uploads.iterdir()) == ["0", "1", "2"]
    room = 2 * LEAST_BYTES + MOST + FORM_BYTES
    guarded = TestClient(Guard(inside, uploads, RULES._replace(folder_bytes=room)))
    assert guarded.post("/gradio_api/upload", content=b"x").status_code == 200
    assert sorted(folder.name for folder in uploads.iterdir()) == ["0", "1"]


@pytest.mark.parametrize("pieces", [[b"a"], [b"a"] * 50])
def test_a_body_that_comes_too_slowly_is_answered(inside, tmp_path, pieces: list[bytes]) -> None:
    """One that stops, and one that sends a byte now and then."""
    guard = Guard(inside, tmp_path, RULES._replace(seconds=0.05))
    scope = {"type": "http", "path": "/api/search", "method": "POST", "headers": [], "client": ("192.0.2.1", 1)}
    left, sent = list(pieces), []

    async def receive():
        await asyncio.sleep(0.03 if left else 60)
        return {"type": "http.request", "body": left.pop(), "more_body": True}

    async def send(message) -> None:
        sent.append(message)

    asyncio.run(asyncio.wait_for(guard(scope, receive, send), 10))
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]


def test_an_answer_may_take_its_time(tmp_path) -> None:
    async def slow(scope, receive, send) -> None:
        await receive()
        await asyncio.sleep(0.2)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    guarded = TestClient(Guard(slow, tmp_path, RULES._replace(seconds=0.05)))
    assert guarded.get("/api/health").status_code == 200
