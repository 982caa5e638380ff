"""The folders of results and figures: looked at before the work, and after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gspool.provenance import is_quick, read_result


def refuse_measured(results: Path) -> None:
    """Refuse to write a tiny version among measured results.

    Raises:
        ValueError: if the folder holds one.
    """
    for path in sorted(results.glob("*.json")):
        try:
            record = read_result(path)
        except ValueError:
            continue
        if not is_quick(record):
            raise ValueError(
                f"--quick measures nothing, and {results} holds what was measured ({path.name}): leave --results out, "
                "or give a folder of its own"
            )


@contextmanager
def written_told(name: str, *folders: Path) -> Iterator[None]:
    """Name the files of an experiment that are written in here, also where something breaks after that.

    Args:
        name: of the experiment, with which the names of its results and figures begin.
        folders: where they are written.
    """
    before = {*_stamps(name, folders).values()}
    try:
        yield
    finally:
        written = [str(path) for path, stamp in _stamps(name, folders).items() if stamp not in before]
        if written:
            print(f"written: {', '.join(written)}", flush=True)


def _stamps(name: str, folders: tuple[Path, ...]) -> dict[Path, tuple[int, int]]:
    # A file that is only renamed, as one that is set aside, keeps both.
    files = [path for folder in folders for path in sorted(folder.glob(f"{name.replace('-', '_')}*")) if path.is_file()]
    return {path: (each.st_ino, each.st_mtime_ns) for path in files for each in [path.stat()]}
