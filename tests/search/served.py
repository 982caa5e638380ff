"""A small corpus behind a model, for the tests of the server, and pictures as strangers send them."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from gspool.search import embed_corpus, open_index
from gspool.search.serve.lookup import Lookup
from search.corpus_files import draw_picture

# A label that would do harm on a page that took it for anything but text.
HOSTILE = "<img src=x onerror=alert(1)> ${7*7} {{7*7}}"
LABELS = ("ant", "bee", HOSTILE)
EACH = 4


def as_bytes(picture: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def write_corpus(folder, model) -> None:
    """Write pictures/ and vectors.lance; labels come from a CSV, because no folder has the name of the hostile one."""
    lines = ["path,label"]
    for number, label in enumerate(LABELS):
        for picture in range(EACH):
            path = folder / "pictures" / f"{number}-{picture}.png"
            draw_picture(path, 100 * number + picture)
            lines.append(f'{path},"{label}"')
    (folder / "list.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    embed_corpus(model, [folder / "list.csv"], folder / "vectors.lance", device="cpu", workers=1)


def make_lookup(folder, model) -> Lookup:
    write_corpus(folder, model)
    return Lookup(model, open_index(folder / "vectors.lance"))


def in_a_loop(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call what makes a page of Gradio, which leaves an event loop of its own open where there is none."""

    async def call() -> Any:
        return function(*arguments)

    return asyncio.run(call())


def png_bomb(width: int, height: int) -> bytes:
    """A valid PNG of a few kilobytes that would decode to width x height black pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        whole = kind + content
        return struct.pack(">I", len(content)) + whole + struct.pack(">I", zlib.crc32(whole))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    squeezer = zlib.compressobj(9)
    line = bytes(1 + (width + 7) // 8)
    pixels = b"".join(squeezer.compress(line) for _ in range(height)) + squeezer.flush()
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")

    def json(self) -> Any:
        return json.loads(self.content)


class Server:
    """`gspool serve` as a process of its own; requests are sent letter by letter, nothing is made tidy on the way."""

    def __init__(self, folder, *options: str) -> None:
        call = "import sys; from gspool.search.commands import run; sys.exit(run('serve', sys.argv[1:]))"
        words = [str(folder / "model"), "--index", str(folder / "vectors.lance"), "--port", "0", "--device", "cpu"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", call, *words, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.told = ""
        while "Ctrl-C stops it" not in self.told:
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError(f"the server did not start: {self.told}")
            self.told += line
        self.port = int(re.search(r"http://127\.0\.0\.1:(\d+)", self.told)[1])
        self.address = f"http://127.0.0.1:{self.port}"
        for _ in range(100):
            try:
                self.ask("GET", "/api/health")
                return
            except ConnectionError:
                time.sleep(0.1)
        raise AssertionError("the server does not answer")

    def ask(self, method: str, target: str, content: Any = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, target, content, named, encode_chunked="transfer-encoding" in named)
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def send(
        self,
        target: str,
        content: bytes,
        field: str = "image",
        name: str = "a.png",
        headers: dict[str, str] | None = None,
        **fields: Any,
    ) -> Answer:
        """Send a form with a file, as a browser would."""
        parts = [
            f'--xyz\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
            for key, value in fields.items()
        ]
        head = f'--xyz\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n\r\n'.encode()
        body = b"".join(parts) + head + content + b"\r\n--xyz--\r\n"
        return self.ask("POST", target, body, content_type="multipart/form-data; boundary=xyz", **headers or {})

    def call(self, route: str, function: int, data: list[Any], session: str) -> Answer:
        """Call a function of the page by its place in the list of them."""
        number = self.ask("GET", "/config").json()["dependencies"][function]["id"]
        question = json.dumps({"data": data, "fn_index": number, "session_hash": session}).encode()
        return self.ask("POST", f"/gradio_api/{route}", question, content_type="application/json")

    def asked(self, path: str, **more: str) -> str:
        """Ask the page's own function about a picture on the server, as its script does; give all that is answered."""
        session = os.urandom(6).hex()
        picture = {"path": path, "meta": {"_type": "gradio.FileData"}, **more}
        joined = self.call("queue/join", 0, [picture, 3, -1, [], "pictures"], session)
        if joined.status != 200:
            return joined.text
        return self.ask("GET", f"/gradio_api/queue/data?session_hash={session}").text.replace('": ', '":')

    def memory(self, figure: str = "VmRSS") -> int:
        """Read the memory of the process in bytes: VmRSS now, VmHWM at its peak."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{figure}:"):
                return 1024 * int(line.split()[1])
        raise AssertionError(f"no {figure}")

    def stop(self) -> tuple[int, str]:
        """Press Ctrl-C; give the exit status and what was said at the end."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        rest, _ = self.process.communicate(timeout=60)
        return self.process.returncode, rest

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
