"""Measure host time in eager steps, where the GPU waits; writes results/gpu_host.json.

    PYTHONPATH=src python benchmarks/gpu_host.py --out results    # one H200, ten seconds

``nothing`` is a Python autograd function that only allocates its results: a lower bound. ``one thread`` keeps the
backward pass in the calling thread. The launch is that of the smallest kernel, through Triton's binder and cached, as
the package does it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from gpu_pooling import EPSILON, MU, ROWS, Problem, arguments_of, average, certificate, eager_time
from gspool.functional.kernels import dispatch, distance, launch, plan

if TYPE_CHECKING:
    from torch import Tensor


class _Nothing(torch.autograd.Function):
    """Allocate results and gradients."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, prototypes: Tensor) -> Tensor:
        ctx.save_for_backward(tokens, prototypes)
        return tokens.new_empty((tokens.shape[0], tokens.shape[2]))

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(saved) for saved in ctx.saved_tensors)


def measure(problem: Problem) -> dict[str, float]:
    """Time whole steps, and the two passes by themselves."""
    pools = {"gap": average, "nothing": _Nothing.apply, "gsp": problem.gsp}
    times = {name: eager_time(lambda p=p: problem.step(p)) for name, p in pools.items()}
    with torch.autograd.set_multithreading_enabled(False):
        for name, p in pools.items():
            times[f"{name}, one thread"] = eager_time(lambda p=p: problem.step(p))
    times["gsp, forward"] = eager_time(lambda: problem.gsp(problem.tokens, problem.prototypes))
    inputs = (problem.tokens.detach(), problem.prototypes.detach(), None, 0.3, None, 5.0, None, False, "tf32x3", 1)
    kept = dispatch.pool_forward(*inputs)[3:]
    wanted = (problem.incoming, None, None, True, True, False, False)
    times["gsp, forward kernels"] = eager_time(lambda: dispatch.pool_forward(*inputs))
    times["gsp, backward kernels"] = eager_time(lambda: dispatch.pool_backward(*inputs, *kept, *wanted))
    return times


def one_launch(problem: Problem) -> dict[str, float]:
    """Time the kernel that clips the prototypes, started in both ways."""
    settings = plan.Settings(None, MU, None, EPSILON, None, False, "tf32x3")
    tokens, prototypes = problem.tokens.detach(), problem.prototypes.detach()
    (*_, kept, clipped), prepared = launch.pool_forward(tokens, prototypes, settings, 1)
    M, D = prototypes.shape
    fixed = {"BD": 1024, "PARTS": prepared.kind.parts, "num_warps": 4}
    kernel = distance.clip_prototypes_kernel
    return {
        "Triton's binder": eager_time(
            lambda: kernel[(M,)](prototypes, kept, clipped, prepared.layout.norms_at, M, D, **fixed)
        ),
        "prepared": eager_time(lambda: prepared.clip(prototypes, kept, clipped)),
    }


def main() -> None:
    arguments = arguments_of(__doc__)
    result = certificate("PYTHONPATH=src python benchmarks/gpu_host.py --out results") | {"host": []}
    result["one launch"] = one_launch(Problem(ROWS[0], "bfloat16", "channels last"))
    for size in ROWS[:3]:
        record = {"version": "present", "size": size, "kind": "bfloat16", "layout": "channels last"}
        result["host"].append(record | {"times": measure(Problem(size, "bfloat16", "channels last"))})
        print(result["host"][-1], flush=True)
    (arguments.out / "gpu_host.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
