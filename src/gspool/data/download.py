"""Download and unpack published archives; what is incomplete or wrong never gets the final name."""

from __future__ import annotations

import ftplib
import hashlib
import http.client
import shutil
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

# Takes (bytes so far, total bytes or None).
Report = Callable[[int, int | None], None]
CHUNK = 1 << 20
TIMEOUT_SECONDS = 30
ATTEMPTS = 5
PAUSE_SECONDS = 1.0


class Archive(NamedTuple):
    """A published file: its address and its checksums, SHA-256 where it is known."""

    url: str
    md5: str
    sha256: str | None = None

    @property
    def file_name(self) -> str:
        """The last part of the address."""
        return self.url.rpartition("/")[2]


class Stream(NamedTuple):
    """An open response: the bytes from ``start`` on, and the length of the whole file if the server sends it."""

    body: IO[bytes]
    start: int
    length: int | None


def fetch(archive: Archive, folder: Path, *, progress: bool = True) -> Path:
    """Download an archive into ``folder`` and return its path; a correct file that is already there is kept.

    Bytes are written to ``NAME.part``; when the connection drops, or at the next call after a crash, the download
    continues from there (HTTP Range, FTP REST). The checksums are verified before the file gets its name.

    Raises:
        ConnectionError: if the server cannot be reached after several attempts; the bytes received are kept.
        ValueError: if a checksum differs from the published one.
    """
    target = folder / archive.file_name
    if target.is_file():
        check_content(target, archive)
        return target
    folder.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    fruitless = 0
    with _bar(archive, progress) as report:
        while True:
            before = _size(part)
            problem: Exception | None = None
            try:
                if _fetch_rest(archive.url, part, report):
                    break
            except (OSError, http.client.HTTPException, ftplib.Error) as error:
                problem = error
            # Keep trying as long as every attempt brings something.
            fruitless = 0 if _size(part) > before else fruitless + 1
            # 4xx: the address is wrong, and trying again will not change that.
            refused = isinstance(problem, urllib.error.HTTPError) and 400 <= problem.code < 500
            if refused or fruitless >= ATTEMPTS:
                raise ConnectionError(
                    f"{archive.url} could not be downloaded ({problem or 'the connection broke repeatedly'}); "
                    f"{_kept(part)}, or put {archive.file_name} into {folder} by hand"
                ) from problem
            time.sleep(PAUSE_SECONDS * fruitless)
    check_content(part, archive)
    part.replace(target)
    return target


def _fetch_rest(url: str, part: Path, report: Report) -> bool:
    """Append what is missing; return whether the file is as long as the server says."""
    have = _size(part)
    with _open(url, have) as stream:
        if stream is None:
            return True
        # A server that ignores the range starts at the first byte, and so must the file.
        with part.open("r+b" if part.exists() else "wb") as file:
            file.truncate(stream.start)
            file.seek(stream.start)
            report(stream.start, stream.length)
            while block := stream.body.read(CHUNK):
                file.write(block)
                report(file.tell(), stream.length)
            return stream.length is None or file.tell() >= stream.length


@contextmanager
def _open(url: str, start: int) -> Iterator[Stream | None]:
    """Open an address at an offset; None if the server says that nothing is left."""
    if urllib.parse.urlsplit(url).scheme == "ftp":
        with _open_ftp(url, start) as stream:
            yield stream
        return
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            begin = start if answer.status == 206 else 0
            left = answer.headers.get("Content-Length")
            yield Stream(answer, begin, None if left is None else begin + int(left))
    except urllib.error.HTTPError as problem:
        problem.close()
        if problem.code != 416:  # the range begins past the end: the file is complete
            raise
        yield None


@contextmanager
def _open_ftp(url: str, start: int) -> Iterator[Stream]:
    """Open an FTP address at an offset."""
    address = urllib.parse.urlsplit(url)
    with ftplib.FTP(timeout=TIMEOUT_SECONDS) as server:
        server.connect(address.hostname or "", address.port or ftplib.FTP_PORT)
        server.login()
        server.voidcmd("TYPE I")
        length = server.size(address.path)
        with server.transfercmd(f"RETR {address.path}", rest=start or None) as line, line.makefile("rb") as body:
            yield Stream(body, start, length)


def check_content(path: Path, archive: Archive) -> None:
    """Compare a file with its published checksums; one that differs is renamed, so that the next call starts over."""
    for kind, published in (("md5", archive.md5), ("sha256", archive.sha256)):
        if published is None:
            continue
        with path.open("rb") as file:
            found = hashlib.file_digest(file, kind).hexdigest()
        if found != published:
            wrong = path.with_name(archive.file_name + ".wrong")
            path.replace(wrong)
            raise ValueError(
                f"{archive.file_name} has {kind} {found}, published is {published}: it is damaged or another version. "
                f"It was moved to {wrong}; run the same command again to download it again"
            )


def unpack(archive: Path, folder: str, into: Path) -> Path:
    """Unpack ``archive`` and move its ``folder`` into ``into``; return where it is.

    Members are written to a temporary folder, which is renamed at the end: an interrupted unpacking leaves nothing that
    looks complete, and what it left is removed by the next. Only one process may unpack an archive at a time.

    Raises:
        ValueError: if the archive is damaged, holds members that point outside, or does not hold that folder.
    """
    target = into / folder
    if target.exists():
        return target
    temporary = into / f".unpacking-{folder}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        try:
            shutil.unpack_archive(archive, temporary, filter=None if archive.suffix == ".zip" else "data")
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as problem:
            raise ValueError(f"{archive} cannot be unpacked ({problem}); delete it and fetch it again") from problem
        unpacked = temporary / folder
        if not unpacked.exists():
            found = sorted(entry.name for entry in temporary.iterdir())
            raise ValueError(f"{archive} holds {found[:5]}, expected a folder {folder}; is it another archive?")
        unpacked.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _kept(part: Path) -> str:
    """Describe what a failed download left, and how to continue."""
    if _size(part) == 0:
        return "nothing was received: run the same command again when the address can be reached"
    return f"{_size(part):,} bytes are kept in {part}: run the same command again to continue from there"


@contextmanager
def _bar(archive: Archive, shown: bool) -> Iterator[Report]:
    """Show a progress bar, or nothing."""
    if not shown:
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn()) as bar:
        task = bar.add_task(archive.file_name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
