"""Time GSP on the CPU, the published algorithm, and a lower bound for any implementation.

    python benchmarks/cpu_pooling.py --out results/cpu_pooling.json      # about two minutes

Forward and backward of one pooling layer at three sizes; all variants take turns in one process, medians. The floor is
the three necessary matrix products (tokens x prototypes, and its two backward products) plus average pooling.
"Published" is Prop. 4.2 as printed, 100 steps, with the gradient of Prop. 4.3 and distances by matrix products; "sums
hoisted" moves its sum over prototypes out of the loop. Values and gradients are compared with the plain version before
anything is timed; a wrong result is not timed.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gspool.bench.timing import in_turns, keep_freed_pages
from gspool.functional import clip_norm, distance, gsp_pool, partial_transport
from gspool.functional.published import closed_form_transport, fixed_point_transport
from gspool.provenance import write_result

if TYPE_CHECKING:
    from collections.abc import Callable

MU, EPSILON, STEPS = 0.3, 5.0, 100
SIZES = [(32, 64, 128, 64), (32, 49, 512, 64), (16, 256, 768, 128)]


class Problem:
    """One size: its leaf tensors and the incoming gradients."""

    def __init__(self, images: int, tokens: int, dim: int, prototypes: int, near: bool = False) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randn(images, tokens, dim, generator=generator)
        self.prototypes = torch.randn(prototypes, dim, generator=generator) / dim**0.5
        if near:
            # As after k-center initialisation: prototypes that lie close to tokens, so that nothing can be skipped.
            self.prototypes = 0.9 * clip_norm(self.tokens.flatten(0, 1)[:prototypes])
        self.grad_pooled = torch.randn(images, dim, generator=generator)
        self.grad_attributes = torch.randn(images, prototypes, generator=generator)
        self.grad_cost = torch.randn(images * tokens, prototypes, generator=generator)

    def leaves(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return copies of tokens and prototypes that require gradients."""
        return self.tokens.clone().requires_grad_(), self.prototypes.clone().requires_grad_()

    def backward(self, pooled: torch.Tensor, attributes: torch.Tensor) -> None:
        """Backpropagate the incoming gradients through both outputs."""
        torch.autograd.backward([pooled, attributes], [self.grad_pooled, self.grad_attributes])


def product_distance(prototypes: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Compute distances by matrix products, with automatic differentiation."""
    f, w = clip_norm(tokens), clip_norm(prototypes)
    squared = f.square().sum(-1)[:, None, :] + w.square().sum(-1)[:, None] - 2 * w @ f.transpose(1, 2)
    return squared.clamp_min(1e-12).sqrt()


def cdist_distance(prototypes: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return torch.cdist(clip_norm(prototypes).expand(tokens.shape[0], -1, -1), clip_norm(tokens))


def from_transport(
    tokens: torch.Tensor, cost: torch.Tensor, solve: Callable[..., tuple[torch.Tensor, torch.Tensor]]
) -> tuple[torch.Tensor, torch.Tensor]:
    residual, plan = solve(cost, MU, EPSILON)
    weights = (1 / tokens.shape[1] - residual) / MU
    return torch.bmm(weights[:, None], tokens)[:, 0], plan.sum(-1) / MU


def variants(problem: Problem) -> dict[str, Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]]:
    def published(measure: Callable[..., torch.Tensor], transport: Callable[..., object]) -> Callable[..., object]:
        return lambda x, w: from_transport(x, measure(w, x), lambda c, m, e: transport(c, m, e, STEPS))

    def hoisted(c: torch.Tensor, m: float, e: float, steps: int) -> object:
        return closed_form_transport(c, m, e, steps, hoisted=True)

    def ours(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = gsp_pool(x, w, MU, EPSILON)
        return out.pooled, out.attributes

    return {
        "gsp": ours,
        "gsp, compiled": torch.compile(ours, fullgraph=True),
        "published": published(product_distance, closed_form_transport),
        "published, cdist": published(cdist_distance, closed_form_transport),
        "published, sums hoisted": published(product_distance, hoisted),
        "published, unrolled": published(product_distance, fixed_point_transport),
    }


def check(problem: Problem, name: str, run: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Check the result before it is timed."""
    results = []
    for function in (run, lambda x, w: from_transport(x, distance(w, x), partial_transport)):
        x, w = problem.leaves()
        x = x[:2].detach().requires_grad_()
        outputs = function(x, w)
        torch.autograd.backward(outputs, [problem.grad_pooled[:2], problem.grad_attributes[:2]])
        results.append((*outputs, x.grad, w.grad))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-4, msg=lambda text: f"{name} is wrong: {text}")


def floor(problem: Problem) -> Callable[[], None]:
    flat, prototypes, gradient = problem.tokens.flatten(0, 1), problem.prototypes, problem.grad_cost
    leaf = problem.tokens.clone().requires_grad_()

    def run() -> None:
        flat @ prototypes.t()
        gradient @ prototypes
        gradient.t() @ flat
        leaf.grad = None
        leaf.mean(1).backward(problem.grad_pooled)

    return run


def average(problem: Problem) -> Callable[[], None]:
    leaf = problem.tokens.clone().requires_grad_()

    def run() -> None:
        leaf.grad = None
        leaf.mean(1).backward(problem.grad_pooled)

    return run


def step(problem: Problem, function: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> Callable[[], None]:
    x, w = problem.leaves()

    def run() -> None:
        x.grad = w.grad = None
        problem.backward(*function(x, w))

    return run


def medians(runs: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    times = in_turns(runs, torch.device("cpu"), repeats=repeats)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/cpu_pooling.json"))
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_pages()
    rows = []
    for size in SIZES:
        problem, close = Problem(*size), Problem(*size, near=True)
        runs = {"floor": floor(problem), "gap": average(problem)}
        for name, function in variants(problem).items():
            check(problem, name, function)
            runs[name] = step(problem, function)
        close_run = variants(close)["gsp"]
        check(close, "gsp, tokens near prototypes", close_run)
        runs["gsp, tokens near prototypes"] = step(close, close_run)
        milliseconds = medians(runs, arguments.repeats)
        rows.append(
            {
                "images": size[0],
                "tokens": size[1],
                "dim": size[2],
                "prototypes": size[3],
                "milliseconds": {name: round(value, 3) for name, value in milliseconds.items()},
                "gsp_over_floor": round(milliseconds["gsp"] / milliseconds["floor"], 2),
                "compiled_over_floor": round(milliseconds["gsp, compiled"] / milliseconds["floor"], 2),
                "published_over_gsp": round(milliseconds["published"] / milliseconds["gsp"], 2),
                "published_hoisted_over_gsp": round(milliseconds["published, sums hoisted"] / milliseconds["gsp"], 2),
            }
        )
        print(rows[-1], flush=True)
    command = f"python benchmarks/cpu_pooling.py --threads {arguments.threads} --repeats {arguments.repeats}"
    write_result(arguments.out, rows, command=command, seeds=[0])


if __name__ == "__main__":
    main()
