"""Time by number of steps k, as in the figure of the paper; writes results/gpu_iterations.json.

    PYTHONPATH=src python benchmarks/gpu_iterations.py --out results    # one H200, ten seconds

The transport alone, forward and backward, eager, for 32 images of 64 tokens and 64 prototypes: the published iteration
differentiated automatically, the same with the closed-form gradient, and the exact solver, which has no k.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from gpu_pooling import EPSILON, MU, arguments_of, certificate, eager_time
from gspool.functional import partial_transport
from gspool.functional.published import closed_form_transport, fixed_point_transport

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = (1, 5, 10, 25, 50, 100)


def main() -> None:
    arguments = arguments_of(__doc__)
    cost = torch.rand(32, 64, 64, generator=torch.Generator("cuda").manual_seed(0), device="cuda").requires_grad_()

    def timed(transport: Callable[..., Any], *last: int, **options: str) -> float:
        def step() -> None:
            cost.grad = None
            residual, plan = transport(cost, MU, EPSILON, *last, **options)
            (residual.square().sum() + plan.square().sum()).backward()

        return eager_time(step, 10)

    result = certificate("PYTHONPATH=src python benchmarks/gpu_iterations.py --out results")
    result["exact"] = {name: timed(partial_transport, backend=name) for name in ("torch", "triton")}
    result["steps"] = [
        {
            "steps": steps,
            "unrolled": timed(fixed_point_transport, steps),
            "closed form": timed(closed_form_transport, steps),
        }
        for steps in STEPS
    ]
    print(result, flush=True)
    (arguments.out / "gpu_iterations.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
