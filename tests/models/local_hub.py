"""A hub on this machine: the few answers of huggingface.co that pushing and fetching a model need."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote

import yaml

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class LocalHub(ThreadingHTTPServer):
    """Keeps repositories in memory: name -> file -> content."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.checked_heads: list[dict[str, Any]] = []
        self.unknown: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answers(BaseHTTPRequestHandler):
    server: LocalHub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])) if "Content-Length" in self.headers else b""
        if not body and self.headers.get("Transfer-Encoding") == "chunked":
            body = b"".join(self._chunks())
        path = unquote(self.path.partition("?")[0])
        if path == "/api/repos/create":
            wanted = json.loads(body)
            name = f"{wanted.get('organization') or 'me'}/{wanted['name']}"
            self.server.repositories.setdefault(name, {})
            self._json({"url": f"{self.server.address}/{name}", "name": name})
        elif path == "/api/validate-yaml":
            page = json.loads(body)["content"]
            self.server.checked_heads.append(yaml.safe_load(page.split("---")[1]))
            self._json({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            self._json({"files": files})
        elif "/commit/" in path:
            name = path.removeprefix("/api/models/").partition("/commit/")[0]
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.server.repositories[name][line["value"]["path"]] = content
            self._json(
                {"success": True, "commitOid": COMMIT, "commitUrl": f"{self.server.address}/{name}/commit/{COMMIT}"}
            )
        else:
            self._refuse()

    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0])
        api = path.removeprefix("/api/models/")
        name, _, file = path.removeprefix("/").partition("/resolve/")
        if api != path and api.partition("/revision/")[0] in self.server.repositories:
            name = api.partition("/revision/")[0]
            siblings = [{"rfilename": file} for file in self.server.repositories[name]]
            self._json({"id": name, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []})
        elif api != path and api.partition("/tree/")[0] in self.server.repositories:
            files = self.server.repositories[api.partition("/tree/")[0]].items()
            self._json(
                [
                    {"type": "file", "path": file, "size": len(content), "oid": _digest(content)}
                    for file, content in files
                ]
            )
        elif file.partition("/")[2] in self.server.repositories.get(name, {}):
            content = self.server.repositories[name][file.partition("/")[2]]
            self._answer(content, {"X-Repo-Commit": COMMIT, "ETag": f'"{_digest(content)}"'})
        else:
            self._refuse()

    def do_HEAD(self) -> None:
        self.do_GET()

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()

    def _json(self, answer: Any) -> None:
        self._answer(json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _refuse(self) -> None:
        self.server.unknown.append(f"{self.command} {self.path}")
        self._answer(b"", {"X-Error-Code": "RepoNotFound"}, 404)

    def _answer(self, content: bytes, headers: dict[str, str], status: int = 200) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Keep the output of the tests clean."""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def local_hub() -> Iterator[LocalHub]:
    """Run a hub while a test lasts."""
    with LocalHub() as hub:
        thread = Thread(target=hub.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
