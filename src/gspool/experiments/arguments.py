"""Options of `gspool reproduce`: comma-separated lists, devices, executors, and folders that must not be mixed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gspool.provenance import is_quick, read_result
from gspool.terminal.status import WrongArgumentsError


def numbers_of(text: str, what: str) -> tuple[int, ...]:
    """Read comma-separated whole numbers from 0 on, each of them once."""
    if not text.strip():
        return ()
    try:
        found = tuple(int(word) for word in text.split(","))
    except ValueError as wrong:
        raise WrongArgumentsError(f"{what} are comma-separated whole numbers such as 0,1,2, got {text!r}") from wrong
    if min(found) < 0:
        raise WrongArgumentsError(f"{what} are counted from 0, got {min(found)} in {text!r}")
    # The same run would count twice in a mean, and make its deviation too small.
    refuse_twice(sorted(found), what, text)
    return found


def names_of(text: str, what: str) -> tuple[str, ...]:
    """Read comma-separated names, each of them once."""
    found = tuple(word.strip() for word in text.split(",") if word.strip())
    refuse_twice(found, what, text)
    return found


def refuse_twice(found: Sequence[object], what: str, text: str) -> None:
    """Refuse a list, ``what`` in the plural, typed as ``text``, in which something appears twice."""
    twice = [each for each in dict.fromkeys(found) if found.count(each) > 1]
    if twice:
        raise WrongArgumentsError(f"{what} must differ, got {', '.join(map(str, twice))} more than once in {text!r}")


def executor_options(namespace: Any) -> dict[str, Any]:
    """Check and return the options of the executor."""
    chosen = {name: namespace[name] for name in ("processes", "ray", "gpus", "seconds")}
    if chosen["processes"] < 1:
        raise ValueError(f"--processes is the number of trainings at a time, at least 1, got {chosen['processes']}")
    for name, meaning in (("gpus", "the GPUs of one training"), ("seconds", "a time limit, 0 for none")):
        if not 0 <= chosen[name] < float("inf"):
            raise ValueError(f"--{name} is {meaning}, got {chosen[name]:g}")
    if chosen["gpus"] and chosen["ray"] is None:
        raise ValueError("--gpus shares the GPUs of a Ray cluster; add --ray, or use --processes on one machine")
    return chosen


def device_of(asked: str | None, name: str, on_gpu: bool = True) -> str:
    """Return the device that was asked for, or a GPU if there is one and the experiment can use it."""
    there = available_devices()
    if not on_gpu and asked not in (None, "cpu"):
        raise ValueError(f"{name} runs on the CPU only, got --device {asked}")
    if asked is None:
        return "cuda" if on_gpu and "cuda" in there else "cpu"
    if asked not in there:
        raise ValueError(f"there is no device {asked!r} here; available: {', '.join(there)}")
    return asked


def available_devices() -> list[str]:
    """Return the devices of this machine: the CPU, every GPU that CUDA finds, Apple's."""
    import torch

    apple = ["mps"] if torch.backends.mps.is_available() else []
    found = [f"cuda:{number}" for number in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return ["cpu", *(["cuda", *found] if found else []), *apple]


def refuse_measured(results: Path) -> None:
    """Refuse to write a tiny version among measured results."""
    for path in sorted(results.glob("*.json")):
        try:
            record = read_result(path)
        except ValueError:
            continue
        if not is_quick(record):
            raise ValueError(
                f"--quick measures nothing, and {results} holds measured results ({path.name}); remove --results, or "
                "give another folder"
            )
