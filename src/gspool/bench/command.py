"""`gspool bench`: what a pooling layer costs here, as a table and as JSON."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from gspool.bench.arguments import parse, settings_of
from gspool.bench.layer_words import read_layers, with_backends
from gspool.bench.measure import measure
from gspool.bench.record import check_place, write_record
from gspool.bench.table import shown
from gspool.terminal.status import checking_arguments, run_told


def run(command: str, arguments: Sequence[str]) -> int:
    """Run the command and give its exit status.

    Example:
        >>> run("bench", ["--layers", "no-such-layer"])
        2
    """
    return run_told(f"gspool {command}", bench_command, arguments)


def bench_command(arguments: Sequence[str]) -> None:
    """Measure, show a table, and write the numbers if a file was named.

    Raises:
        WrongArgumentsError: if a value cannot be.
        ValueError: as `measure`, and if the file cannot be written.
        SystemExit: for wrong arguments and after ``--help``.
    """
    given = parse(arguments)
    out = None if given.out is None else Path(given.out)
    with checking_arguments():
        settings = settings_of(given)
        with_backends(read_layers(settings.layers), settings.backend)
    if out is not None:
        check_place(out)
    if given.threads is not None:
        torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    if sys.stderr.isatty():
        line = ProgressLine()
        measured = measure(settings, line.show)
        line.clear()
    else:
        measured = measure(settings)
    print(shown(measured))
    if out is not None:
        write_record(out, measured, shlex.join(["gspool", "bench", *arguments]))
        print(f"written {out}", file=sys.stderr)


class ProgressLine:
    """One line that says how far the measurement is, written over; not on stdout, which holds the answer."""

    def __init__(self) -> None:
        self.shown = ""

    def show(self, title: str, done: float) -> None:
        """Show the whole percent; writing at every round would take time beside short ones."""
        line = f"timing {title}: {int(100 * done)} %"
        if line != self.shown:
            self.shown = line
            self._write(line)

    def clear(self) -> None:
        """Leave an empty line behind."""
        self._write("")

    def _write(self, text: str) -> None:
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
