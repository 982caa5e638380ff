"""One training step of the CUB benchmark on a GPU: how much each part of `gspool.experiments.resident` spares.

    python benchmarks/resident_step.py --out results/resident_step.json       # one GPU, best under NVIDIA's MPS
    python benchmarks/resident_step.py --processes 1,4,8 --seconds 20         # how many side by side
    python benchmarks/resident_step.py --device cpu --steps 2 --processes 1   # that it runs; measures nothing

Parts are switched on one after the other, in the order of the list below; each row has all those above it. "wall" is
what a step takes by the clock, which a slow host decides until the step is captured; "busy" is how long the GPU works
in a step, the sum of its kernels and copies as PyTorch's profiler sees them, and None on a CPU. Images are random,
which costs the same. Several processes make the steps of all parts beside each other for some seconds.
"""

from __future__ import annotations

import argparse
import copy
import gc
import shlex
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing

from gspool.experiments.benchmark.arms import Arm, settings_of
from gspool.experiments.captured_step import STEPS_BEFORE_CAPTURE
from gspool.experiments.resident import ResidentSet, fold_frozen_norms, fuse_activations, fuse_stem
from gspool.experiments.resident.captured_learner import CapturedLearner, own_stream
from gspool.experiments.resident.step import Learner
from gspool.experiments.resident.views import BatchPlan, training_view
from gspool.models import Embedder
from gspool.provenance import write_result
from gspool.training import TrainConfig
from gspool.training.build import build_loss, build_model

PARTS = ("as it is", "norms folded", "activations fused", "stem fused", "weights rounded together", "captured")
# Prototypes are chosen after two steps instead of 32, since GSP only averages until then. The kernels stay the same.
SOON = {"warm_start": 64}
ARMS = {
    "gap": Arm("c2", "gap"),
    "gsp": Arm("c2", "gsp", pooling_options=SOON),
    "gsp, without zsr": Arm("c2", "gsp", pooling_options=SOON, zsr=0.0),
}
# Long enough for prototypes to be chosen, kernels to be compiled, the step to be captured and repeated a few times.
WARM_UP = STEPS_BEFORE_CAPTURE + 8
# Few, because a kernel takes the same time in every step, and reading what the profiler saw takes long.
PROFILED = 4


class Bench:
    """A learner with the first so many parts switched on, and random images to learn from."""

    def __init__(self, arm: str, parts: int, device: torch.device, side: int) -> None:
        self.device, self.side = device, side
        self.settings, built = settings_and_model(arm, "bf16-mixed" if device.type == "cuda" else "32-true")
        torch.manual_seed(0)
        pixels = torch.randint(256, (256, 3, side * 9 // 8, side * 3 // 2), dtype=torch.uint8, device=device)
        self.images = ResidentSet.of(pixels, torch.arange(32).repeat_interleave(8))
        model = copy.deepcopy(built)
        on = PARTS[1 : 1 + parts]
        for name, switch in zip(PARTS[1:], (fold_frozen_norms, fuse_activations, fuse_stem), strict=False):
            if name in on:
                switch(model.backbone)
        model.freeze("batchnorm")
        loss = build_loss(self.settings.loss, 32, model.out_dim, self.settings.data.batch_size, 0)
        layout: dict[str, Any] = {"memory_format": torch.channels_last} if device.type == "cuda" else {}
        kind = CapturedLearner if "captured" in on and device.type == "cuda" else Learner
        self.learner = kind(model.to(device, **layout), loss.to(device), self.settings).train()
        if "weights rounded together" not in on:
            self.learner._taken_together = lambda _: None  # type: ignore[method-assign,assignment]
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

    def warm_up(self) -> None:
        """Make steps until all that follow are alike."""
        self.make(WARM_UP if self.device.type == "cuda" else 1)
        self.wait()

    def wall(self, steps: int) -> float:
        """Give the milliseconds of a step by the clock."""
        started = time.perf_counter()
        self.make(steps)
        self.wait()
        return 1000 * (time.perf_counter() - started) / steps

    def busy(self) -> float:
        """Give the milliseconds that the GPU works in a step, whether or not it waits for the host in between."""
        # The first time only wakes the profiler up, which may miss kernels meanwhile.
        for steps in (1, PROFILED):
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profiler:
                self.make(steps)
                self.wait()
        # Ranges that PyTorch marks by name (a step of Adam) span kernels that are listed as well.
        seen = [each for each in profiler.events() if each.device_type == torch.autograd.DeviceType.CUDA]
        return sum(each.time_range.elapsed_us() for each in seen if not each.is_user_annotation) / 1000 / PROFILED


@cache
def settings_and_model(arm: str, precision: str) -> tuple[TrainConfig, Embedder]:
    """Build the model of an arm on the CPU, once: that takes longer than a copy."""
    settings = settings_of(ARMS[arm], "cub", "fair", "keras/resnet50", None, 0, precision)
    return settings, build_model(settings)


def milliseconds(device: torch.device, side: int, steps: int) -> list[dict[str, Any]]:
    """Time one step of every arm with more and more parts, alone on the device."""
    rows: list[dict[str, Any]] = [{"parts": name, "wall": {}, "busy": None} for name in PARTS]
    kept = []
    with own_stream(device):
        for parts, row in enumerate(rows):
            benches = {arm: Bench(arm, parts, device, side) for arm in ARMS}
            for arm, bench in benches.items():
                bench.warm_up()
                row["wall"][arm] = bench.wall(steps)
            _say(row, "wall")
            if device.type == "cuda":
                kept.append((row, benches))
        # Launches stay slower once a profiler has looked on, so it comes after everything that the clock times.
        for row, benches in kept:
            row["busy"] = {arm: bench.busy() for arm, bench in benches.items()}
            _say(row, "busy")
    return rows


def _say(row: dict[str, Any], what: str) -> None:
    print(f"{row['parts']}, {what}:", "; ".join(f"{arm} {ms:.2f} ms" for arm, ms in row[what].items()), flush=True)


def _beside_others(name: str, device: str, side: int, seconds: float, begin: Any, answers: Any) -> None:
    torch.set_num_threads(1)
    with own_stream(torch.device(device)):
        bench = Bench(name, len(PARTS), torch.device(device), side)
        bench.warm_up()
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
    rows = milliseconds(device, chosen.side, chosen.steps)
    # What was measured holds much of the GPU's memory, which the processes below need.
    gc.collect()
    torch.cuda.empty_cache()
    together: list[dict[str, Any]] = []
    for count in [int(word) for word in chosen.processes.split(",") if word]:
        speeds = {arm: images_per_second(arm, count, chosen.device, chosen.side, chosen.seconds) for arm in ARMS}
        together.append({"processes": count, **speeds})
        print(f"{count} side by side", {arm: f"{speed:.0f} images/s" for arm, speed in speeds.items()}, flush=True)
    if chosen.out is not None:
        options = ["--device", chosen.device, "--processes", chosen.processes, "--steps", str(chosen.steps)]
        command = shlex.join(["python", "benchmarks/resident_step.py", *options])
        value = {"milliseconds": rows, "images_per_second": together, "batch": 32, "side": chosen.side}
        write_result(chosen.out, value, command=command, seeds=[0], device=device)


if __name__ == "__main__":
    main()
