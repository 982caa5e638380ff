"""Finished runs, one line of JSON each: an interrupted grid continues with the runs that are missing."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gspool.provenance import is_quick, origin_here, origin_of, read_result


class Run(NamedTuple):
    """One finished run: what was asked for, what it found, and its provenance (`gspool.provenance.origin_here`)."""

    asked: dict[str, Any]
    found: dict[str, Any]
    origin: dict[str, Any]


class RunStore:
    """Finished runs in a file that only grows, and those inside a result that was measured elsewhere.

    A line that a crash cut short is skipped, and its run is done again. Runs under ``value.runs`` of ``result`` count
    as finished, so that a clone of the repository continues from the published results.

    Args:
        path: the file, JSON lines.
        result: ``results/NAME.json``, which may be missing.
        device: recorded in the provenance of new runs.
        libraries: their versions are recorded too.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = RunStore(Path(folder) / "runs.jsonl")
        ...     store.put({"pooling": "gap", "seed": 0}, {"map@r": 0.1})
        ...     RunStore(store.path).get({"seed": 0, "pooling": "gap"})
        {'map@r': 0.1}
    """

    def __init__(
        self,
        path: Path,
        result: Path | None = None,
        *,
        device: str = "cpu",
        libraries: Sequence[str] = (),
    ) -> None:
        self.path, self._device, self._libraries = path, device, libraries
        self._runs: dict[str, Run] = {}
        self._origin: dict[str, Any] | None = None
        for run in [*_of_result(result), *_of_file(path)]:
            self._runs[_key(run.asked)] = run

    def get(self, asked: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what a run found; None where it has not been done."""
        run = self._runs.get(_key(asked))
        return None if run is None else run.found

    def put(self, asked: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        """Append a finished run.

        Raises:
            ValueError: if it is not plain finite JSON.
        """
        if self._origin is None:
            self._origin = origin_here(self._device, self._libraries)
        run = Run(dict(asked), dict(found), self._origin)
        line = json.dumps(run._asdict(), allow_nan=False).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: the line is one write, which the operating system appends as a whole.
        with self.path.open("a+b", buffering=0) as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                # A crash may have cut the last line short.
                line = line if file.read(1) == b"\n" else b"\n" + line
            file.write(line)
            os.fsync(file.fileno())
        self._runs[_key(asked)] = run

    def forget(self, unwanted: Callable[[Run], bool]) -> None:
        """Leave out runs that do not count; they are done again, and the later one counts."""
        self._runs = {key: run for key, run in self._runs.items() if not unwanted(run)}

    def runs(self, asked: Iterable[Mapping[str, Any]] | None = None) -> list[Run]:
        """Return the finished runs among those asked for, in that order, or all of them."""
        keys = self._runs if asked is None else [_key(each) for each in asked]
        return [self._runs[key] for key in keys if key in self._runs]


def _key(asked: Mapping[str, Any]) -> str:
    return json.dumps(dict(asked), sort_keys=True)


def _of_file(path: Path) -> list[Run]:
    runs = []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line) if line else None
            runs += [Run(entry["asked"], entry["found"], entry.get("origin") or {})] if entry else []
        except (json.JSONDecodeError, KeyError, TypeError):
            # The last line may have been cut short by a crash just now; anything else is worth a word.
            if number < len(lines):
                warnings.warn(f"line {number} of {path} is damaged; its run will be done again", stacklevel=3)
    return runs


def _of_result(path: Path | None) -> list[Run]:
    """Return the runs of a result; none where it is missing, damaged, of another kind, or a tiny version."""
    if path is None or not path.is_file():
        return []
    try:
        record = read_result(path)
    except ValueError:
        return []
    value = record.get("value")
    runs = value.get("runs") if isinstance(value, dict) else None
    if is_quick(record) or not isinstance(runs, list) or not all("asked" in run and "found" in run for run in runs):
        return []
    return [Run(run["asked"], run["found"], run.get("origin") or origin_of(record)) for run in runs]
