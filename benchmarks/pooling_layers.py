"""Every pooling layer side by side: parameters, operations, output size, and time relative to average pooling.

    python benchmarks/pooling_layers.py --out results/pooling_layers_cpu.json                     # a few minutes
    python benchmarks/pooling_layers.py --device cuda --out results/pooling_layers_h200.json      # one minute

Each layer pools the same batch of feature maps, forward and backward, in training mode; all layers take turns in one
process and the median is reported. Operations are those of matrix products and convolutions, forward.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from gspool import pooling
from gspool.bench.timing import Step, in_turns
from gspool.provenance import write_result

# Layers with several sizes in the paper's table.
SEVERAL: dict[str, dict[str, dict[str, Any]]] = {
    "otp": {"otp (8x16)": {"prototypes": 8, "token_dim": 16}, "otp (64x128)": {"prototypes": 64, "token_dim": 128}},
    "vlad": {"vlad (8x16)": {"prototypes": 8, "token_dim": 16}, "vlad (64x128)": {"prototypes": 64, "token_dim": 128}},
    "tfm": {f"tfm ({layers})": {"layers": layers} for layers in (1, 2, 4, 8)},
}


def layers(dim: int) -> dict[str, pooling.PoolingLayer]:
    """Return every layer of the registry in all its sizes."""
    made = {}
    for name in pooling.list():
        for title, options in SEVERAL.get(name, {name: {}}).items():
            made[title] = pooling.create(name, dim, **options).train()
    return made


def operations(layer: pooling.PoolingLayer, features: torch.Tensor) -> int:
    """Count the operations of one image's forward pass; a product counts a multiplication and an addition."""
    with FlopCounterMode(display=False) as counter:
        layer(features)
    return counter.get_total_flops() // features.shape[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--size", type=int, default=7, help="height and width of the feature map")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    # Positive, as after the last ReLU of a backbone.
    features = torch.randn(arguments.images, arguments.dim, arguments.size, arguments.size, device=device).relu()
    made = layers(arguments.dim)
    # Counted on the CPU, because the counter cannot see inside a fused kernel.
    counted = {name: operations(layer, features[:2].cpu()) for name, layer in made.items()}
    made = {name: layer.to(device) for name, layer in made.items()}
    steps = {name: Step(layer, features) for name, layer in made.items()}
    times = in_turns(steps, device, repeats=arguments.repeats)
    medians = {name: statistics.median(each) for name, each in times.items()}
    rows = [
        {
            "layer": name,
            "parameters": sum(parameter.numel() for parameter in layer.parameters()),
            "output": layer.out_dim,
            "Mflop per image": round(counted[name] / 1e6, 3),
            "ms": round(medians[name], 3),
            "times GAP": round(medians[name] / medians["gap"], 2),
        }
        for name, layer in made.items()
    ]
    for row in rows:
        print(row)
    command = (
        f"python benchmarks/pooling_layers.py --device {device.type} --images {arguments.images} "
        f"--dim {arguments.dim} --size {arguments.size} --repeats {arguments.repeats}"
    )
    write_result(arguments.out, rows, command=command, seeds=[0], libraries=["timm"], device=device)


if __name__ == "__main__":
    main()
