"""The section of a study in the report: one part for every data set and backbone that has a result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gspool.experiments.benchmark.arms import DATA
from gspool.experiments.experiment import NOT_RUN
from gspool.experiments.report import caption
from gspool.provenance import read_result


def study_sections(results: Path, study: str, write: Callable[[dict[str, Any], str], str]) -> str:
    """Write what the experiment promises, then other data and backbones, each under its name; `NOT_RUN` without any.

    Args:
        results: the folder of the results.
        study: what the result on CUB with the usual backbone is called; others add data and backbone to it.
        write: takes the value of a result and its name, which its picture shares.
    """
    names = [study, *(path.stem for path in results.glob(f"{study}_*.json"))]
    records = {name: read_result(results / f"{name}.json") for name in names if (results / f"{name}.json").is_file()}
    parts = []
    for name in sorted(records, key=lambda name: (name != study, DATA.index(records[name]["value"]["data"]), name)):
        value = records[name]["value"]
        head = [] if name == study else [f"**{value['data']}, {value['backbone']}.**"]
        parts += [*head, write(value, name), caption(name, records[name])]
    return "\n\n".join(parts) if parts else NOT_RUN
