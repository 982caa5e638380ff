"""Time GSP and GAP in a whole network, timm's ResNet50, compiled; writes results/gpu_resnet50.json.

    PYTHONPATH=src python benchmarks/gpu_resnet50.py --out results    # one H200, 90 seconds, most of it compiling

224 pixels, batch 64, channels last, bfloat16. Inference runs the network in bfloat16; a training step is forward under
autocast, cross-entropy, backward and SGD, with weights in float32. Both networks take turns of a few steps, so that
neither benefits from a cooler GPU or waits for the host; the median is reported.
"""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any

import timm
import torch

from gpu_pooling import arguments_of, certificate, compile_together, kernel_times
from gspool import GSP

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH, PIXELS, CLASSES, PROTOTYPES = 64, 224, 1000, 64
POOLS = ("gap", "gsp")
STEPS, ROUNDS = 5, 20
# The kernels of GSP in order; a network has many more.
KERNELS = ("clip_prototypes", "whole_image", "tile_affinity", "image_shares", "tile_sums", "image_sums")
KERNELS += ("pool_backward", "gradient_slice", "near_gradient", "prototype_gradient")


def resnet50(pool: str) -> torch.nn.Module:
    """Make a ResNet50 with random weights; only the pooling layer differs."""
    torch.manual_seed(0)
    model = timm.create_model("resnet50", pretrained=False, num_classes=CLASSES)
    if pool == "gsp":
        model.global_pool = GSP(model.num_features, PROTOTYPES, backend="triton")
    placed: torch.nn.Module = model.to("cuda", memory_format=torch.channels_last)
    return placed


def images(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(0)
    pixels = torch.randn(BATCH, 3, PIXELS, PIXELS, generator=generator, device="cuda")
    return pixels.to(dtype, memory_format=torch.channels_last)


def inference(pool: str) -> Callable[[], Any]:
    model = torch.compile(resnet50(pool).eval().bfloat16())
    batch = images(torch.bfloat16)

    @torch.inference_mode()
    def run() -> Any:
        return model(batch)

    return run


def training(pool: str) -> Callable[[], Any]:
    model = torch.compile(resnet50(pool).train())
    batch, labels = images(torch.float32), torch.arange(BATCH, device="cuda")
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def run() -> None:
        optimiser.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(batch), labels)
        loss.backward()
        optimiser.step()

    return run


def in_turns(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the median milliseconds per step of each; all take turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for count in range(ROUNDS + 2):
        for name, run in runs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(STEPS):
                run()
            end.record()
            end.synchronize()
            if count >= 2:
                times[name].append(start.elapsed_time(end) / STEPS)
    return {name: round(statistics.median(values), 3) for name, values in times.items()}


def main() -> None:
    arguments = arguments_of(__doc__)
    kinds = {"inference": inference, "training": training}
    jobs = [(make, pool) for make in kinds.values() for pool in POOLS]
    if arguments.warm is not None:
        # PyTorch's compiler caches on disk.
        for make, pool in jobs[arguments.warm :: arguments.compilers]:
            make(pool)()
        torch.cuda.synchronize()
        return
    compile_together(__file__, min(len(jobs), arguments.compilers))
    result = certificate("PYTHONPATH=src python benchmarks/gpu_resnet50.py --out results")
    result["versions"]["timm"] = timm.__version__
    network: dict[str, Any] = {"batch": BATCH, "pixels": PIXELS, "prototypes": PROTOTYPES}
    result["network"] = network | {"milliseconds": {}, "kernels": {}}
    for name, make in kinds.items():
        runs = {pool: make(pool) for pool in POOLS}
        result["network"]["milliseconds"][name] = in_turns(runs)
        times = kernel_times(runs["gsp"])
        result["network"]["kernels"][name] = {kernel: times[kernel] for kernel in KERNELS if kernel in times}
        print(name, result["network"]["milliseconds"][name], result["network"]["kernels"][name], flush=True)
        (arguments.out / "gpu_resnet50.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
