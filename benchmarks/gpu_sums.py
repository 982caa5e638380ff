"""Compare two ways to sum tokens by weight, and deeper pipelines, on a GPU; writes results/gpu_sums.json.

    PYTHONPATH=src python benchmarks/gpu_sums.py --out results    # one H200, a minute, most of it compiling

``product`` sums on the tensor cores, ``reduce`` by a reduction over the threads of a tile. Each entry times
one pass of one setting with one choice; ``tile`` is (buffers of the pipeline, channels per step) if not the default,
``slices`` the buffers of the backward kernel whose programs own slices of the channels.
``error`` is the largest error of the pooled vectors against a float64 sum by the same weights, ``difference`` the
largest of all results in three runs against the setting's first choice, both relative to the largest value. A wrong
choice is not timed, and the run fails at the end.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gpu_pooling import (
    EPSILON,
    KINDS,
    LAYOUTS,
    MU,
    ROWS,
    Problem,
    arguments_of,
    certificate,
    compile_together,
    graph_time,
    kernel_times,
)
from gspool.functional.kernels import launch, plan
from gspool.functional.kernels.dispatch import DOT_PRECISION
from gspool.functional.kernels.plan import slice_tiling
from gspool.functional.results import Incoming, Wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

COMPARED = ("bfloat16", "tf32", "float32")
# Rows of `ROWS` with most to gain.
LARGEST = (4, 5)
# Largest error of a sum, and largest difference between two gradients: float32's own, and that of the output's dtype.
ALLOWED = {"bfloat16": (8e-3, 1e-2), "tf32": (3e-6, 1e-4), "float32": (3e-6, 1e-4)}
SETTINGS = plan.Settings(None, MU, None, EPSILON, None, False, "")
Setting = tuple[int, str, str]


class Choice(NamedTuple):
    """One choice: how tokens are summed, the pipeline (buffers, channels) of a pass, the buffers of its slices."""

    sums: str
    tile: tuple[int, int] | None = None
    slices: int | None = None


def choices(setting: Setting) -> dict[str, list[Choice]]:
    """Give what to try in each pass; the first is what the others are compared with."""
    row, kind, layout = setting
    tried = {"forward": [Choice("reduce"), Choice("product")]}
    if kind == "bfloat16" and row in LARGEST:
        # By product, three buffers of 64 channels leave room for one program a multiprocessor; these for two.
        tried["forward"] += [Choice("product", (2, 64)), Choice("product", (5, 32))]
    if kind == "tf32" and row in (2, *LARGEST):
        tried["forward"].append(Choice("reduce", (4, 32)))
    if kind == "float32" and row > 2 and layout == "channels first":
        tried["forward"].append(Choice("reduce", (3, 32)))
    # Tokens side by side, but not in a multiple of 16 bytes, take one kernel for both gradients, which has no room.
    if kind != "float32" and (row == 4 or (row == 5 and layout == "channels last")):
        deeper = Choice("reduce", (3, 64 if kind == "bfloat16" else 32))
        slices = (4, 5) if kind == "bfloat16" else (3,)
        tried["backward"] = [Choice("reduce"), deeper, *(Choice("reduce", slices=buffers) for buffers in slices)]
    return tried


def prescribe(choice: Choice, name: str) -> None:
    """Put a choice for the pass of that name in the place of the rules that the package follows."""

    def cut(kind: plan.Kind, backward: bool, sliced: bool) -> Any:
        tiling = plan.tiling_of(kind, backward, sliced)
        if choice.tile is None or backward != (name == "backward"):
            return tiling
        return tiling._replace(stages=choice.tile[0], channels=choice.tile[1])

    def cut_slices(*problem: Any) -> Any:
        tiling = slice_tiling(*problem)
        return tiling if choice.slices is None else tiling._replace(stages=choice.slices)

    for rule, replacement in (("tiling_of", cut), ("slice_tiling", cut_slices), ("sums_of", lambda _: choice.sums)):
        setattr(launch, rule, replacement)
    launch.plan_forward.cache_clear()
    launch.plan_backward.cache_clear()


class Passes:
    """Both passes of one setting, one by one."""

    def __init__(self, setting: Setting) -> None:
        row, kind, layout = setting
        problem = Problem(ROWS[row], kind, layout)
        self.tokens, self.prototypes = problem.tokens.detach(), problem.prototypes.detach()
        self.settings = SETTINGS._replace(precision=DOT_PRECISION[KINDS[kind][1]])
        self.incoming = Incoming(problem.incoming, None, None)
        self.saved: tuple[Tensor, ...] = ()

    def forward(self) -> tuple[Tensor, ...]:
        """Give pooled, weights, attributes and the sums that the backward pass would read."""
        (*results, kept, clipped), prepared = launch.pool_forward(self.tokens, self.prototypes, self.settings, 1)
        self.saved = (kept, clipped)
        layout, images = prepared.layout, self.tokens.shape[0]
        entries = kept[layout.images_at : layout.images_at + images * layout.image_stride].view(images, -1)
        return (*results, entries[:, plan.IMAGE_ENTRIES.value :])

    def backward(self) -> tuple[Tensor, ...]:
        """Give the gradients of tokens and prototypes."""
        wanted = Wanted(True, True, False, False)
        gradients = launch.pool_backward(
            self.tokens, self.prototypes, self.settings, 1, *self.saved, self.incoming, wanted
        )
        return tuple(gradient for gradient in gradients if gradient is not None)

    def error(self, pooled: Tensor, weights: Tensor) -> float:
        """Compare pooled vectors with a float64 sum by the same weights, image after image."""
        worst = 0.0
        for vector, weight, tokens in zip(pooled[:8], weights[:8], self.tokens[:8], strict=True):
            exact = weight.double() @ tokens.double()
            worst = max(worst, float((vector.double() - exact).abs().max() / exact.abs().max()))
        return worst


def difference(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> float:
    pairs = [(a.double(), b.double()) for a, b in zip(ours, theirs, strict=True) if b.numel()]
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def trials(setting: Setting) -> Iterator[dict[str, Any]]:
    """Check and time every choice of one setting."""
    row, kind, layout = setting
    passes = Passes(setting)
    for name, tried in choices(setting).items():
        first: tuple[Tensor, ...] | None = None
        for choice in tried:
            prescribe(choice, name)
            passes.forward()
            step: Callable[[], tuple[Tensor, ...]] = getattr(passes, name)
            # The next run may write where this one wrote.
            seen = tuple(tensor.clone() for tensor in step())
            first = seen if first is None else first
            trial: dict[str, Any] = {"size": ROWS[row], "kind": kind, "layout": layout, "pass": name}
            # A race shows in one run and not in another.
            apart = max(difference(again, first) for again in (seen, step(), step()))
            trial |= choice._asdict() | {"difference": apart}
            right = apart <= ALLOWED[kind][1]
            if name == "forward":
                trial["error"] = passes.error(*seen[:2])
                right = right and trial["error"] <= ALLOWED[kind][0]
            yield trial | ({"graph": graph_time(step, 8), "kernels": kernel_times(step)} if right else {"wrong": True})


def main() -> None:
    arguments = arguments_of(__doc__)
    listed = [(row, kind, layout) for row in reversed(range(len(ROWS))) for kind in COMPARED for layout in LAYOUTS]
    if arguments.warm is not None:
        for setting in listed[arguments.warm :: arguments.compilers]:
            passes = Passes(setting)
            for name, tried in choices(setting).items():
                for choice in tried:
                    prescribe(choice, name)
                    passes.forward()
                    getattr(passes, name)()
        torch.cuda.synchronize()
        return
    compile_together(__file__, arguments.compilers)
    result = certificate("PYTHONPATH=src python benchmarks/gpu_sums.py --out results") | {"trials": []}
    for setting in listed:
        for trial in trials(setting):
            result["trials"].append(trial)
            print(trial, flush=True)
            (arguments.out / "gpu_sums.json").write_text(json.dumps(result, indent=1) + "\n")
    wrong = sum("wrong" in trial for trial in result["trials"])
    if wrong:
        raise SystemExit(f"{wrong} choices gave wrong results; they are marked above")


if __name__ == "__main__":
    main()
