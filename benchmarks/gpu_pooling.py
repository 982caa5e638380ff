"""Time GSP, average pooling, the published algorithm and the floor on a GPU; writes results/gpu_pooling.json.

    PYTHONPATH=src python benchmarks/gpu_pooling.py --out results    # one H200, about 2 minutes

Every setting is compared with the plain version in float64 before it is timed; a wrong one is not timed, and the run
fails at the end. Times are medians in microseconds, forward and backward together. ``eager`` is wall-clock time
including PyTorch and Python, ``one thread`` the same with the backward pass in the calling thread, ``compiled`` the
plain version under torch.compile; ``graph`` is the replay of a CUDA graph: GPU time alone.
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
from gspool.functional.published import closed_form_transport

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
# Largest error relative to the largest value, of weights, token gradients and prototype gradients.
ALLOWED = {
    "float32": (5e-6, 5e-6, 1e-5),
    "tf32": (5e-4, 5e-4, 5e-3),
    "bfloat16": (5e-5, 1e-2, 1e-2),
    "bfloat16, one product": (5e-3, 1e-2, 1e-2),
}


# Seconds after which no further row compiles the plain version.
COMPILING = 25


class WrongResultError(Exception):
    """The kernels disagree with the plain version."""


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
        """Run one forward and backward pass."""
        self.features.grad = self.prototypes.grad = None
        pool(self.tokens, self.prototypes).backward(self.incoming)

    def gsp(self, tokens: Tensor, prototypes: Tensor) -> Tensor:
        """Pool with the kernels."""
        return gsp_pool(tokens, prototypes, MU, EPSILON, backend="triton", precision=self.precision).pooled

    def check(self, kind: str) -> None:
        """Compare with the plain version in float64 on the first images.

        Raises:
            WrongResultError: if they disagree by more than `ALLOWED`.
        """
        few = slice(0, 4)
        wide = self.tokens[few].detach().double().requires_grad_()
        exact = self.prototypes.detach().double().requires_grad_()
        truth = gsp_pool(wide, exact, MU, EPSILON, backend="torch")
        truth.pooled.backward(self.incoming[few].double())
        # The kernels get all images, as in the timing; the loss uses the first ones.
        incoming = torch.zeros_like(self.incoming)
        incoming[few] = self.incoming[few]
        tokens = self.tokens.detach().requires_grad_()
        prototypes = self.prototypes.detach().requires_grad_()
        out = gsp_pool(tokens, prototypes, MU, EPSILON, backend="triton", precision=self.precision)
        out.pooled.backward(incoming)
        ours = (out.weights[few], tokens.grad[few], prototypes.grad)
        pairs = zip(ours, (truth.weights, wide.grad, exact.grad), strict=True)
        for (found, theirs), allowed in zip(pairs, ALLOWED[kind], strict=True):
            error = float((found.detach().double() - theirs.detach()).abs().max() / theirs.detach().abs().max())
            if not error <= allowed:
                raise WrongResultError(f"{kind}, {tuple(self.tokens.shape)}: error {error:.1e} above {allowed:.1e}")


def average(tokens: Tensor, prototypes: Tensor) -> Tensor:
    return tokens.mean(1)


def plain(tokens: Tensor, prototypes: Tensor) -> Tensor:
    return gsp_pool(tokens, prototypes, MU, EPSILON, backend="torch").pooled


def compiled_plain() -> Callable[[Tensor, Tensor], Tensor]:
    """Compile the plain version for one size."""
    torch._dynamo.reset()
    compiled: Callable[[Tensor, Tensor], Tensor] = torch.compile(plain, dynamic=False)
    return compiled


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
    """Return the peak memory of a step beyond the inputs and their gradients, relative to the features."""
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
    """Measure device-to-device copies in bytes per microsecond, read and written."""
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
    pools = {"gap": average, "gsp": problem.gsp}
    row["eager"] = {name: eager_time(lambda p=p: problem.step(p)) for name, p in pools.items()}
    with torch.autograd.set_multithreading_enabled(False):
        row["one thread"] = {name: eager_time(lambda p=p: problem.step(p)) for name, p in pools.items()}
    row["graph"] = {name: graph_time(lambda p=p: problem.step(p)) for name, p in pools.items()}
    row["extra memory"] = {"gsp": extra_memory(problem, problem.gsp)}
    row["kernels"] = kernel_times(lambda: problem.step(problem.gsp))
    if with_rivals(kind, layout):
        row["eager"]["published"] = eager_time(lambda: problem.step(published), 5)
        row["eager"]["plain"] = eager_time(lambda: problem.step(plain), 10)
        row["extra memory"]["published"] = extra_memory(problem, published)
        row["extra memory"]["plain"] = extra_memory(problem, plain)
    return row


def with_rivals(kind: str, layout: str) -> bool:
    """Return whether the published algorithm and the plain version are timed as well."""
    return kind == "float32" and layout == "channels first"


def measure_compiled(size: tuple[int, int, int, int]) -> float:
    problem = Problem(size, "float32", "channels first")
    pool = compiled_plain()
    return eager_time(lambda: problem.step(pool), 10)


def kernel_times(step: Callable[[], None], repeats: int = 3) -> dict[str, float]:
    """Sum the microseconds of each kernel over one step, from PyTorch's profiler."""
    step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profiler:
        for _ in range(repeats):
            step()
        torch.cuda.synchronize()
    times: dict[str, float] = {}
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and event.name.endswith("_kernel"):
            name = event.name.removesuffix("_kernel")
            times[name] = times.get(name, 0.0) + event.device_time / repeats
    return {name: round(value, 1) for name, value in times.items()}


