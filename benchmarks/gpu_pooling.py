"""Time GSP on a GPU beside average pooling, the published algorithm and the floor; writes results/gpu_pooling.json.

    PYTHONPATH=src python benchmarks/gpu_pooling.py --out results    # one H200, about 3 minutes

Every setting is checked against the plain version in float64 before it is timed; a wrong one is not timed but ends the
run. Times are medians in microseconds, forward and backward together. ``eager`` is measured by the wall clock and
includes everything that PyTorch and Python do; ``graph`` is the replay of a CUDA graph: the GPU's share alone.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gspool.functional import gsp_pool
from gspool.functional.published import closed_form_transport, fixed_point_transport
from gspool.functional.transport import partial_transport

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

MU, EPSILON = 0.3, 5.0
# Images, channels, tokens, prototypes.
ROWS = [(32, 128, 64, 64), (128, 512, 49, 64), (112, 2048, 49, 128), (64, 768, 256, 128), (64, 768, 1024, 128)]
ROWS.append((256, 512, 196, 128))
KINDS = {
    "float32": (torch.float32, "exact"),
    "tf32": (torch.float32, "tf32"),
    "bfloat16": (torch.bfloat16, "exact"),
    "bfloat16, one product": (torch.bfloat16, "tf32"),
}
LAYOUTS = ("channels first", "channels last")
# Largest error, as a part of the largest value, of weights, of token gradients and of prototype gradients.
ALLOWED = {
    "float32": (5e-6, 5e-6, 1e-5),
    "tf32": (5e-4, 5e-4, 5e-3),
    "bfloat16": (5e-5, 1e-2, 1e-2),
    "bfloat16, one product": (5e-3, 1e-2, 1e-2),
}
GROWTH = {
    "n": [(32, 256, n, 64) for n in (49, 196, 784, 3136, 16384)],
    "m": [(64, 512, 196, m) for m in (16, 64, 256, 1024)],
    "d": [(64, d, 196, 64) for d in (64, 256, 1024, 4096)],
    "B": [(b, 512, 49, 64) for b in (1, 16, 128, 1024)],
}


class Problem:
    """Tokens, prototypes and an incoming gradient of one size."""

    def __init__(self, size: tuple[int, int, int, int], kind: str, layout: str) -> None:
        images, channels, tokens, prototypes = size
        dtype, self.precision = KINDS[kind]
        generator = torch.Generator("cuda").manual_seed(0)
        first = layout == "channels first"
        shape = (images, channels, tokens) if first else (images, tokens, channels)
        features = torch.randn(shape, generator=generator, device="cuda").mul_(channels**-0.5).to(dtype)
        self.features = features.requires_grad_()
        self.first = first
        weight = torch.randn(prototypes, channels, generator=generator, device="cuda") * channels**-0.5
        self.prototypes = weight.requires_grad_()
        self.incoming = torch.randn(images, channels, generator=generator, device="cuda").to(dtype)

    @property
    def tokens(self) -> Tensor:
        """The features as tokens [B, N, D], a view."""
        return self.features.transpose(1, 2) if self.first else self.features

    def step(self, pool: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Go forward and backward once."""
        self.features.grad = self.prototypes.grad = None
        pool(self.tokens, self.prototypes).backward(self.incoming)

    def gsp(self, tokens: Tensor, prototypes: Tensor) -> Tensor:
        """Pool by the kernels."""
        return gsp_pool(tokens, prototypes, MU, EPSILON, backend="triton", precision=self.precision).pooled

    def check(self, kind: str) -> None:
        """Compare with the plain version in float64 on the first images; end the run if it disagrees."""
        few = slice(0, 4)
        wide = self.tokens[few].detach().double().requires_grad_()
        exact = self.prototypes.detach().double().requires_grad_()
        truth = gsp_pool(wide, exact, MU, EPSILON, backend="torch")
        truth.pooled.backward(self.incoming[few].double())
        tokens = self.tokens[few].detach().requires_grad_()
        prototypes = self.prototypes.detach().requires_grad_()
        out = gsp_pool(tokens, prototypes, MU, EPSILON, backend="triton", precision=self.precision)
        out.pooled.backward(self.incoming[few])
        pairs = ((out.weights, truth.weights), (tokens.grad, wide.grad), (prototypes.grad, exact.grad))
        for (ours, theirs), allowed in zip(pairs, ALLOWED[kind], strict=True):
            error = float((ours.detach().double() - theirs.detach()).abs().max() / theirs.detach().abs().max())
            if not error <= allowed:
                raise SystemExit(
                    f"{kind}, {tuple(self.tokens.shape)}: error {error:.1e} above {allowed:.1e}; not timed"
                )


