"""The result that a run is to write anew: kept where it counts, set aside where it is damaged or measures nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gspool.provenance import is_quick, read_result


def earlier_result(path: Path, quick: bool = False) -> dict[str, Any] | None:
    """Read the result that is to be written anew; None where there is none that counts.

    One that cannot be read, or is of a tiny version where this is none, gets another name, so that nothing of it is
    taken for measured and nothing of it is lost.

    Args:
        path: the result.
        quick: whether it is a tiny version that is to be written.
    """
    if not path.is_file():
        return None
    try:
        record = read_result(path)
    except ValueError as wrong:
        set_aside(path, "damaged", str(wrong))
        return None
    if is_quick(record) and not quick:
        set_aside(path, "quick", f"{path.name} is of a tiny version, which measures nothing")
        return None
    return record


def set_aside(path: Path, ending: str, why: str) -> Path:
    """Give a result a name that nothing reads, and say so; an older one of that name stays.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for text in ("[", "{"):
        ...         path = Path(folder) / "mu.json"
        ...         _ = path.write_text(text)
        ...         print(set_aside(path, "damaged", "mu.json is not JSON").read_text())
        mu.json is not JSON; it is mu.json.damaged now
        [
        mu.json is not JSON; it is mu.json.damaged-2 now
        {
    """
    other, number = path.with_name(f"{path.name}.{ending}"), 1
    while other.exists():
        number += 1
        other = path.with_name(f"{path.name}.{ending}-{number}")
    path.rename(other)
    print(f"{why}; it is {other.name} now", flush=True)
    return other
