"""The guard alone, around an application that would answer to everything."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from gspool.search.serve_guard import FORM_BYTES, Guard

MOST = 1000


class Everything:
    """Reads the whole body, and answers to every address with the number of its bytes; or fails where that is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, scope, receive, send) -> None:
        self.asked.append(scope["path"])
        if scope["path"] == "/api/fails":
            raise RuntimeError("a mistake of ours")
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
    return TestClient(Guard(inside, MOST, tmp_path / "uploads"))


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
    assert "bytes at most; send a smaller picture" in answer.json()["detail"]


@pytest.mark.parametrize("length", ["-1", "x", "1e9", "9" * 30])
def test_a_length_that_is_none_is_refused(guarded, inside, length: str) -> None:
    assert guarded.post("/api/search", content=b"", headers={"content-length": length}).status_code == 413
    assert inside.asked == []


def test_mistakes_of_the_server_are_not_hidden(guarded) -> None:
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        guarded.get("/api/fails")


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
    guarded = TestClient(Guard(inside, MOST, tmp_path, ["127.0.0.1", "localhost", "::1"]))
    answer = guarded.get("/api/health", headers={"host": host})
    assert (answer.status_code == 200) == known
    assert known or "--allow-host" in answer.json()["detail"]
