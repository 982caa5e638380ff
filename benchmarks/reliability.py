r"""Collect the figures of the reliability tests into results/reliability.json, part by part.

    GSPOOL_FIGURES=data.json python -m pytest -m slow tests/data/test_decode_fuzz.py
    GSPOOL_FIGURES=search.json python -m pytest -m slow tests/search/test_reliability.py
    GSPOOL_RELIABILITY=training.json python -m pytest -m slow tests/training/test_interruption.py
    python tests/models/fuzz_config.py 10000 1 FOLDER > models.json
    python benchmarks/reliability.py data=data.json search=search.json training=training.json models=models.json

``NAME=FILE@COMMIT`` names the commit that a file was measured at, if it is not the present one. Parts that are not
named stay as they are in the result, so that they can be measured one by one.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gspool.provenance import origin_here, read_result, write_result

RESULT = Path(__file__).parents[1] / "results" / "reliability.json"
# Of the random damage, mutations and moments of a kill.
SEEDS = {"data": (0,), "models": (1,), "search": (0,), "training": (1, 2, 11, 12)}
# decode_peak_memory is measured by hand; the tests check its bounds.
NOTE = "decode_peak_memory: growth of ru_maxrss in a new process that calls gspool.data.decode(path, 256)"
COMMANDS = {
    "data": "pytest -m slow tests/data/test_decode_fuzz.py",
    "models": "pytest -m slow tests/models/test_untrusted_model.py",
    "search": "pytest -m slow tests/search/test_reliability.py",
    "training": "pytest -m slow tests/training/test_interruption.py",
}


def plain(value: Any) -> Any:
    """Replace blanks in keys, which a marker in a document cannot name."""
    if isinstance(value, dict):
        return {key.replace(" ", "_"): plain(each) for key, each in value.items()}
    return value


def part_of(file: Path, commit: str) -> dict[str, Any]:
    """Read the figures of one part, with their origin."""
    figures = plain(json.loads(file.read_text(encoding="utf-8")))
    if "reached" in figures:
        figures = {"config_fuzz": {**figures, "reached": len(figures["reached"])}}
    written = datetime.fromtimestamp(file.stat().st_mtime, UTC).date().isoformat()
    origin = {**origin_here(libraries=("pillow", "timm")), "date": written}
    if commit:
        # Whether the working tree had changes then is not known.
        origin |= {"commit": commit, "uncommitted_changes": True}
    return {**figures, "origin": origin}


def main(arguments: list[str]) -> None:
    parts = read_result(RESULT)["value"] if RESULT.exists() else {}
    for each in arguments:
        name, _, place = each.partition("=")
        if name not in COMMANDS or not place:
            raise SystemExit(f"expected NAME=FILE with a name of {', '.join(COMMANDS)}, got {each!r}")
        file, _, commit = place.partition("@")
        parts[name] = part_of(Path(file), commit)
    ordered = {name: parts[name] for name in COMMANDS if name in parts}
    write_result(
        RESULT,
        ordered,
        command="; ".join(COMMANDS[name] for name in ordered),
        seeds=sorted({seed for name in ordered for seed in SEEDS[name]}),
        origins=[part["origin"] for part in ordered.values()],
        note=NOTE,
    )
    missing = [name for name in COMMANDS if name not in ordered]
    print(f"wrote {RESULT.name}" + (f"; not measured: {', '.join(missing)}" if missing else ""))


if __name__ == "__main__":
    main(sys.argv[1:])
