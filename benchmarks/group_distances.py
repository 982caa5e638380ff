"""Time GSP with groups of prototypes by plain operations and by kernels.

    PYTHONPATH=src python benchmarks/group_distances.py --device cuda --out results/group_distances_gpu.json

Forward and backward of the layer, by the clock and launched as in training, at the sizes of the frozen studies. Both
ways must agree before they are timed.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

from gspool import GSP
from gspool.bench.timing import Step, in_turns
from gspool.provenance import write_result

# Images, tokens, channels, prototypes, groups.
SIZES = (
    (128, 64, 128, 32, 8),
    (128, 196, 128, 8, 8),
    (128, 196, 128, 32, 8),
    (128, 256, 384, 32, 8),
    (128, 256, 384, 32, 32),
    (128, 1024, 384, 32, 8),
    (128, 1024, 384, 32, 32),
    (64, 1024, 768, 64, 64),
)
BACKENDS = {"plain": "torch", "kernels": "triton"}
# Of float32 against float32; products in TF32 would be off by 3e-4.
TOLERANCE = 1e-4


def step(size: tuple[int, ...], backend: str, dtype: torch.dtype, device: str) -> Step:
    """Return forward and backward of a layer; the same weights and tokens for every backend."""
    images, tokens, channels, prototypes, groups = size
    torch.manual_seed(0)
    layer = GSP(channels, prototypes=prototypes, groups=groups, mu=0.03, epsilon=20.0, backend=backend).to(device)
    return Step(layer, torch.randn(images, tokens, channels, device=device, dtype=dtype), dtype)


def difference(size: tuple[int, ...], device: str) -> float:
    """Return the largest relative difference from the plain way in float32: output and gradients."""
    found = []
    for backend in BACKENDS.values():
        one = step(size, backend, torch.float32, device)
        torch.manual_seed(1)
        output = one.forward()
        output.backward(torch.randn_like(output))
        found.append((output.detach(), one.inputs.grad, one.module.prototypes.grad))
    return max(
        float((own - other).norm() / own.norm())
        for each in found[1:]
        for own, other in zip(found[0], each, strict=True)
    )


def measure(size: tuple[int, ...], device: str, repeats: int) -> dict[str, Any]:
    """Compare and time the ways at one size, in mixed precision on a GPU."""
    error = difference(size, device)
    if not error < TOLERANCE:
        raise RuntimeError(f"the ways differ by {error:.1e} at {size}: nothing to time")
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    steps = {name: step(size, backend, dtype, device) for name, backend in BACKENDS.items()}
    times = {
        name: statistics.median(each) for name, each in in_turns(steps, torch.device(device), repeats=repeats).items()
    }
    return {
        "size": size,
        "difference": error,
        "milliseconds": {name: round(each, 3) for name, each in times.items()},
        "speedup": round(times["plain"] / times["kernels"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeats", type=int, default=50)
    chosen = parser.parse_args()
    rows = []
    for size in SIZES:
        rows.append(measure(size, chosen.device, chosen.repeats))
        print(rows[-1], flush=True)
    command = shlex.join(["python", "benchmarks/group_distances.py", *sys.argv[1:]])
    write_result(chosen.out, {"rows": rows}, command=command, seeds=[0], device=chosen.device)


if __name__ == "__main__":
    main()
