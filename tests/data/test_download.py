"""Downloads against servers of our own, on this machine: whole, broken off, resumed, wrong."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import socketserver
import tarfile
import threading
import zipfile
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from gspool import data
from gspool.data import cub, download
from gspool.data.benchmark import Count
from gspool.data.download import Archive, unpack
from gspool.files import lock

CONTENT = np.random.default_rng(0).integers(0, 256, 3_000_000, dtype=np.uint8).tobytes()
fetch = partial(download.fetch, progress=False)


def archive_of(content, url):
    return Archive(url, *(hashlib.new(kind, content).hexdigest() for kind in ("md5", "sha256")))


@contextmanager
def serving(server):
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
    ranges = True
    status = 200

    def do_GET(self):
        asked = self.headers.get("Range")
        self.asked.append(asked)
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

    def log_message(self, *arguments):
        """Stay silent."""


@pytest.fixture
def web(monkeypatch):
    """Serve over HTTP; return the handler with a record of its own, and the archive."""
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0)
    handler = type("Handler", (Web,), {"breaks_after": [], "asked": []})
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as port:
        yield handler, archive_of(CONTENT, f"http://127.0.0.1:{port}/a.tgz")


def test_a_file_is_fetched_once_and_progress_is_shown(web, tmp_path, capsys):
    handler, archive = web
    path = download.fetch(archive, tmp_path / "new folder")
    assert path.read_bytes() == CONTENT
    assert "a.tgz" in (shown := capsys.readouterr().out)
    assert "3.0/3.0 MB" in shown
    fetch(archive, tmp_path / "new folder")
    assert handler.asked == [None]
    assert [file.name for file in path.parent.iterdir()] == ["a.tgz"]


def test_a_line_that_breaks_is_taken_up_where_it_broke(web, tmp_path):
    handler, archive = web
    handler.breaks_after = [1_000_000] + [200_000] * 7
    assert fetch(archive, tmp_path).read_bytes() == CONTENT
    assert handler.asked[:3] == [None, "bytes=1000000-", "bytes=1200000-"]
    assert len(handler.asked) == 9


@pytest.mark.parametrize("received", [123_456, len(CONTENT)])
def test_a_later_call_goes_on_from_what_is_there(web, tmp_path, received):
    handler, archive = web
    (tmp_path / "a.tgz.part").write_bytes(CONTENT[:received])
    assert fetch(archive, tmp_path).read_bytes() == CONTENT
    assert handler.asked == [f"bytes={received}-"]


def test_a_server_without_ranges_begins_again(web, tmp_path):
    handler, archive = web
    handler.ranges = False
    (tmp_path / "a.tgz.part").write_bytes(b"x" * 5_000)
    assert fetch(archive, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("name", ["a.tgz.part", "a.tgz"])
def test_wrong_content_is_set_aside_and_told(web, tmp_path, name):
    _, archive = web
    (tmp_path / name).write_bytes(b"x" * 5_000)
    with pytest.raises(ValueError, match=f"published is {archive.md5}: it is damaged.*a.tgz.wrong"):
        fetch(archive, tmp_path)
    # The next call begins anew and succeeds.
    assert fetch(archive, tmp_path).read_bytes() == CONTENT
    with pytest.raises(ValueError, match=f"has sha256 {archive.sha256}, published is {'0' * 64}"):
        fetch(archive._replace(sha256="0" * 64), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["a.tgz.wrong"]


@pytest.mark.parametrize("received", [0, 1000])
@pytest.mark.parametrize(
    ("status", "told", "calls"),
    [(404, "404", 1), (503, "503", download.ATTEMPTS), (200, "the connection broke repeatedly", download.ATTEMPTS)],
)
def test_a_server_that_brings_nothing_is_told_and_what_came_is_kept(web, tmp_path, status, told, calls, received):
    handler, archive = web
    handler.status, handler.breaks_after = status, [0] * 100
    part = tmp_path / "a.tgz.part"
    if received:
        part.write_bytes(CONTENT[:received])
    kept = r"1,000 bytes are kept in .*a.tgz.part" if received else "nothing was received"
    with pytest.raises(ConnectionError, match=f"{told}.*; {kept}: .* or put a.tgz into .* by hand$"):
        fetch(archive, tmp_path)
    assert len(handler.asked) == calls
    assert not part.exists() or part.read_bytes() == CONTENT[:received]


FTP_ANSWERS = {"USER": "230 logged in", "TYPE": "200 ok", "SIZE": f"213 {len(CONTENT)}", "REST": "350 restarting"}


class Ftp(socketserver.StreamRequestHandler):
    """As much of FTP as a download needs; the first transfer breaks off half-way."""

    def handle(self):
        self.say("220 ready")
        start, data_server = 0, None
        while line := self.rfile.readline().decode().strip():
            command, _, argument = line.partition(" ")
            if command in ("EPSV", "PASV"):
                data_server = socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler)
                port = data_server.server_address[1]
                own = f"127,0,0,1,{port // 256},{port % 256}"
                self.say(f"229 ok (|||{port}|)" if command == "EPSV" else f"227 ok ({own})")
            elif command == "RETR":
                self.restarts.append(start)
                self.say("150 here it comes")
                line_out, _ = data_server.socket.accept()
                with line_out:
                    line_out.sendall(CONTENT[start : len(CONTENT) // 2 if len(self.restarts) == 1 else None])
                data_server.server_close()
                self.say("226 done")
            elif command == "QUIT":
                self.say("221 bye")
                return
            else:
                start = int(argument) if command == "REST" else start
                self.say(FTP_ANSWERS.get(command, "502 not known"))

    def say(self, text):
        self.wfile.write(f"{text}\r\n".encode())


def test_ftp_is_resumed_too(tmp_path, monkeypatch):
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0)
    handler = type("Handler", (Ftp,), {"restarts": []})
    with serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler)) as port:
        archive = archive_of(CONTENT, f"ftp://127.0.0.1:{port}/cs/a.zip")
        assert fetch(archive._replace(sha256=None), tmp_path).read_bytes() == CONTENT
    assert handler.restarts == [0, len(CONTENT) // 2]


# ---------------------------------------------------------------------------------------------------------- unpacking


@pytest.fixture
def published_cub(cub_tree, monkeypatch):
    """Return a function that makes a small CUB the published one, at an address; it returns the archive's bytes."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        archive.add(cub_tree / "CUB_200_2011", arcname="CUB_200_2011")

    def publish(address):
        archive = archive_of(content.getvalue(), f"{address}/CUB_200_2011.tgz")
        monkeypatch.setattr(cub, "cub", dataclasses.replace(cub.cub, archive=archive))
        return content.getvalue()

    return publish