def average(tokens: Tensor, prototypes: Tensor) -> Tensor:
    return tokens.mean(1)


def plain(tokens: Tensor, prototypes: Tensor) -> Tensor:
    return gsp_pool(tokens, prototypes, MU, EPSILON, backend="torch").pooled


def published(tokens: Tensor, prototypes: Tensor) -> Tensor:
    """Clip, cdist, 100 steps of the fixed point with its closed-form gradient, weighted sum."""
    clipped, centres = (x / x.norm(dim=-1, keepdim=True).clamp_min(1) for x in (tokens, prototypes))
    cost = torch.cdist(centres, clipped)
    residual, _ = closed_form_transport(cost, MU, EPSILON, 100)
    weights = (1 / tokens.shape[1] - residual) / MU
    return torch.einsum("bn,bnd->bd", weights, tokens)


def eager_time(step: Callable[[], None], repeats: int = 30) -> float:
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(repeats):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / repeats * 1e6)
    return round(statistics.median(times), 1)


def graph_time(step: Callable[[], Any], repeats: int = 20) -> float:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    times = []
    for _ in range(repeats + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return round(statistics.median(times[3:]), 1)


def extra_memory(problem: Problem, pool: Callable[[Tensor, Tensor], Tensor]) -> float:
    """Peak memory of a step beyond the inputs and their gradients, as a part of the features."""
    problem.step(pool)
    gradients = sum(t.numel() * t.element_size() for t in (problem.features, problem.prototypes) if t.grad is not None)
    problem.features.grad = problem.prototypes.grad = None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    problem.step(pool)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before - gradients
    return round(peak / (problem.features.numel() * problem.features.element_size()), 4)


def bandwidth() -> float:
    """Measure device-to-device copying in bytes a microsecond, read and written."""
    source = torch.randn(2**29, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / graph_time(lambda: target.copy_(source), 5)


def floors(problem: Problem, kind: str, speed: float) -> dict[str, float]:
    """The traffic floor (read, read again backward, write the gradient) and cuBLAS for the three products."""
    tokens = problem.tokens.detach().flatten(0, 1)
    size = tokens.numel() * tokens.element_size()
    prototypes = problem.prototypes.detach().to(tokens.dtype)
    pulls = torch.randn(tokens.shape[0], prototypes.shape[0], device="cuda").to(tokens.dtype)
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"

    def products() -> None:
        tokens @ prototypes.t()
        pulls @ prototypes
        pulls.t() @ tokens

    cublas = graph_time(products)
    torch.backends.cuda.matmul.allow_tf32 = False
    return {"traffic": round(3 * size / speed, 1), "cublas": cublas}


def measure_row(size: tuple[int, int, int, int], kind: str, layout: str, speed: float) -> dict[str, Any]:
    problem = Problem(size, kind, layout)
    problem.check(kind)
    row: dict[str, Any] = {"size": size, "kind": kind, "layout": layout, "floor": floors(problem, kind, speed)}
    row["eager"] = {
        name: eager_time(lambda p=p: problem.step(p)) for name, p in (("gap", average), ("gsp", problem.gsp))
    }
    row["graph"] = {
        name: graph_time(lambda p=p: problem.step(p)) for name, p in (("gap", average), ("gsp", problem.gsp))
    }
    row["extra memory"] = {"gsp": extra_memory(problem, problem.gsp)}
    if kind == "float32" and layout == "channels first":
        row["eager"]["published"] = eager_time(lambda: problem.step(published), 5)
        row["eager"]["plain"] = eager_time(lambda: problem.step(plain), 10)
        row["extra memory"]["published"] = extra_memory(problem, published)
        row["extra memory"]["plain"] = extra_memory(problem, plain)
    return row


def measure_growth(size: tuple[int, int, int, int]) -> dict[str, Any]:
    problem = Problem(size, "bfloat16", "channels last")
    problem.check("bfloat16")
    point: dict[str, Any] = {"size": size, "gap": graph_time(lambda: problem.step(average))}
    point["gsp"] = graph_time(lambda: problem.step(problem.gsp))
    images, _, tokens, prototypes = size
    if images * tokens * prototypes <= 2**27:
        wide = Problem(size, "float32", "channels last")
        point["published"] = eager_time(lambda: wide.step(published), 3)
    return point


def measure_steps() -> list[dict[str, Any]]:
    """The paper's figure: time against the number of steps, unrolled and in closed form, beside the exact solver."""
    points = []
    for steps in (1, 5, 10, 25, 50, 100):
        cost = torch.rand(32, 64, 64, device="cuda").requires_grad_()

        def step(transport: Callable[..., Any], *last: int, cost: Tensor = cost) -> None:
            cost.grad = None
            residual, plan = transport(cost, MU, EPSILON, *last)
            (residual.square().sum() + plan.square().sum()).backward()

        points.append(
            {
                "steps": steps,
                "unrolled": eager_time(lambda s=steps: step(fixed_point_transport, s), 10),
                "closed form": eager_time(lambda s=steps: step(closed_form_transport, s), 10),
                "exact": eager_time(lambda: step(partial_transport), 10),
            }
        )
    return points


def warm_up(part: int, parts: int) -> None:
    """Compile kernels of every ``parts``-th setting, so that many processes fill Triton's cache together."""
    settings = [(size, kind, layout) for size in ROWS for kind in KINDS for layout in LAYOUTS]
    settings += [(size, "bfloat16", "channels last") for sizes in GROWTH.values() for size in sizes]
    for size, kind, layout in settings[part::parts]:
        problem = Problem((min(size[0], 4), *size[1:]), kind, layout)
        problem.step(problem.gsp)
    torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for gpu_pooling.json")
    parser.add_argument("--compilers", type=int, default=16, help="processes that compile kernels first")
    parser.add_argument("--warm", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.warm is not None:
        warm_up(arguments.warm, arguments.compilers)
        return
    command = [sys.executable, __file__, "--compilers", str(arguments.compilers), "--warm"]
    workers = [subprocess.Popen([*command, str(part)]) for part in range(arguments.compilers)]
    if any(worker.wait() for worker in workers):
        raise SystemExit("a compiling process failed; its error stands above")
    speed = bandwidth()
    result: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": "PYTHONPATH=src python benchmarks/gpu_pooling.py --out results",
        "device": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "triton": __import__("triton").__version__, "cuda": torch.version.cuda}
        | {"python": platform.python_version()},
        "settings": {"mu": MU, "epsilon": EPSILON, "seed": 0},
        "copy TB/s": round(speed / 1e6, 2),
        "rows": [],
        "growth": {},
        "steps": [],
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "gpu_pooling.json"
    for layout in LAYOUTS:
        for kind in KINDS:
            for size in ROWS:
                result["rows"].append(measure_row(size, kind, layout, speed))
                row = result["rows"][-1]
                print(layout, kind, size, row["eager"], row["graph"], row["floor"], row["extra memory"], flush=True)
                path.write_text(json.dumps(result, indent=1) + "\n")
    result["steps"] = measure_steps()
    for axis, sizes in GROWTH.items():
        result["growth"][axis] = [measure_growth(size) for size in sizes]
        print(axis, result["growth"][axis], flush=True)
        path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
