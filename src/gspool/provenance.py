"""Results with provenance: no number without the command, commit, seeds, device and libraries behind it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections import Counter
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool.files import write_atomic
from gspool.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Commit(NamedTuple):
    """The state of the source: its commit, and whether files differed from it; None outside a git checkout.

    ``changed`` is None too where git could not say.
    """

    name: str | None
    changed: bool | None


def write_result(
    path: Path,
    value: Any,
    *,
    command: str,
    seeds: Sequence[int],
    libraries: Sequence[str] = (),
    device: torch.device | str = "cpu",
    origins: Sequence[Mapping[str, Any]] = (),
    note: str | None = None,
) -> dict[str, Any]:
    """Write ``value`` as JSON together with its provenance, aside first and then renamed.

    Args:
        path: the file, ``results/NAME.json`` for what goes into the documents.
        value: numbers, text, lists and dictionaries of them; a list of dictionaries reads as a table.
        command: what a person types to get this value again.
        seeds: the seeds it was drawn with; empty where nothing is random.
        libraries: distributions whose versions count, besides Python, torch and this package.
        device: where it was computed.
        origins: for a value that is put together from runs, made earlier or elsewhere, the `origin_here` of every
            run in its time; the provenance is then theirs, and ``libraries`` and ``device`` do not count.
        note: what else is to be known about it.

    Returns:
        What was written.

    Raises:
        ValueError: if the value cannot be written as JSON, because it holds NaN for example.
        importlib.metadata.PackageNotFoundError: if a library is not installed.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     record = write_result(Path(folder) / "sum.json", {"sum": 3}, command="python sum.py", seeds=[0])
        ...     read_result(Path(folder) / "sum.json") == record
        True
    """
    record = {
        "value": value,
        "command": command,
        "seeds": [*seeds],
        **(joined_origin(origins) if origins else origin_here(device, libraries)),
        **({} if note is None else {"note": note}),
    }
    try:
        text = json.dumps(record, indent=1, allow_nan=False)
    except (TypeError, ValueError) as wrong:
        raise ValueError(
            f"the result for {path.name} cannot be written as JSON ({wrong}); give finite plain numbers, text, lists "
            "and dictionaries: tensor.tolist(), float(value)"
        ) from wrong
    write_atomic(path, f"{text}\n".encode())
    return record


def origin_here(device: torch.device | str = "cpu", libraries: Sequence[str] = ()) -> dict[str, Any]:
    """Return the origin of what is computed now: commit, device, versions, date.

    Example:
        >>> list(origin_here())
        ['commit', 'uncommitted_changes', 'device', 'versions', 'date']
    """
    commit = source_commit()
    return {
        "commit": commit.name,
        "uncommitted_changes": commit.changed,
        "device": device_name(torch.device(device)),
        "versions": {
            "python": platform.python_version(),
            "gspool": __version__,
            "torch": torch.__version__,
            **{name: metadata.version(name) for name in libraries},
        },
        "date": datetime.now(UTC).date().isoformat(),
    }


def joined_origin(origins: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the provenance of many runs: that of the latest, all devices, and how many runs each origin has.

    Example:
        >>> old = {"commit": "a", "uncommitted_changes": False, "device": "CPU", "versions": {}, "date": "2026-01-02"}
        >>> joined = joined_origin([{**old, "commit": "b", "device": "GPU", "date": "2026-01-03"}, old, old])
        >>> joined["commit"], joined["device"], [(each["commit"], each["runs"]) for each in joined["origins"]]
        ('b', 'CPU, GPU', [('a', 2), ('b', 1)])
    """
    kinds = {json.dumps(origin, sort_keys=True): dict(origin) for origin in origins}
    counts = Counter(json.dumps(origin, sort_keys=True) for origin in origins)
    in_time = sorted(kinds, key=lambda kind: kinds[kind]["date"])
    # With changes in one of them there are some; what is not known of one is not known of all.
    changes = {origin["uncommitted_changes"] for origin in origins}
    return {
        **kinds[in_time[-1]],
        "uncommitted_changes": next((each for each in (True, None) if each in changes), False),
        "device": ", ".join(sorted({origin["device"] for origin in origins})),
        "origins": [{**kinds[kind], "runs": counts[kind]} for kind in in_time],
    }


def origin_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the origin that a result states for all of its value.

    Example:
        >>> origin_of({"value": 1, "command": "x", "device": "GPU", "versions": {}, "date": "2026-01-02"})["device"]
        'GPU'
    """
    return {name: record.get(name) for name in ("commit", "uncommitted_changes", "device", "versions", "date")}


def is_quick(record: Mapping[str, Any]) -> bool:
    """Check whether a result is of a tiny version, which measures nothing.

    Example:
        >>> [is_quick({"command": f"gspool reproduce toy {word}"}) for word in ("--quick", "--device cpu")]
        [True, False]
    """
    return "--quick" in record["command"].split()


def read_result(path: Path) -> dict[str, Any]:
    """Read a result, refusing one without a provenance.

    Raises:
        ValueError: if the file is missing, is not JSON, or says too little about where it comes from.
    """
    if not path.is_file():
        raise ValueError(f"there is no result {path.name} in the folder {path.parent.name}; run what measures it first")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as wrong:
        raise ValueError(f"{path.name} is not JSON ({wrong}); measure it again") from wrong
    missing = {"command", "date", "device", "versions"} - set(record if isinstance(record, dict) else ())
    if missing:
        raise ValueError(
            f"{path.name} does not say where it comes from: {', '.join(sorted(missing))} missing; write it with "
            "gspool.provenance.write_result"
        )
    return dict(record)


def read_measured(path: Path) -> dict[str, Any]:
    """Read a result that is to be shown, refusing one of a tiny version.

    Raises:
        ValueError: if it cannot be read, or measures nothing.
    """
    record = read_result(path)
    if is_quick(record):
        raise ValueError(f"{path.name} is of a tiny version (--quick), which measures nothing: move it elsewhere")
    return record


def source_commit(folder: Path | None = None) -> Commit:
    """Return the commit of the source around this file, if it is a git checkout.

    ``GSPOOL_COMMIT`` names it where the source was copied to a machine that trains, over an older checkout perhaps.
    """
    if name := os.environ.get("GSPOOL_COMMIT"):
        return Commit(name, False)
    where = Path(__file__).resolve().parent if folder is None else folder
    if shutil.which("git") is None:
        return Commit(None, None)
    head, top = _git(where, "rev-parse", "HEAD"), _git(where, "rev-parse", "--show-toplevel")
    # A package installed inside some other project's checkout, in its virtual environment say, is not of that commit.
    if head is None or top is None or not where.is_relative_to(Path(top) / "src" / "gspool"):
        return Commit(None, None)
    # Results themselves change with every run and say nothing about the code.
    changes = _git(where, "status", "--porcelain", "--", ":/", ":(exclude,top)results")
    return Commit(head, None if changes is None else bool(changes))


def device_name(device: torch.device) -> str:
    """Return the name of the processor, and for the CPU the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    threads = torch.get_num_threads()
    processor = models[0] if models else platform.processor() or platform.machine()
    return f"{processor}, {threads} thread{'s' if threads > 1 else ''}"


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the answer of git; None if it has none."""
    answer = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else None