def test_a_benchmark_is_downloaded_unpacked_and_read(web, published_cub, tmp_path, monkeypatch):
    handler, archive = web
    handler.content = published_cub(archive.url.removesuffix("/a.tgz"))
    monkeypatch.setitem(cub.cub.counts, "test", Count(4, 2))
    root = tmp_path / "downloads"
    with pytest.raises(FileNotFoundError, match=r"pass download=True \(--download of .*\) to fetch it from http"):
        data.create("cub", root, "test")
    assert len(data.create("cub", root, "test", download=True)) == 4
    assert len(data.create("cub", root, "test")) == 4
    assert len(handler.asked) == 1
    assert sorted(entry.name for entry in root.iterdir()) == ["CUB_200_2011", "CUB_200_2011.tgz"]


def test_an_archive_put_there_by_hand_is_unpacked_by_one_process_at_a_time(published_cub, tmp_path):
    root = tmp_path / "by hand"
    root.mkdir()
    (root / "CUB_200_2011.tgz").write_bytes(published_cub("http://127.0.0.1:9"))
    with (
        lock(root / ".CUB_200_2011.tgz.lock", "held by the test"),
        pytest.raises(ValueError, match="another process is downloading or unpacking"),
    ):
        data.create("cub", root, "train", allow_partial=True)
    assert len(data.create("cub", root, "train", allow_partial=True)) == 6


def test_what_a_killed_unpacking_of_a_zip_left_is_removed_by_the_next(tmp_path):
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
def test_bad_archives_and_members_that_point_outside_leave_nothing(published_cub, tmp_path, bad):
    folder = tmp_path / "bad"
    folder.mkdir()
    with tarfile.open(folder / "a.tgz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo(bad))
    if bad in ("text", "cut"):
        (folder / "a.tgz").write_bytes(b"no archive" if bad == "text" else published_cub("")[:-100])
    told = "holds .'other'., expected a folder a" if bad == "other" else "cannot be unpacked|expected a folder a"
    with pytest.raises(ValueError, match=told):
        unpack(folder / "a.tgz", "a", folder)
    assert [file.name for file in folder.iterdir()] == ["a.tgz"]
    assert not list(tmp_path.glob("**/evil.txt"))
