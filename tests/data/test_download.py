"""Downloads against servers of our own, on this machine: whole, broken off, resumed, wrong."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import socketserver
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from gspool import data
from gspool.data import cub, download
from gspool.data.benchmark import Count
from gspool.data.download import Archive, fetch, unpack
from gspool.files import lock

CONTENT = np.random.default_rng(0).integers(0, 256, 3_000_000, dtype=np.uint8).tobytes()


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Web(BaseHTTPRequestHandler):
    """Serves CONTENT; class attributes say how badly."""

    content = CONTENT
    breaks_after: list[int]
    ranges = True
    status = 200
    asked: list[str | None]

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        type(self).asked.append(asked)
        if self.status != 200:
            self.send_error(self.status)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.ranges else 0
        if start >= len(self.content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(self.content) - start))
        self.end_headers()
        end = start + self.breaks_after.pop(0) if self.breaks_after else len(self.content)
        self.wfile.write(self.content[start:end])

    def log_message(self, *arguments: object) -> None:
        """Stay silent."""


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[type[Web], Archive]]:
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0)

    class Handler(Web):
        """One server's own record."""

    Handler.breaks_after, Handler.asked = [], []
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        md5 = hashlib.md5(CONTENT).hexdigest()
        sha256 = hashlib.sha256(CONTENT).hexdigest()
        yield Handler, Archive(f"http://127.0.0.1:{port}/a.tgz", md5, sha256)


def test_a_file_is_fetched_once(web: tuple[type[Web], Archive], tmp_path: Path) -> None:
    handler, archive = web
    path = fetch(archive, tmp_path / "new folder", progress=False)
    assert path.read_bytes() == CONTENT
    fetch(archive, tmp_path / "new folder", progress=False)
    assert handler.asked == [None]
    assert [file.name for file in path.parent.iterdir()] == ["a.tgz"]


def test_a_line_that_breaks_is_taken_up_where_it_broke(web: tuple[type[Web], Archive], tmp_path: Path) -> None:
    handler, archive = web
    handler.breaks_after = [1_000_000] + [200_000] * 7
    assert fetch(archive, tmp_path, progress=False).read_bytes() == CONTENT
    assert handler.asked[:3] == [None, "bytes=1000000-", "bytes=1200000-"]
    assert len(handler.asked) == 9


@pytest.mark.parametrize("received", [123_456, len(CONTENT)])
def test_a_later_call_goes_on_from_what_is_there(web: tuple[type[Web], Archive], tmp_path: Path, received: int) -> None:
    handler, archive = web
    (tmp_path / "a.tgz.part").write_bytes(CONTENT[:received])
    assert fetch(archive, tmp_path, progress=False).read_bytes() == CONTENT
    assert handler.asked == [f"bytes={received}-"]


def test_a_server_without_ranges_begins_again(web: tuple[type[Web], Archive], tmp_path: Path) -> None:
    handler, archive = web
    handler.ranges = False
    (tmp_path / "a.tgz.part").write_bytes(b"x" * 5_000)
    assert fetch(archive, tmp_path, progress=False).read_bytes() == CONTENT


@pytest.mark.parametrize("name", ["a.tgz.part", "a.tgz"])
def test_wrong_content_is_set_aside_and_told(web: tuple[type[Web], Archive], tmp_path: Path, name: str) -> None:
    _, archive = web
    (tmp_path / name).write_bytes(b"x" * 5_000)
    with pytest.raises(ValueError, match=f"published is {archive.md5}: it is damaged.*a.tgz.wrong"):
        fetch(archive, tmp_path, progress=False)
    # The next call begins anew and succeeds.
    assert fetch(archive, tmp_path, progress=False).read_bytes() == CONTENT
    with pytest.raises(ValueError, match=f"has sha256 {archive.sha256}, published is {'0' * 64}"):
        fetch(archive._replace(sha256="0" * 64), tmp_path, progress=False)
    assert [file.name for file in tmp_path.iterdir()] == ["a.tgz.wrong"]


@pytest.mark.parametrize("received", [0, 1000])
@pytest.mark.parametrize(
    ("status", "told", "calls"),
    [(404, "404", 1), (503, "503", download.ATTEMPTS), (200, "the connection broke repeatedly", download.ATTEMPTS)],
)
def test_a_server_that_brings_nothing_is_told_and_what_came_is_kept(
    web: tuple[type[Web], Archive], tmp_path: Path, status: int, told: str, calls: int, received: int
) -> None:
    handler, archive = web
    handler.status, handler.breaks_after = status, [0] * 100
    part = tmp_path / "a.tgz.part"
    if received:
        part.write_bytes(CONTENT[:received])
    kept = r"1,000 bytes are kept in .*a.tgz.part" if received else "nothing was received"
    with pytest.raises(ConnectionError, match=f"{told}.*; {kept}: .* or put a.tgz into .* by hand$"):
        fetch(archive, tmp_path, progress=False)
    assert len(handler.asked) == calls
    assert not part.exists() or part.read_bytes() == CONTENT[:received]


