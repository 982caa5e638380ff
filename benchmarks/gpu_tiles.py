"""Sweep the tiles of the kernels on a GPU; writes results/gpu_tiles.json.

    PYTHONPATH=src python benchmarks/gpu_tiles.py --out results    # one H200, a minute, most of it compiling

Each entry times one pass of one setting with one choice of tiles: tokens per tile, warps, buffers of the pipeline, and
channels per step. Backward, ``pulls`` is the kernel that writes the pulls and ``slices`` the one whose programs own
slices of the channels; if both are None, one kernel computes both gradients. ``difference`` is the largest difference
from the setting's first choice, relative to the largest value, which would show a race.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gpu_pooling import KINDS, ROWS, Problem, arguments_of, certificate, compile_together, graph_time, kernel_times
from gspool.functional.kernels import dispatch, launch, plan
from gspool.functional.kernels.dispatch import DOT_PRECISION

if TYPE_CHECKING:
    from collections.abc import Callable

Tile = tuple[int, ...]
# The package's own rule, which trials replace.
choose_tiling = plan.choose_tiling
FIRST, LAST = "channels first", "channels last"
# Row of `ROWS`, kind, layout.
SETTINGS = [(4, "bfloat16", LAST), (4, "bfloat16", FIRST), (5, "bfloat16", FIRST), (5, "bfloat16", LAST)]
SETTINGS += [(2, "bfloat16", FIRST), (2, "bfloat16", LAST), (4, "float32", FIRST), (4, "float32", LAST)]
SETTINGS += [(2, "float32", FIRST), (1, "bfloat16", LAST), (1, "float32", FIRST), (4, "tf32", LAST), (2, "tf32", LAST)]
SETTINGS += [(3, "bfloat16", LAST)]


class Choice(NamedTuple):
    """One choice of tiles: (tokens, warps, buffers, channels), and without channels for slices."""

    forward: Tile
    pulls: Tile | None = None
    slices: Tile | None = None


def choices(row: int, kind: str) -> tuple[list[Choice], list[Choice]]:
    """Give what to try forward and backward."""
    step = 64 if kind == "bfloat16" else 32
    large = row > 2
    if kind == "float32":
        forward = [(64, 4, 1, step), (128, 8, 1, step), (64, 4, 3, step)]
        if not large:
            forward = [(64, 4, 1, step), (64, 4, 1, 2 * step), (64, 8, 1, step)]
        pulls, slices = [(64, 8, 1, step), (64, 4, 1, step)], [(64, 8, 1)]
    else:
        forward = [(64, 4, 3, step), (128, 8, 3, step), (128, 8, 2, step)]
        if not large:
            forward = [(64, 4, 3, step), (64, 8, 3, step), (64, 4, 4, step), (64, 4, 2, 2 * step)]
        pulls = [(64, 4, 2, step), (64, 4, 3, step), (64, 8, 2, step) if large else (64, 8, 2, 2 * step)]
        slices = [(64, 8, 2), (64, 8, 3)]
    backward = [Choice(forward[0], tile, slices[0]) for tile in pulls]
    backward += [Choice(forward[0], pulls[0], tile) for tile in slices[1:]]
    return [Choice(tile) for tile in forward], [*backward, Choice(forward[0])]


def jobs() -> list[tuple[int, str, str, str, Choice]]:
    listed = []
    for row, kind, layout in SETTINGS:
        for name, tried in zip(("forward", "backward"), choices(row, kind), strict=True):
            listed += [(row, kind, layout, name, choice) for choice in tried]
    return listed


def prescribe(choice: Choice) -> None:
    """Put a choice in the place of the rule that the package follows."""

    def cut(tokens: int, prototypes: int, tile: Tile) -> plan.Tiling:
        rows = min(tile[0], plan.power_of_two(tokens))
        channels = tile[3] if len(tile) > 3 else plan.SLICE
        columns = plan.power_of_two(prototypes)
        return plan.Tiling(rows, columns, channels, -(-tokens // rows), tile[1], tile[2])

    def choose(tokens: int, prototypes: int, *rest: bool) -> plan.Tiling:
        backward = rest[-1]
        return choose_tiling(tokens, prototypes, *rest) if backward else cut(tokens, prototypes, choice.forward)

    replaced: dict[str, Any] = {"choose_tiling": choose, "slices_are_worth_it": lambda *_: choice.slices is not None}
    if choice.pulls is not None and choice.slices is not None:
        replaced["pull_tiling"] = lambda tokens, prototypes, *_: cut(tokens, prototypes, choice.pulls)
        by_slice: Any = lambda tokens, prototypes, *_: cut(tokens, prototypes, choice.slices)  # noqa: E731
        launch.slice_tiling = by_slice
    for name, rule in replaced.items():
        setattr(plan, name, rule)
    launch.plan_forward.cache_clear()
    launch.plan_backward.cache_clear()


def passes(row: int, kind: str, layout: str) -> dict[str, Callable[[], Any]]:
    """Give the two passes of a setting as functions."""
    problem = Problem(ROWS[row], kind, layout)
    precision = DOT_PRECISION[KINDS[kind][1]]
    inputs = (problem.tokens.detach(), problem.prototypes.detach(), None, 0.3, None, 5.0, None, False, precision, 1)
    kept = dispatch.pool_forward(*inputs)[3:]
    wanted = (problem.incoming, None, None, True, True, False, False)
    return {
        "forward": lambda: dispatch.pool_forward(*inputs),
        "backward": lambda: dispatch.pool_backward(*inputs, *kept, *wanted),
    }


def main() -> None:
    arguments = arguments_of(__doc__)
    listed = jobs()
    if arguments.warm is not None:
        for row, kind, layout, name, choice in listed[arguments.warm :: arguments.compilers]:
            prescribe(choice)
            passes(row, kind, layout)[name]()
        torch.cuda.synchronize()
        return
    compile_together(__file__, arguments.compilers)
    result = certificate("PYTHONPATH=src python benchmarks/gpu_tiles.py --out results") | {"trials": []}
    first: dict[tuple[Any, ...], list[torch.Tensor]] = {}
    for row, kind, layout, name, choice in listed:
        prescribe(choice)
        run = passes(row, kind, layout)[name]
        seen = [tensor.double() for tensor in run()[: 3 if name == "forward" else 2]]
        known = first.setdefault((row, kind, layout, name), seen)
        result["trials"].append(
            {"size": ROWS[row], "kind": kind, "layout": layout, "pass": name, "tile": choice._asdict()}
            | {"graph": graph_time(run, 8), "kernels": kernel_times(run)}
            | {"difference": max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(seen, known, strict=True))}
        )
        print(result["trials"][-1], flush=True)
        (arguments.out / "gpu_tiles.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
