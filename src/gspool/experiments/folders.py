"""The folder of results: looked at before the work."""

from __future__ import annotations

from pathlib import Path

from gspool.experiments.certificate import is_quick, read_result


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
