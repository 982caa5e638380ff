"""`gspool serve` as it really runs: a process, asked over the network, in part by people who mean no good."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
import uvicorn
from PIL import Image
from starlette.testclient import TestClient
from uvicorn.server import ServerState

from gspool.search import index
from gspool.search.commands import run
from gspool.search.index import approximate
from gspool.search.index.table import write_lock
from gspool.search.serve import app
from gspool.search.serve.api import create_api
from gspool.search.serve.app import listening, open_tunnel
from gspool.search.serve.guard import Guard
from search.corpus_files import noise
from search.served import HOSTILE, Server, as_bytes, in_a_loop, png_bomb


def uploaded(server: Server, content: bytes, name: str = "a.png") -> str:
    return server.send("/gradio_api/upload", content, "files", name).json()[0]


def test_programs_people_and_readers_are_answered(server) -> None:
    assert server.ask("GET", "/api/health").json()["pictures"] == 12
    assert "/api/search" in server.ask("GET", "/docs").text
    assert "gradio" in server.ask("GET", "/").text
    found = server.send("/api/search", as_bytes(noise(1)), k=1).json()["neighbours"][0]
    assert found["name"] == "0-1.png"
    assert server.ask("GET", found["picture"]).content.startswith(b"\x89PNG")


def test_many_ask_at_once_and_each_has_its_own_answer(server) -> None:
    def first(number: int) -> str:
        content = as_bytes(noise(100 * (number % 3) + number % 4))
        return server.send("/api/search", content, k=1).json()["neighbours"][0]["name"]

    with ThreadPoolExecutor(8) as people:
        assert list(people.map(first, range(24))) == [f"{number % 3}-{number % 4}.png" for number in range(24)]


def test_the_page_answers_to_what_was_uploaded_and_labels_are_text(server) -> None:
    answer = server.asked(uploaded(server, as_bytes(noise(200))))
    assert '"success":true' in answer
    assert "2-0.png" in answer
    assert "data:image/png;base64," in answer
    assert HOSTILE not in answer
    assert "&lt;img src=x onerror=alert(1)&gt;" in answer


def test_the_page_refuses_what_programs_are_refused(server) -> None:
    for content, words in (
        (png_bomb(9000, 9000), "9000 x 9000 pixels"),
        (b"words", "not one of JPEG"),
        (as_bytes(noise(1))[:-60], "damaged"),
    ):
        answer = server.asked(uploaded(server, content))
        assert '"success":false' in answer
        assert words in answer
        assert "Traceback" not in answer


def test_the_page_reads_nothing_that_was_not_uploaded(server, served_folder) -> None:
    """Gradio by itself takes any path for a picture once its page is mounted in another application."""
    for place in ("secret.txt", "pictures/0-0.png"):
        answer = server.asked(str(served_folder / place))
        assert '"success":true' not in answer
        assert "data:image" not in answer


def test_only_the_labels_are_answered_past_the_queue(server, served_folder) -> None:
    labels = server.call("run/predict", -1, [], "abc")
    assert labels.status == 200
    assert "ant" in labels.text
    picture = {"path": str(served_folder / "pictures/0-0.png"), "meta": {"_type": "gradio.FileData"}}
    for function in range(len(server.ask("GET", "/config").json()["dependencies"]) - 1):
        answer = server.call("run/predict", function, [picture, 3, -1, [], "pictures"], "abc")
        assert answer.status == 404, answer.text
        assert "data:image" not in answer.text


@pytest.mark.parametrize(
    "target",
    [
        "/file=/etc/passwd",
        "/gradio_api/file=/etc/passwd",
        "/gradio_api/file=%2fetc%2fpasswd",
        "/gradio_api/file=file:///etc/passwd",
        "/gradio_api/file={uploads}/../../../etc/passwd",
        "/gradio_api/file={uploads}/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/gradio_api/file={folder}/secret.txt",
        "/gradio_api/file={folder}/pictures/0-0.png",
        "/assets/..%2f..%2f..%2f..%2f..%2f..%2f..%2f..%2fetc%2fpasswd",
        "/static/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/static//etc/passwd",
        "/api/pictures/..%2f..%2fsecret.txt",
        "/monitoring",
        "/gradio_api/run-history/records",
        "/gradio_api/vibe-code",
    ],
)
def test_no_path_of_the_server_is_reachable(server, served_folder, target: str) -> None:
    uploads = Path(uploaded(server, as_bytes(noise(1)))).parents[1]
    answer = server.ask("GET", target.format(folder=served_folder, uploads=uploads))
    assert answer.status in (403, 404, 422)
    assert "root:" not in answer.text
    assert "the secret" not in answer.text


def test_uploads_stay_in_a_folder_of_their_own_whatever_their_name(server, tmp_path) -> None:
    home = Path(uploaded(server, as_bytes(noise(1)))).parents[1]
    assert "gspool-serve-" in home.name
    for number, name in enumerate(("../../x.png", "/etc/x.png", "a/../../b.png", "..\\\\..\\\\c.png")):
        answer = server.send("/gradio_api/upload", as_bytes(noise(50 + number)), "files", name)
        assert answer.status in (200, 400, 422)
        if answer.status == 200:
            assert Path(answer.json()[0]).resolve().is_relative_to(home)


def test_addresses_are_not_fetched_for_anybody(server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as trap:
        address = f"http://127.0.0.1:{trap.getsockname()[1]}/picture.png"
        assert '"success":true' not in server.asked(address, url=address)
        assert server.ask("GET", f"/gradio_api/file={address}").status == 404
        assert server.ask("GET", f"/gradio_api/proxy={address}").status == 404
        # Whoever had come would wait here.
        trap.settimeout(0.2)
        with pytest.raises(TimeoutError):
            trap.accept()


def test_more_bytes_than_allowed_are_refused(server) -> None:
    for target in ("/api/search", "/gradio_api/upload", "/gradio_api/queue/join"):
        assert server.ask("GET", "/api/health").status == 200
        # The server answers and closes before all has come, which the sender may notice first.
        try:
            assert server.ask("POST", target, bytes(2_000_000), content_type="application/octet-stream").status == 413
        except ConnectionError:
            assert server.ask("GET", "/api/health").status == 200


def test_the_guard_stands_before_programs_and_page(server) -> None:
    for target in ("/", "/docs", "/api/health", "/nowhere"):
        answer = server.ask("GET", target, origin="https://evil.example")
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert "access-control-allow-origin" not in answer.headers
        # A page of another site can lead its own name to a loopback address, and would read what is answered.
        assert server.ask("GET", target, host=f"localhost.evil.example:{server.port}").status == 400
    assert server.ask("GET", "/api/health", host="localhost").status == 200
    for target, field in (("/api/search", "image"), ("/gradio_api/upload", "files")):
        for origin, status in (("https://evil.example", 403), (server.address, 200)):
            assert server.send(target, as_bytes(noise(1)), field, headers={"origin": origin}).status == status
    config = server.ask("GET", "/config").json()
    assert (config["analytics_enabled"], config["run_history"], config["stylesheets"]) == (False, False, [])


def test_addresses_of_the_page_are_those_that_were_asked_for(server) -> None:
    for lie in ({"x_forwarded_host": "evil.example"}, {"x_gradio_server": "http://evil.example"}):
        for target in ("/", "/config", "/docs"):
            assert "evil.example" not in server.ask("GET", target, **lie).text
    assert json.loads(server.ask("GET", "/config", x_forwarded_proto="https").content)["root"].startswith("https://")


def test_a_token_and_a_rate_reach_the_guard(served_folder, monkeypatch, tmp_path) -> None:
    """In this process, without Gradio; the token comes from where no list of processes shows it."""
    monkeypatch.setenv("GSPOOL_TOKEN", "secret")
    monkeypatch.setenv("GRADIO_TEMP_DIR", "")
    answers = []

    def guarded(lookup, limits, hosts, rules) -> Guard:
        return Guard(create_api(lookup, limits), tmp_path, rules._replace(hosts=hosts))

    def ask(application, *_) -> None:
        client = TestClient(application, "http://localhost", client=("192.0.2.7", 1))
        answers.extend(client.get(target).status_code for target in ("/", "/docs", "/api/health"))
        client.headers["authorization"] = "Bearer secret"
        answers.extend(client.post("/api/search", files={"image": b"x"}).status_code for _ in range(3))
        answers.append(client.get("/api/health").status_code)

    monkeypatch.setattr(app, "create_app", guarded)
    monkeypatch.setattr(app, "run_server", ask)
    model, index = served_folder / "model", served_folder / "vectors.lance"
    assert run("serve", [str(model), "--index", str(index), "--port", "0", "--rate", "5"]) == 0
    assert answers == [401] * 3 + [415] * 2 + [429, 200]


def test_an_application_of_ones_own_keeps_its_uploads_in_a_folder_of_its_own(lookup, monkeypatch, tmp_path) -> None:
    """By default all programs with Gradio share one, in which the guard would make room."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", "")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    in_a_loop(app.create_app, lookup)
    own = Path(os.environ["GRADIO_TEMP_DIR"])
    assert own.is_dir()
    assert own.name.startswith("gspool-serve-")
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    in_a_loop(app.create_app, lookup)
    assert os.environ["GRADIO_TEMP_DIR"] == str(tmp_path)


