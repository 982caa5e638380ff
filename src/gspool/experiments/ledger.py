"""Finished trainings, one line of JSON each: a run that was interrupted goes on with those that are missing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class Ledger:
    """Results by what was asked for, in a file that only grows.

    Every entry is one write to a file opened for appending, so that processes side by side can share a ledger. A line
    that a crash cut short is left out, and what it was about is done again.

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

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, Any] = {}
        lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else [""]
        # What stands after the last line break was cut short; it is empty where nothing was.
        self._cut_short = bool(lines[-1])
        for number, line in enumerate(lines[:-1], start=1):
            if line:
                try:
                    entry = json.loads(line)
                    self.entries[_key(entry["asked"])] = entry["found"]
                except (json.JSONDecodeError, KeyError, TypeError) as wrong:
                    # A cut line that a later entry closed; anything else is damage.
                    if isinstance(wrong, json.JSONDecodeError) and line.endswith(_CUT):
                        continue
                    raise ValueError(f"line {number} of {path} is damaged ({wrong!r}); delete that line") from wrong

    def get(self, asked: Mapping[str, Any]) -> Any | None:
        """Give what was found, or None where it has not been done."""
        return self.entries.get(_key(asked))

    def put(self, asked: Mapping[str, Any], found: Any) -> None:
        """Write down what was found.

        Raises:
            ValueError: if it is not plain finite JSON.
        """
        line = json.dumps({"asked": dict(asked), "found": found}, allow_nan=False)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered, so that the line is one write, which appending files of several processes keep whole.
        with self.path.open("ab", buffering=0) as file:
            file.write((_CUT + "\n" if self._cut_short else "").encode() + line.encode() + b"\n")
            os.fsync(file.fileno())
        self._cut_short = False
        self.entries[_key(asked)] = found


# Closes a line that a crash cut short; no JSON ends like this.
_CUT = " #cut short"


def _key(asked: Mapping[str, Any]) -> str:
    return json.dumps(dict(asked), sort_keys=True)
