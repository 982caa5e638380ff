"""`gspool bench`: measure what a pooling layer costs here, as a table and as JSON.

Options are read by Python's own parser, so that the command needs torch alone.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import torch

from gspool.bench.measure import Progress, measure
from gspool.bench.report import shown, write_record
from gspool.bench.settings import BACKENDS, DEFAULT_LAYERS, DTYPES, Settings, read_layers
from gspool.terminal.output import check_file_writable
from gspool.terminal.status import WrongArgumentsError, checking_arguments, refuse_below, run_told

PAGE = """
Measure what a pooling layer costs on this machine, at your shape, before you swap it in.

    gspool bench                                                  GAP, GMP, GeMean and GSP on a ResNet50's last map
    gspool bench --layers gsp gsp:prototypes=128 solar            other layers, with options
    gspool bench --batch 64 --channels 768 --size 14 16x8         your shape; several maps are measured one by one
    gspool bench --device cuda --dtype bfloat16 --backend all     GSP's kernels and its plain version
    gspool bench --layers gsp --model timm/resnet50 --batch 8     the layer's share of a whole network's step
    gspool bench --forward-only --out bench.json                  inference; the numbers as JSON as well

Layers take turns on the same features, after a warm-up. A row has the median time of a step, the range of the middle
80 %, images per second, the time relative to average pooling, and on a GPU the peak memory of a step beyond weights and
inputs. Training steps are forward and backward, without an optimiser; half types run under autocast, with weights in
float32. GSP's kernels are compared with float64 before they are timed.
"""
USAGE = "gspool bench [--layers NAME ...] [--size SIZE ...] [--model BACKBONE] [--OPTION VALUE ...]"
CLEAR_LINE = "\r\033[K"


def run(command: str, arguments: Sequence[str]) -> int:
    """Run the command and return its exit status.

    Example:
        >>> run("bench", ["--layers", "no-such-layer"])
        2
    """
    return run_told(f"gspool {command}", bench_command, arguments)


def bench_command(arguments: Sequence[str]) -> None:
    """Measure, print a table, and write the numbers if a file was named.

    Raises:
        WrongArgumentsError: if a value is out of range, or the file is not called .json.
        ValueError: as `measure`, and if the file cannot be written.
    """
    given = parse(arguments)
    out, threads = given.pop("out", None), given.pop("threads", None)
    refuse_below(1, threads=threads)
    with checking_arguments():
        settings = Settings(**given)
        read_layers(settings.layers, settings.backend)
    if out is not None:
        if Path(out).suffix != ".json":
            raise WrongArgumentsError(f"the numbers are written as a JSON file: name it NAME.json, got {out}")
        check_file_writable(out, "--out")
    if threads is not None:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    terminal = sys.stderr.isatty()
    measured = measure(settings, progress_line() if terminal else None)
    if terminal:
        print(CLEAR_LINE, end="", file=sys.stderr, flush=True)
    print(shown(measured))
    if out is not None:
        write_record(Path(out), measured, shlex.join(["gspool", "bench", *arguments]))
        print(f"written {out}", file=sys.stderr)


def progress_line() -> Progress:
    """Return a function that overwrites one line of progress; on stderr, because stdout holds the result."""
    last = ""

    def show(title: str, done: float) -> None:
        nonlocal last
        line = f"timing {title}: {int(100 * done)} %"
        # Whole percents only: writing at every round would take time from short ones.
        if line != last:
            last = line
            print(f"{CLEAR_LINE}{line}", end="", file=sys.stderr, flush=True)

    return show


class BenchParser(argparse.ArgumentParser):
    """A parser whose errors are one line with near names, without a page of usage."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and exit with status 2.

        Raises:
            SystemExit: always.
        """
        known = [flag for action in self._actions for flag in action.option_strings]
        unknown = re.findall(r"--[\w-]+", message) if message.startswith("unrecognized") else []
        near = [match for word in unknown for match in get_close_matches(word, known, n=1)]
        hint = f"\ndid you mean {' or '.join(dict.fromkeys(near))}?" if near else ""
        self.exit(2, f"{self.prog}: {message}{hint}\n{self.prog} --help lists every option.\n")
        raise SystemExit(2)


def read_size(text: str) -> tuple[int, int]:
    """Read a size, one number for a square or HEIGHTxWIDTH.

    Example:
        >>> read_size("7"), read_size("16x8")
        ((7, 7), (16, 8))
    """
    found = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"a size is a number, 7, or HEIGHTxWIDTH, 16x8, got {text!r}")
    return int(found[1]), int(found[2] or found[1])


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Read the options that were given, by the names of `Settings`.

    Raises:
        SystemExit: with status 2 for a wrong option or value, with status 0 after ``--help``.
    """
    parser = BenchParser(
        "gspool bench",
        USAGE,
        PAGE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        # What is not given is left to the defaults of the settings.
        argument_default=argparse.SUPPRESS,
    )
    usual = Settings()
    add = parser.add_argument
    add(
        "--layers",
        nargs="+",
        metavar="NAME[:OPTION=VALUE,...]",
        help=f"names of gspool.pooling.list(), or all ({' '.join(DEFAULT_LAYERS)}); gap is always measured",
    )
    add("--batch", type=int, help=f"images ({usual.batch})")
    add("--channels", type=int, help=f"channels of the feature map ({usual.channels}, or those of --model)")
    add(
        "--size",
        nargs="+",
        type=read_size,
        dest="sizes",
        help="sides of the map, 7 or 16x8, several allowed (7, or that of --model)",
    )
    add("--device", help="cpu, cuda, cuda:1 ... (a GPU if there is one)")
    add("--dtype", choices=[*DTYPES], help="type to compute in (float32)")
    add("--backend", choices=BACKENDS, help="of GSP; all compares those that can run (auto)")
    add("--channels-last", action="store_true", help="use the channels-last memory format")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--backward", action="store_true", help="training: forward and backward (this is the default)")
    mode.add_argument(
        "--forward-only", action="store_false", dest="backward", help="inference: forward, in evaluation mode"
    )
    time = parser.add_mutually_exclusive_group()
    time.add_argument("--seconds", type=float, help="how long to time each layer, five rounds at least (1)")
    time.add_argument("--repeats", type=int, help="time exactly this many rounds instead")
    add("--threads", type=int, help="CPU threads (torch's default)")
    add("--model", metavar="BACKBONE", help="put the layers after a backbone, timm/resnet50 for example")
    add("--pixels", type=read_size, metavar="SIZE", help="sides of its images (those its weights were trained with)")
    add("--out", metavar="FILE", help="also write the numbers to FILE.json, with device, commit and versions")
    given = vars(parser.parse_args(list(arguments)))
    if "model" in given and ("channels" in given or "sizes" in given):
        parser.error("--channels and --size are set by the model; leave them out, or leave out --model")
    for name in ("layers", "sizes"):
        if name in given:
            given[name] = tuple(dict.fromkeys(given[name]))
    return given