def test_a_server_starts_without_an_index_that_cannot_be_built(served_folder, capsys, monkeypatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", "")
    monkeypatch.setattr(index, "APPROXIMATE_FROM", 10)
    monkeypatch.setattr(approximate, "FEWEST_ROWS", 10)
    monkeypatch.setattr(app, "create_app", lambda *_: None)
    monkeypatch.setattr(app, "run_server", lambda *_: None)
    table = served_folder / "vectors.lance"
    with write_lock(table):
        assert run("serve", [str(served_folder / "model"), "--index", str(table), "--port", "0"]) == 0
    said = capsys.readouterr().out
    assert "another process is writing" in said
    assert "12 vectors of length 16, exact" in said


@pytest.mark.parametrize(
    ("address", "most"),
    [("2001:db8::{}", 2), ("::ffff:192.0.2.1", 2), ("::ffff:192.0.2.{}", 5), ("::ffff:127.0.0.1", 5)],
)
def test_connections_are_counted_by_client(address, most, monkeypatch) -> None:
    monkeypatch.setattr(app, "MOST_CONNECTIONS_EACH", 2)
    config, state, closed = uvicorn.Config(None), ServerState(), []

    class Transport(asyncio.Transport):
        def __init__(self, number: int) -> None:
            super().__init__({"peername": (address.format(number), 1)})

        def abort(self) -> None:
            closed.append(self)

    async def connect() -> None:
        for number in range(1, 6):
            connection = app.Connection(config, state, {}, seconds=60.0)
            connection.connection_made(Transport(number))

    asyncio.run(connect())
    assert 5 - len(closed) == most


def test_an_address_of_another_machine_is_told_in_a_line(served_folder, capsys) -> None:
    model, index = served_folder / "model", served_folder / "vectors.lance"
    assert run("serve", [str(model), "--index", str(index), "--host", "192.0.2.1", "--port", "0"]) == 1
    assert "cannot listen at 192.0.2.1" in capsys.readouterr().err


def test_a_port_that_is_taken_is_told() -> None:
    with listening("127.0.0.1", 0) as (first, port):
        first.listen()
        with pytest.raises(ValueError, match=rf"port {port} .*choose another --port"), listening("127.0.0.1", port):
            pass


def test_a_public_address_leads_to_this_port_if_there_is_a_network(monkeypatch) -> None:
    asked = []

    def setup_tunnel(*arguments):
        if asked:
            raise RuntimeError("Could not get share link")
        asked.append(arguments)
        return "https://abc.example"

    networking = SimpleNamespace(setup_tunnel=setup_tunnel)
    monkeypatch.setitem(sys.modules, "gradio", SimpleNamespace(networking=networking))
    assert open_tunnel(1234) == "https://abc.example"
    host, port, token, *_ = asked[0]
    assert (host, port, len(token) >= 32) == ("127.0.0.1", 1234, True)
    with pytest.raises(ValueError, match="--share needs the internet"):
        open_tunnel(1234)


def test_many_large_pictures_at_once_take_the_memory_of_one(server) -> None:
    """Five pictures of 25 megapixels, decoded all at once, would take a gigabyte; so would one line resized."""
    large = as_bytes(Image.new("RGBA", (5000, 5000), (200, 100, 50, 128)), "PNG", compress_level=1)
    server.send("/api/search", as_bytes(noise(1)))
    before = server.memory("VmHWM")
    with ThreadPoolExecutor(5) as people:
        sent = people.map(lambda _: server.send("/api/search", large).status, range(5))
        assert list(sent) == [200] * 5
    assert server.send("/api/search", png_bomb(1, 500_000)).status == 413
    assert server.memory("VmHWM") - before < 400 * 2**20


def test_uploads_of_the_page_do_not_fill_the_disk(server) -> None:
    large = [as_bytes(noise(seed), "BMP") + bytes(300_000) for seed in range(12)]
    places = [Path(server.send("/gradio_api/upload", content, "files").json()[0]) for content in large]
    kept = sum(file.stat().st_size for file in places[0].parents[1].rglob("*") if file.is_file())
    assert kept <= 2 * 2**20
    assert places[-1].exists()
    assert not places[0].exists()


def left_open(sockets: list[socket.socket]) -> int:
    """Count connections that the other side has not closed."""
    count = 0
    for each in sockets:
        each.setblocking(False)
        try:
            count += bool(each.recv(65536))
        except BlockingIOError:
            count += 1
        except OSError:
            continue
    return count


def test_clients_that_send_nothing_or_half_are_let_go(server) -> None:
    """Two hundred that say nothing, some that stop in the head or the body of a request, some after an answer."""
    half = b"POST /api/search HTTP/1.1\r\nContent-Length: 1000\r\nHost: localhost\r\n"
    whole = b"GET /api/labels HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(200)]
        for each, words in zip(sockets, [half, half + b"\r\nabc", whole + half[:20]] * 5, strict=False):
            each.sendall(words)
        time.sleep(0.2)
        assert server.ask("GET", "/api/health").status == 200
        ends = time.monotonic() + 30
        while time.monotonic() < ends and (open_ones := left_open(sockets)):
            time.sleep(0.2)
        assert open_ones == 0


def test_ctrl_c_ends_it_with_a_word_and_leaves_nothing(server) -> None:
    """Also while a page is open, whose connection never ends."""
    place = Path(uploaded(server, as_bytes(noise(1))))
    assert place.is_file()
    with socket.create_connection(("127.0.0.1", server.port)) as page:
        page.sendall(b"GET /gradio_api/heartbeat/abc HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert page.recv(12) == b"HTTP/1.1 200"
        status, said = server.stop()
    # Before it may stand what Gradio said to those who asked for paths.
    assert (status, said.split()[-1]) == (0, "stopped")
    assert not place.parents[1].exists()
