"""The options of `gspool bench`. Read by Python's own parser, so that the command needs torch alone."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

from gspool.bench.settings import BACKENDS, DEFAULT_LAYERS, DTYPES, Settings

PAGE = """
Measure what a pooling layer costs on this machine, at the shape it will have, before you swap it in.

    gspool bench                                                  GAP, GMP, GeMean and GSP, a ResNet50's last map
    gspool bench --layers gsp gsp:prototypes=128 solar            other layers, with options of their own
    gspool bench --batch 64 --channels 768 --size 14 16x8         your shape; several maps are measured one by one
    gspool bench --device cuda --dtype bfloat16 --backend all     GSP's kernels beside its plain version
    gspool bench --layers gsp --model timm/resnet50 --batch 8     what part of a whole network's step the layer takes
    gspool bench --forward-only --out bench.json                  inference; the numbers as JSON as well

Layers take turns on the same features, after rounds that are not counted. A row has the median of a step, between what
the middle 80 % of its times lie, images a second, the time relative to average pooling, and on a GPU the memory that a
step takes at its peak beyond weights and inputs. Training steps are forward and backward, without an optimiser; in a
half type under autocast, with weights in float32. GSP's kernels are compared with float64 before they are timed.
"""
USAGE = "gspool bench [--layers NAME ...] [--size SIZE ...] [--model BACKBONE] [--OPTION VALUE ...]"


class BenchParser(argparse.ArgumentParser):
    """A parser whose errors are a line about what is wrong, near names included, without a page of usage."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and leave with status 2.

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


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the options.

    Raises:
        SystemExit: with status 2 for a wrong option or value, with status 0 after ``--help``.
    """
    parser = BenchParser(
        "gspool bench", USAGE, PAGE, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    usual = Settings()
    add = parser.add_argument
    add(
        "--layers",
        nargs="+",
        default=[*DEFAULT_LAYERS],
        metavar="NAME[:OPTION=VALUE,...]",
        help=f"names of gspool.pooling.list(), or all ({' '.join(DEFAULT_LAYERS)}); gap is measured in any case",
    )
    add("--batch", type=int, default=usual.batch, help=f"images ({usual.batch})")
    add("--channels", type=int, help=f"channels of the feature map ({usual.channels}, or those of --model)")
    add(
        "--size", nargs="+", type=read_size, help="sides of the map, 7 or 16x8, several allowed (7, or that of --model)"
    )
    add("--device", help="cpu, cuda, cuda:1 ... (a GPU where there is one)")
    add("--dtype", choices=[*DTYPES], default=usual.dtype, help="what is computed in (float32)")
    add("--backend", choices=BACKENDS, default=usual.backend, help="of GSP; all compares those that can run (auto)")
    add("--channels-last", action="store_true", help="the channels of a place lie side by side in memory")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--backward", action="store_true", help="training: forward and backward (this is the default)")
    mode.add_argument("--forward-only", action="store_true", help="inference: forward, in evaluation mode")
    time = parser.add_mutually_exclusive_group()
    time.add_argument(
        "--seconds", type=float, default=usual.seconds, help="how long to time each layer, five rounds at least (1)"
    )
    time.add_argument("--repeats", type=int, help="time exactly so many rounds instead")
    add("--threads", type=int, help="threads of the CPU (what torch takes)")
    add("--model", metavar="BACKBONE", help="put the layers behind a backbone, timm/resnet50 for example")
    add("--pixels", type=read_size, metavar="SIZE", help="sides of its images (those its weights are made for)")
    add("--out", metavar="FILE", help="write the numbers to FILE.json too, with device, commit and versions")
    given = parser.parse_args(list(arguments))
    if given.model is not None and (given.channels is not None or given.size is not None):
        parser.error("--channels and --size are those of the model's own map; leave them out, or leave out --model")
    if given.pixels is not None and given.model is None:
        parser.error("--pixels is the size of a model's images: name one with --model, such as timm/resnet50")
    # `Settings` refuses them too, by the names they have in Python.
    for name in ("batch", "channels", "repeats", "threads"):
        count = getattr(given, name)
        if count is not None and count < 1:
            parser.error(f"--{name} must be at least 1, got {count}")
    if not 0 < given.seconds < float("inf"):
        parser.error(f"--seconds is how long each layer is timed and must be positive, got {given.seconds}")
    return given


def settings_of(given: argparse.Namespace) -> Settings:
    """Turn options into settings.

    Raises:
        ValueError: if a value cannot be.
    """
    usual = Settings()
    return Settings(
        layers=tuple(given.layers),
        batch=given.batch,
        channels=usual.channels if given.channels is None else given.channels,
        sizes=usual.sizes if given.size is None else tuple(dict.fromkeys(given.size)),
        device=given.device,
        dtype=given.dtype,
        backend=given.backend,
        backward=not given.forward_only,
        channels_last=given.channels_last,
        seconds=given.seconds,
        repeats=given.repeats,
        model=given.model,
        pixels=given.pixels,
    )