def test_progress_is_shown(web: tuple[type[Web], Archive], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fetch(web[1], tmp_path)
    shown = capsys.readouterr().out
    assert "a.tgz" in shown
    assert "3.0/3.0 MB" in shown


class Ftp(socketserver.StreamRequestHandler):
    """As much of FTP as a download needs; the first transfer breaks off half-way."""

    broken: list[bool]
    restarts: list[int]

    def handle(self) -> None:
        self.say("220 ready")
        start, data_server = 0, None
        while line := self.rfile.readline().decode().strip():
            command, _, argument = line.partition(" ")
            if command == "USER":
                self.say("230 logged in")
            elif command == "TYPE":
                self.say("200 ok")
            elif command == "SIZE":
                self.say(f"213 {len(CONTENT)}")
            elif command == "REST":
                start = int(argument)
                self.say("350 restarting")
            elif command in ("EPSV", "PASV"):
                data_server = socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler)
                port = data_server.server_address[1]
                own = f"127,0,0,1,{port // 256},{port % 256}"
                self.say(f"229 ok (|||{port}|)" if command == "EPSV" else f"227 ok ({own})")
            elif command == "RETR":
                self.restarts.append(start)
                self.say("150 here it comes")
                line_out, _ = data_server.socket.accept()
                end = len(CONTENT) // 2 if not self.broken else len(CONTENT)
                self.broken.append(True)
                with line_out:
                    line_out.sendall(CONTENT[start:end])
                data_server.server_close()
                self.say("226 done")
            elif command == "QUIT":
                self.say("221 bye")
                return
            else:
                self.say("502 not known")

    def say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


def test_ftp_is_resumed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0)

    class Handler(Ftp):
        """One server's own record."""

    Handler.broken, Handler.restarts = [], []
    with serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)) as port:
        archive = Archive(f"ftp://127.0.0.1:{port}/cs/a.zip", hashlib.md5(CONTENT).hexdigest())
        assert fetch(archive, tmp_path, progress=False).read_bytes() == CONTENT
    assert Handler.restarts == [0, len(CONTENT) // 2]


def tar_of(folder: Path) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        archive.add(folder, arcname=folder.name)
    return content.getvalue()


def publish_cub(monkeypatch: pytest.MonkeyPatch, content: bytes, url: str) -> None:
    md5, sha256 = (hashlib.new(kind, content).hexdigest() for kind in ("md5", "sha256"))
    published = cub.cub.published._replace(archive=Archive(f"{url}/CUB_200_2011.tgz", md5, sha256))
    monkeypatch.setattr(cub, "cub", dataclasses.replace(cub.cub, published=published))


def test_a_benchmark_is_downloaded_unpacked_and_read(
    web: tuple[type[Web], Archive], cub_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler, archive = web
    handler.content = tar_of(cub_tree / "CUB_200_2011")
    publish_cub(monkeypatch, handler.content, archive.url.removesuffix("/a.tgz"))
    monkeypatch.setitem(cub.cub.counts, "test", Count(4, 2))
    root = tmp_path / "downloads"
    with pytest.raises(FileNotFoundError, match=r"pass download=True \(--download of .*\) to fetch it from http"):
        data.create("cub", root, "test")
    assert len(data.create("cub", root, "test", download=True)) == 4
    assert len(data.create("cub", root, "test")) == 4
    assert len(handler.asked) == 1
    assert sorted(entry.name for entry in root.iterdir()) == ["CUB_200_2011", "CUB_200_2011.tgz"]


def test_an_archive_put_there_by_hand_is_unpacked_by_one_process_at_a_time(
    cub_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "by hand"
    root.mkdir()
    content = tar_of(cub_tree / "CUB_200_2011")
    (root / "CUB_200_2011.tgz").write_bytes(content)
    publish_cub(monkeypatch, content, "http://127.0.0.1:9")
    with (
        lock(root / ".CUB_200_2011.tgz.lock", "held by the test"),
        pytest.raises(ValueError, match="another process is downloading or unpacking"),
    ):
        data.create("cub", root, "train", allow_partial=True)
    assert len(data.create("cub", root, "train", allow_partial=True)) == 6


def test_what_a_killed_unpacking_of_a_zip_left_is_removed_by_the_next(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a/c.txt", "hello")
        archive.writestr("../outside.txt", "not unpacked")
    (tmp_path / ".unpacking-a" / "a").mkdir(parents=True)
    (tmp_path / ".unpacking-a" / "a" / "half.txt").touch()
    (file,) = unpack(tmp_path / "a.zip", "a", tmp_path).iterdir()
    assert (file.name, file.read_text()) == ("c.txt", "hello")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "a.zip"]
    # An unpacked folder is left alone.
    assert unpack(tmp_path / "not needed.zip", "a", tmp_path) == tmp_path / "a"


@pytest.mark.parametrize("bad", ["text", "cut", "other", "../evil.txt", "a/../../evil.txt"])
def test_bad_archives_and_members_that_point_outside_leave_nothing(cub_tree: Path, tmp_path: Path, bad: str) -> None:
    folder = tmp_path / "bad"
    folder.mkdir()
    with tarfile.open(folder / "a.tgz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo(bad))
    if bad in ("text", "cut"):
        (folder / "a.tgz").write_bytes(b"no archive" if bad == "text" else tar_of(cub_tree / "CUB_200_2011")[:-100])
    told = "holds .'other'., expected a folder a" if bad == "other" else "cannot be unpacked|expected a folder a"
    with pytest.raises(ValueError, match=told):
        unpack(folder / "a.tgz", "a", folder)
    assert [file.name for file in folder.iterdir()] == ["a.tgz"]
    assert not list(tmp_path.glob("**/evil.txt"))
