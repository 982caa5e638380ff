"""One training step of the CUB benchmark on a GPU: how much each part of `gspool.experiments.resident` spares.

    python benchmarks/resident_step.py --out results/resident_step.json       # one GPU, best under NVIDIA's MPS
    python benchmarks/resident_step.py --processes 1,4,8 --seconds 20         # how many side by side
    python benchmarks/resident_step.py --device cpu --steps 2 --processes 1   # that it runs; measures nothing

Parts are switched on one after the other, in the order of the list below; each row has all those above it. Images are
random, which costs the same. Several processes make the steps of all parts beside each other for some seconds.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing

from gspool.experiments.benchmark.arms import Arm, settings_of
from gspool.experiments.certificate import write_result
from gspool.experiments.resident import ResidentSet, fold_frozen_norms, fuse_activations, fuse_stem
from gspool.experiments.resident.captured_learner import CapturedLearner, own_stream
from gspool.experiments.resident.step import Learner
from gspool.experiments.resident.views import BatchPlan, training_view
from gspool.training.build import build_loss, build_model

PARTS = ("as it is", "norms folded", "activations fused", "stem fused", "weights rounded together", "captured")
ARMS = {"gap": Arm("c2", "gap"), "gsp": Arm("c2", "gsp"), "gsp, without zsr": Arm("c2", "gsp", zsr=0.0)}
# Long enough for prototypes to be chosen, kernels to be compiled and the step to be captured.
WARM_UP = 45


class Bench:
    """A learner with the first so many parts switched on, and random images to learn from."""

    def __init__(self, arm: Arm, parts: int, device: torch.device, side: int) -> None:
        self.device, self.side = device, side
        precision = "bf16-mixed" if device.type == "cuda" else "32-true"
        self.settings = settings_of(arm, "cub", "fair", "keras/resnet50", None, 0, precision)
        torch.manual_seed(0)
        pixels = torch.randint(256, (256, 3, side * 9 // 8, side * 3 // 2), dtype=torch.uint8)
        self.images = ResidentSet.of(pixels.to(device), torch.arange(32).repeat_interleave(8).to(device))
        model = build_model(self.settings)
        on = PARTS[1 : 1 + parts]
        for name, switch in zip(PARTS[1:], (fold_frozen_norms, fuse_activations, fuse_stem), strict=False):
            if name in on:
                switch(model.backbone)
        model.freeze("batchnorm")
        loss = build_loss(self.settings.loss, 32, model.out_dim, self.settings.data.batch_size, 0)
        layout = {"memory_format": torch.channels_last} if device.type == "cuda" else {}
        kind = CapturedLearner if "captured" in on else Learner
        self.learner = kind(model.to(device, **layout), loss.to(device), self.settings).train()
        if "weights rounded together" not in on:
            self.learner._taken_together = lambda _: None  # type: ignore[method-assign]
        self.plan, self.step = BatchPlan(self.images, self.settings.data, 0), 0

    def make(self, steps: int) -> None:
        """Make some steps."""
        for _ in range(steps):
            places = self.plan.rows_on_cpu_of(self.step)
            seen = training_view(self.images, places, self.settings.data, self.side, 0, self.step)
            self.learner.learn(seen, self.images.labels[self.plan.rows_of(self.step)], self.step)
            self.step += 1

    def wait(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def milliseconds(arm: Arm, parts: int, device: torch.device, side: int, steps: int) -> float:
    """Time one step, alone on the device."""
    with own_stream(device):
        bench = Bench(arm, parts, device, side)
        bench.make(WARM_UP if device.type == "cuda" else 1)
        bench.wait()
        started = time.perf_counter()
        bench.make(steps)
        bench.wait()
        return 1000 * (time.perf_counter() - started) / steps


def _beside_others(name: str, device: str, side: int, seconds: float, begin: Any, answers: Any) -> None:
    torch.set_num_threads(1)
    with own_stream(torch.device(device)):
        bench = Bench(ARMS[name], len(PARTS), torch.device(device), side)
        bench.make(WARM_UP if device != "cpu" else 1)
        bench.wait()
        begin.wait()
        before, started = bench.step, time.perf_counter()
        while time.perf_counter() - started < seconds:
            bench.make(10 if device != "cpu" else 1)
            bench.wait()
        made = bench.step - before
        answers.put(made * bench.settings.data.batch_size / (time.perf_counter() - started))


def images_per_second(name: str, processes: int, device: str, side: int, seconds: float) -> float:
    """Sum the speed of several trainings side by side."""
    context = multiprocessing.get_context("spawn")
    begin, answers = context.Barrier(processes), context.Queue()
    arguments = (name, device, side, seconds, begin, answers)
    crew = [context.Process(target=_beside_others, args=arguments) for _ in range(processes)]
    for each in crew:
        each.start()
    found = [answers.get(timeout=seconds + 300) for _ in crew]
    for each in crew:
        each.join()
    return float(sum(found))


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=60, help="steps that are timed")
    parser.add_argument("--side", type=int, default=227, help="pixels of a crop")
    parser.add_argument("--processes", default="1,4,8,12", help="trainings side by side; empty for none")
    parser.add_argument("--seconds", type=float, default=12.0, help="how long they are timed")
    parser.add_argument("--out", type=Path, default=None)
    chosen = parser.parse_args()
    device = torch.device(chosen.device)
    rows: list[dict[str, Any]] = []
    for parts, name in enumerate(PARTS):
        row: dict[str, Any] = {"parts": name}
        for arm in ARMS:
            row[arm] = milliseconds(ARMS[arm], parts, device, chosen.side, chosen.steps)
        rows.append(row)
        print(name, {arm: f"{row[arm]:.2f} ms" for arm in ARMS}, flush=True)
    together: list[dict[str, Any]] = []
    for count in [int(word) for word in chosen.processes.split(",") if word]:
        speeds = {arm: images_per_second(arm, count, chosen.device, chosen.side, chosen.seconds) for arm in ARMS}
        together.append({"processes": count, **speeds})
        print(f"{count} side by side", {arm: f"{speed:.0f} images/s" for arm, speed in speeds.items()}, flush=True)
    if chosen.out is not None:
        command = f"python benchmarks/resident_step.py --processes {chosen.processes} --steps {chosen.steps}"
        value = {"milliseconds": rows, "images_per_second": together, "batch": 32, "side": chosen.side}
        write_result(chosen.out, value, command=command, seeds=[0], device=device)


if __name__ == "__main__":
    main()
