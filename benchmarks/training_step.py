"""Images per second of the training loop on data like CUB: ResNet50, crops on the device, GAP and GSP, compiled or not.

    python benchmarks/training_step.py --device cuda --out results/training_step.json      # one GPU, two minutes
    python benchmarks/training_step.py --steps 2 --side 64 --out /tmp/step.json            # CPU; shows that it runs

Each row trains the settings of the paper's fair protocol with C2 (batches of 32, GSP with the zero-shot
regularisation) on random images, which cost the same as pictures. The first steps, in which kernels are chosen and
prototypes set, are not timed.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

from gspool.experiments.retrieval_training import Variant, train_config
from gspool.provenance import write_result
from gspool.training.build import build_loss, build_model
from gspool.training.gpu_data import TensorSet
from gspool.training.launch import make_fabric
from gspool.training.loop import run_loop
from gspool.training.metric_learning import MetricLearning

CLASSES, IMAGES = 32, 256
# Prototypes are set after two steps instead of 32: until then GSP only averages.
VARIANTS = {"gap": Variant("c2", "gap"), "gsp": Variant("c2", "gsp", options={"warm_start": 64})}
WARM_UP = 20


def measure(pooling: str, compiled: bool, device: str, side: int, steps: int) -> dict[str, Any]:
    """Train some steps and return how many images of them a second makes."""
    gpu = torch.device(device).type == "cuda"
    precision = "bf16-mixed" if gpu else "32-true"
    config = train_config(VARIANTS[pooling], "cub", "fair", "keras/resnet50", None, 0, precision)
    config.trainer.accelerator, config.trainer.progress = "gpu" if gpu else "cpu", False
    config.trainer.monitor_split = "none"
    torch.manual_seed(0)
    pixels = torch.randint(256, (IMAGES, 3, side * 9 // 8, side * 3 // 2), dtype=torch.uint8, device=device)
    labels = torch.arange(CLASSES).repeat_interleave(IMAGES // CLASSES)
    images = TensorSet.of(pixels, labels, transform="crop", size=side)
    fabric = make_fabric(config.trainer)
    model = build_model(config).to(device, memory_format=torch.channels_last if gpu else torch.contiguous_format)
    if compiled:
        model.backbone.compile()
    seconds = 0.0
    for count in (min(WARM_UP, steps + 2), steps):
        config.trainer.max_steps = config.trainer.evaluate_every = count
        loss = build_loss(config.loss, CLASSES, model.out_dim, config.data.batch_size, 0)
        task = MetricLearning(model, loss, config, images, fabric=fabric)
        seconds = run_loop(task, fabric, config.trainer, config.schedule).training_seconds
    made = steps * config.data.batch_size
    return {
        "pooling": pooling,
        "compile": compiled,
        "images_per_second": round(made / seconds, 1),
        "milliseconds": round(1000 * seconds / steps, 2),
    }


def main() -> None:
    """Measure every row and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=200, help="timed steps of a row")
    parser.add_argument("--side", type=int, default=227, help="height and width of a crop")
    parser.add_argument(
        "--compile", choices=("both", "off"), default="both", help="whether to measure torch.compile too"
    )
    chosen = parser.parse_args()
    compiled = (False, True) if chosen.compile == "both" else (False,)
    rows = [
        measure(pooling, each, chosen.device, chosen.side, chosen.steps) for each in compiled for pooling in VARIANTS
    ]
    value = {"backbone": "keras/resnet50", "batch": 32, "side": chosen.side, "steps": chosen.steps, "rows": rows}
    command = shlex.join(["python", "benchmarks/training_step.py", *sys.argv[1:]])
    write_result(chosen.out, value, command=command, seeds=[0], device=chosen.device)
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
