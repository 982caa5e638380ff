"""What GSP adds to a whole network: timm's ResNet50, compiled; writes results/gpu_resnet50.json.

    PYTHONPATH=src python benchmarks/gpu_resnet50.py --out results    # one H200, two minutes, most of it compiling

224 pixels, batch 64, channels last, bfloat16. Inference runs the network in bfloat16; a training step is forward under
autocast, cross-entropy, backward and SGD, with weights in float32. Both networks take turns, so that neither profits
from a cooler GPU; the median counts.
"""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any

import timm
import torch

from gpu_pooling import arguments_of, certificate
from gspool import GSP

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH, PIXELS, CLASSES, PROTOTYPES = 64, 224, 1000, 64
POOLS = ("gap", "gsp")


def network(pool: str) -> torch.nn.Module:
    """Make a ResNet50 with random weights; only the pooling layer differs."""
    torch.manual_seed(0)
    model = timm.create_model("resnet50", pretrained=False, num_classes=CLASSES)
    if pool == "gsp":
        model.global_pool = GSP(model.num_features, PROTOTYPES)
    placed: torch.nn.Module = model.to("cuda", memory_format=torch.channels_last)
    return placed


def images(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(0)
    pixels = torch.randn(BATCH, 3, PIXELS, PIXELS, generator=generator, device="cuda")
    return pixels.to(dtype, memory_format=torch.channels_last)


def inference(pool: str) -> Callable[[], Any]:
    model = torch.compile(network(pool).eval().bfloat16())
    batch = images(torch.bfloat16)

    @torch.inference_mode()
    def run() -> Any:
        return model(batch)

    return run


def training(pool: str) -> Callable[[], Any]:
    model = torch.compile(network(pool).train())
    batch, labels = images(torch.float32), torch.arange(BATCH, device="cuda")
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def run() -> None:
        optimiser.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(batch), labels)
        loss.backward()
        optimiser.step()

    return run


def in_turns(runs: dict[str, Callable[[], Any]], rounds: int = 40) -> dict[str, float]:
    """Give the median milliseconds of each, all taking turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for count in range(rounds + 5):
        for name, run in runs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            end.synchronize()
            if count >= 5:
                times[name].append(start.elapsed_time(end))
    return {name: round(statistics.median(values), 3) for name, values in times.items()}


def main() -> None:
    arguments = arguments_of(__doc__)
    kinds = {"inference": inference, "training": training}
    if arguments.warm is not None:
        make = list(kinds.values())[arguments.warm // len(POOLS)]
        make(POOLS[arguments.warm % len(POOLS)])()
        return
    result = certificate("PYTHONPATH=src python benchmarks/gpu_resnet50.py --out results")
    result["versions"]["timm"] = timm.__version__
    result["network"] = {"batch": BATCH, "pixels": PIXELS, "prototypes": PROTOTYPES, "milliseconds": {}}
    for name, make in kinds.items():
        result["network"]["milliseconds"][name] = in_turns({pool: make(pool) for pool in POOLS})
        print(name, result["network"]["milliseconds"][name], flush=True)
        (arguments.out / "gpu_resnet50.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
