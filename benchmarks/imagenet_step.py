"""Time training steps of the ImageNet recipes with GAP and GSP, and compute what a training costs (docs/imagenet.md).

    PYTHONPATH=src python benchmarks/imagenet_step.py --compile      # one H200, minutes
    PYTHONPATH=src python benchmarks/imagenet_step.py --device cpu --batch 2 --pixels 64 --steps 1 --out step.json

The steps are those of the engine (`gspool.training.loop`) with the settings of the preset: forward in bf16, loss,
backward, optimiser, EMA. Images are random, of the size of the training, and stay on the device: what a loader costs is
not in it. Each block of steps is timed, and the median is reported. ``hours_on_8`` assumes that eight devices take an
eighth of the time of one with a batch of this size each, and that loading keeps up.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from gspool.data import ArrayImages, ImageSet
from gspool.provenance import write_result
from gspool.training.loop import run_loop
from gspool.training.metric_learning import MetricLearning, build_loss, build_model
from gspool.training.presets import IMAGENET_BATCH, preset
from gspool.training.processes import make_fabric
from gspool.training.run import variants_of
from gspool.training.stream import Batch

PRESETS = ("paper/imagenet-resnetv2-50", "paper/imagenet-efficientnetv2-b3")
CLASSES, BLOCKS = 1_000, 5


class TimedSteps(MetricLearning):
    """The task of a recipe on one batch that stays on the device; blocks of steps are timed, the first is a warm-up."""

    def __init__(self, *arguments: Any, batch: Batch, block: int) -> None:
        super().__init__(*arguments)
        self.batch, self.block, self.times = batch, block, []

    def batches(self, first: int, last: int) -> Iterable[Batch]:
        """Return the same batch for every step."""
        return [self.batch] * (last - first)

    def before_step(self, step: int) -> None:
        """Note the time at the beginning of a block."""
        super().before_step(step)
        if step % self.block == 0:
            if self.batch.images.is_cuda:
                torch.cuda.synchronize()
            self.times.append(time.perf_counter())


def measure(name: str, pooling: str, size: int, compiled: bool, chosen: argparse.Namespace) -> dict[str, Any]:
    """Time one network with one pooling layer."""
    config = preset(name)
    epochs = config.trainer.max_steps // config.trainer.evaluate_every
    config.baseline = None if pooling == config.model.pooling else pooling
    config = variants_of(config, Path())[-1].config
    trainer = config.trainer
    # One step more than the blocks: its beginning ends the last of them.
    trainer.max_steps = trainer.evaluate_every = trainer.log_every = (BLOCKS + 1) * chosen.steps + 1
    trainer.progress = False
    config.data.classes_per_batch = size
    device = torch.device(chosen.device)
    model = build_model(config).to(device)
    if compiled:
        model.backbone.compile()
    if device.type == "cuda":
        model.to(memory_format=torch.channels_last)
        torch.cuda.reset_peak_memory_stats()
    pixels = chosen.pixels or config.data.transform_options.get("size", model.pixels.size)
    images = torch.randint(256, (size, 3, pixels, pixels), dtype=torch.uint8)
    labels = torch.arange(size) % CLASSES
    data = ImageSet(ArrayImages(images), labels, [str(label) for label in range(CLASSES)], name="noise")
    batch = Batch(images.to(device), labels.to(device), torch.arange(size))
    fabric = make_fabric(trainer, device=device)
    loss = build_loss(config.loss, CLASSES, model.out_dim, size, trainer.seed)
    task = TimedSteps(model, loss, config, data, None, fabric, batch=batch, block=chosen.steps)
    run_loop(task, fabric, trainer, config.schedule)
    seconds = [end - begin for begin, end in zip(task.times[1:], task.times[2:], strict=False)]
    rate = size * chosen.steps / statistics.median(seconds)
    seen = epochs * (preset(name).trainer.evaluate_every * IMAGENET_BATCH)
    return {
        "backbone": config.model.backbone.removeprefix("timm/"),
        "pooling": pooling,
        "batch": size,
        "pixels": pixels,
        "compiled": "yes" if compiled else "no",
        "images_per_second": round(rate, 1),
        "memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if device.type == "cuda" else None,
        "epochs": epochs,
        "device_hours": round(seen / rate / 3_600, 1),
        "hours_on_8": round(seen / rate / 3_600 / 8, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/imagenet_step.json"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--batch", type=int, nargs="+", default=[128], help="images of a step; 128 is that of 8 devices"
    )
    parser.add_argument("--pixels", type=int, default=None, help="side of the images instead of the recipe's")
    parser.add_argument("--steps", type=int, default=20, help=f"steps of a block; {BLOCKS} blocks after a warm-up")
    parser.add_argument("--compile", action="store_true", help="also with compiled backbones")
    chosen = parser.parse_args()
    rows = []
    command = shlex.join(["python", "benchmarks/imagenet_step.py", *sys.argv[1:]])
    libraries = ["timm", "lightning-fabric"]
    # Compiled last, and written after every row: compiling takes minutes.
    for compiled, name, pooling, size in itertools.product(
        (False, True) if chosen.compile else (False,), PRESETS, ("gap", "gsp"), chosen.batch
    ):
        rows.append(measure(name, pooling, size, compiled, chosen))
        print(rows[-1], flush=True)
        value = {"precision": preset(PRESETS[0]).trainer.precision, "rows": rows}
        write_result(chosen.out, value, command=command, seeds=[0], libraries=libraries, device=chosen.device)


if __name__ == "__main__":
    main()
