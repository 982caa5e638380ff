"""Finished trainings, one line of JSON each: a run that was interrupted goes on with those that are missing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Ledger:
    """Results by what was asked for, in a file that only grows.

    Every entry is one write to a file opened for appending, so that processes side by side can share a ledger. A line
    that a crash cut short is left out, and what it was about is done again.

    Args:
        path: the file.
        origin: where what is put comes from (`gspool.provenance.origin_here`), which stands in every line;
            None where entries say it themselves.

    Raises:
        ValueError: if a line in the middle of the file is damaged.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = Ledger(Path(folder) / "trainings.jsonl")
        ...     ledger.put({"pooling": "gap", "seed": 0}, {"map@r": 0.1})
        ...     Ledger(ledger.path).get({"seed": 0, "pooling": "gap"})
        {'map@r': 0.1}
    """

    def __init__(self, path: Path, origin: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.entries: dict[str, Any] = {}
        self._origin = origin
        self._origins: dict[str, Mapping[str, Any] | None] = {}
        lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else [""]
        # What stands after the last line break was cut short; it is empty where nothing was.
        self._cut_short = bool(lines[-1])
        for number, line in enumerate(lines[:-1], start=1):
            if line:
                try:
                    entry = json.loads(line)
                    self.entries[_key(entry["asked"])] = entry["found"]
                    self._origins[_key(entry["asked"])] = entry.get("origin")
                except (json.JSONDecodeError, KeyError, TypeError) as wrong:
                    # A cut line that a later entry closed; anything else is damage.
                    if isinstance(wrong, json.JSONDecodeError) and line.endswith(_CUT):
                        continue
                    raise ValueError(f"line {number} of {path} is damaged ({wrong!r}); delete that line") from wrong

    def get(self, asked: Mapping[str, Any]) -> Any | None:
        """Give what was found, or None where it has not been done."""
        return self.entries.get(_key(asked))

    def origins(
        self, otherwise: Mapping[str, Any], asked: Iterable[Mapping[str, Any]] | None = None
    ) -> list[Mapping[str, Any]]:
        """Give where entries come from, ``otherwise`` for those that do not say it: those asked for, or all of them.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = Path(folder) / "trainings.jsonl"
            ...     Ledger(path).put({"seed": 0}, 0.1)
            ...     Ledger(path, {"commit": "b"}).put({"seed": 1}, 0.2)
            ...     Ledger(path).origins({"commit": "a"})
            [{'commit': 'a'}, {'commit': 'b'}]
        """
        keys = self.entries if asked is None else [_key(each) for each in asked]
        return [self._origins[key] or otherwise for key in keys]

    def put(self, asked: Mapping[str, Any], found: Any) -> None:
        """Write down what was found.

        Raises:
            ValueError: if it is not plain finite JSON.
        """
        origin = {} if self._origin is None else {"origin": dict(self._origin)}
        line = json.dumps({"asked": dict(asked), "found": found, **origin}, allow_nan=False)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered, so that the line is one write, which appending files of several processes keep whole.
        with self.path.open("ab", buffering=0) as file:
            file.write((_CUT + "\n" if self._cut_short else "").encode() + line.encode() + b"\n")
            os.fsync(file.fileno())
        self._cut_short = False
        self.entries[_key(asked)], self._origins[_key(asked)] = found, self._origin


# Closes a line that a crash cut short; no JSON ends like this.
_CUT = " #cut short"


def _key(asked: Mapping[str, Any]) -> str:
    return json.dumps(dict(asked), sort_keys=True)
