"""Finished runs on disk: each is written atomically, so that a crash leaves it whole or absent."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from gspool.evaluation.averages import RunResult
from gspool.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Mapping

_DESCRIPTION = "protocol.json"


class FinishedRuns:
    """The runs of one protocol in one folder, as ``fold0-repeat0.json`` and ``.safetensors`` beside it.

    The JSON file is written last: where it stands, the run is complete. ``description`` says what the runs belong to;
    a folder that holds runs of something else is refused.

    Raises:
        ValueError: if the folder holds runs that were described otherwise.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     runs = FinishedRuns(folder, {"protocol": "fair"})
        ...     saved = runs.save(0, 2, RunResult(torch.ones(3, 2), {"p@1": 0.5}))
        ...     runs.load(0, 2).metrics, runs.load(1, 0)
        ({'p@1': 0.5}, None)
    """

    def __init__(self, folder: str | os.PathLike[str], description: Mapping[str, object]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / _DESCRIPTION
        # Through JSON and back, so that tuples and lists compare equal.
        wanted = json.loads(json.dumps(description))
        if not path.exists():
            write_atomic(path, json.dumps(wanted, indent=2).encode())
        found = _read_json(path)
        if found != wanted:
            differing = sorted(key for key in {*found, *wanted} if found.get(key) != wanted.get(key))
            raise ValueError(
                f"{self.folder} holds the runs of another protocol or test set: {', '.join(differing)} differ "
                f"(there {[found.get(key) for key in differing]}, here {[wanted.get(key) for key in differing]}); "
                "choose another folder, or delete this one"
            )

    def save(self, fold: int, repeat: int, result: RunResult) -> RunResult:
        """Write a run, embeddings first, the JSON file that makes it count last; return it as `load` would."""
        from safetensors.torch import save

        tensors = {"embeddings": result.embeddings.detach().cpu().contiguous()}
        if result.gallery is not None:
            tensors["gallery"] = result.gallery.detach().cpu().contiguous()
        write_atomic(self._path(fold, repeat, "safetensors"), save(tensors))
        metrics = {name: float(value) for name, value in result.metrics.items()}
        record = {"fold": fold, "repeat": repeat, "metrics": metrics}
        write_atomic(self._path(fold, repeat, "json"), json.dumps(record, indent=2).encode())
        return RunResult(tensors["embeddings"], metrics, tensors.get("gallery"))

    def load(self, fold: int, repeat: int) -> RunResult | None:
        """Read a run, or None if it never finished.

        Raises:
            ValueError: if its files are damaged.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path, record_path = self._path(fold, repeat, "safetensors"), self._path(fold, repeat, "json")
        if not path.exists() or not record_path.exists():
            return None
        record = _read_json(record_path)
        try:
            tensors = load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged ({error}); delete it, and the run is done again") from error
        return RunResult(tensors["embeddings"], record["metrics"], tensors.get("gallery"))

    def _path(self, fold: int, repeat: int, kind: str) -> Path:
        return self.folder / f"fold{fold}-repeat{repeat}.{kind}"


def _read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}); delete it, and what it held is computed again") from error
