"""Run `gspool embed`, `search`, `explain` and `serve`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

from gspool.terminal.status import run_told

# The function of a command has the name of its file.
COMMANDS = ("embed", "search", "explain", "serve")


def run(command: str, arguments: Sequence[str]) -> int:
    """Run a command and return its exit status."""
    name = f"{command}_command"
    # Each imports libraries of its own; a page of help should not wait for all of them.
    function: Callable[[Sequence[str]], None] = getattr(import_module(f"gspool.search.{name}"), name)
    return run_told(f"gspool {command}", function, arguments)
