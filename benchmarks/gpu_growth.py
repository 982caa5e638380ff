"""Time GSP by number of tokens, prototypes, channels and images; writes results/gpu_growth.json.

    PYTHONPATH=src python benchmarks/gpu_growth.py --out results    # one H200, a minute, most of it compiling

Compares GSP (bfloat16, channels last), average pooling, timm's attention pooling and the published algorithm (100
steps, float32), forward and backward. The first three are replays of CUDA graphs, GPU time alone; the published
algorithm is timed eagerly, and only if its tensors of size B x M x N are below 2 GB.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from timm.layers import AttentionPoolLatent

from gpu_pooling import (
    Problem,
    WrongResultError,
    arguments_of,
    average,
    certificate,
    compile_together,
    eager_time,
    graph_time,
    published,
    warm_up,
)

GROWTH = {
    "n": [(32, 256, n, 64) for n in (49, 196, 784, 3136, 16384)],
    "m": [(64, 512, 196, m) for m in (16, 64, 256, 1024)],
    "d": [(64, d, 196, 64) for d in (64, 256, 1024, 4096)],
    "B": [(b, 512, 49, 64) for b in (1, 16, 128, 1024)],
}


def measure(size: tuple[int, int, int, int]) -> dict[str, Any]:
    """Time all four at one size (B, D, N, M); GSP is checked first."""
    images, channels, tokens, prototypes = size
    problem = Problem(size, "bfloat16", "channels last")
    try:
        problem.check("bfloat16")
    except WrongResultError as error:
        return {"size": size, "wrong": str(error)}
    point: dict[str, Any] = {"size": size}
    point["gap"] = graph_time(lambda: problem.step(average), 10)
    point["gsp"] = graph_time(lambda: problem.step(problem.gsp), 10)
    attention = AttentionPoolLatent(channels, num_heads=8).to("cuda", torch.bfloat16)

    def attend(features: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        attention.zero_grad()
        pooled: torch.Tensor = attention(features)
        return pooled

    point["attention"] = graph_time(lambda: problem.step(attend), 10)
    if images * tokens * prototypes <= 2**27:
        wide = Problem(size, "float32", "channels last")
        point["published"] = eager_time(lambda: wide.step(published), 3)
    return point


def main() -> None:
    arguments = arguments_of(__doc__)
    if arguments.warm is not None:
        sizes = [(size, "bfloat16", "channels last") for points in GROWTH.values() for size in points]
        warm_up(sizes, arguments.warm, arguments.compilers)
        return
    compile_together(__file__, arguments.compilers)
    result = certificate("PYTHONPATH=src python benchmarks/gpu_growth.py --out results") | {"growth": {}}
    for axis, sizes in GROWTH.items():
        result["growth"][axis] = []
        for size in sizes:
            result["growth"][axis].append(measure(size))
            print(axis, result["growth"][axis][-1], flush=True)
            (arguments.out / "gpu_growth.json").write_text(json.dumps(result, indent=1) + "\n")
    wrong = [point["wrong"] for points in result["growth"].values() for point in points if "wrong" in point]
    if wrong:
        raise SystemExit("not timed because of wrong results: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