def warm_up(settings: list[tuple[tuple[int, int, int, int], str, str]], part: int, parts: int) -> None:
    """Compile the kernels of every ``parts``-th setting, so that many processes fill Triton's cache together."""
    for size, kind, layout in settings[part::parts]:
        problem = Problem(size, kind, layout)
        problem.step(problem.gsp)
    torch.cuda.synchronize()


def compile_together(script: str, processes: int) -> None:
    """Run a script ``processes`` times with ``--warm`` and its part of the work."""
    command = [sys.executable, script, "--compilers", str(processes), "--warm"]
    workers = [subprocess.Popen([*command, str(part)]) for part in range(processes)]
    if any(worker.wait() for worker in workers):
        raise SystemExit("a compiling process failed; its error is above")


def certificate(command: str) -> dict[str, Any]:
    """Return where, when and with what the numbers were measured."""
    versions = {"torch": torch.__version__, "triton": __import__("triton").__version__, "cuda": torch.version.cuda}
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": command,
        "device": torch.cuda.get_device_name(),
        "versions": versions | {"python": platform.python_version()},
        "settings": {"mu": MU, "epsilon": EPSILON, "seed": 0},
    }


def arguments_of(description: str | None) -> argparse.Namespace:
    """Read the command line that the GPU benchmarks share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for the results")
    parser.add_argument("--compilers", type=int, default=16, help="processes that compile kernels first, 0 for none")
    parser.add_argument("--warm", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    return arguments


def main() -> None:
    arguments = arguments_of(__doc__)
    settings = [(size, kind, layout) for layout in LAYOUTS for kind in KINDS for size in ROWS]
    if arguments.warm is not None:
        # PyTorch's compiler caches on disk, as Triton does.
        for size in ROWS[arguments.warm :: arguments.compilers]:
            Problem(size, "float32", "channels first").step(compiled_plain())
        warm_up(settings, arguments.warm, arguments.compilers)
        return
    compile_together(__file__, arguments.compilers)
    speed = bandwidth()
    result = certificate("PYTHONPATH=src python benchmarks/gpu_pooling.py --out results")
    result |= {"copy TB/s": round(speed / 1e6, 2), "rows": [], "wrong": []}
    path = arguments.out / "gpu_pooling.json"
    for size, kind, layout in settings:
        try:
            row = measure_row(size, kind, layout, speed)
        except WrongResultError as error:
            result["wrong"].append(str(error))
            print("wrong:", error, flush=True)
            continue
        result["rows"].append(row)
        print(layout, kind, size, row["eager"], row["graph"], row["floor"], row["extra memory"], flush=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
    start = time.perf_counter()
    for row in result["rows"]:
        if with_rivals(row["kind"], row["layout"]) and time.perf_counter() - start < COMPILING:
            row["eager"]["compiled"] = measure_compiled(row["size"])
            print("plain, compiled", row["size"], row["eager"]["compiled"], flush=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    if result["wrong"]:
        raise SystemExit(f"{len(result['wrong'])} settings gave wrong results and were not timed")


if __name__ == "__main__":
    main()
