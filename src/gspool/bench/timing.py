"""Time training or inference steps in turns, so that a slow moment of the machine affects all of them."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor, nn

HALF = (torch.bfloat16, torch.float16)
# Rounds that are not counted: caches fill, libraries choose their kernels, Triton compiles.
WARM_UP = 3
# A median and a spread of fewer say little.
LEAST_REPEATS = 5


class Step:
    """Forward and backward of a module without an optimiser, or inference.

    Training in a half type is mixed precision: weights stay float32, the forward pass runs under autocast. Inference
    is in evaluation mode, without a graph, with weights of the type. ``inputs_learn`` says whether the inputs of
    training need a gradient, as a layer's features do and a network's images do not.

    Example:
        >>> step = Step(torch.nn.Linear(4, 2), torch.ones(3, 4))
        >>> step()
        >>> step.inputs.grad.shape
        torch.Size([3, 4])
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: Tensor,
        dtype: torch.dtype = torch.float32,
        *,
        backward: bool = True,
        inputs_learn: bool = True,
    ) -> None:
        self.dtype, self.backward, self.mixed = dtype, backward, backward and dtype in HALF
        self.module = module.train(backward).to(torch.float32 if self.mixed else dtype)
        self.inputs = inputs.detach().clone().requires_grad_(inputs_learn) if backward else inputs
        self.incoming = torch.randn_like(self.forward()) if backward else None

    def forward(self) -> Tensor:
        """Run the forward pass."""
        # One of the two: a context costs microseconds, which count for a small layer.
        with (
            torch.autocast(self.inputs.device.type, self.dtype if self.mixed else torch.bfloat16, enabled=self.mixed)
            if self.backward
            else torch.inference_mode()
        ):
            output: Tensor = self.module(self.inputs)
            return output

    def forget(self) -> None:
        """Drop the gradients of the last step."""
        self.inputs.grad = None
        self.module.zero_grad()

    def __call__(self) -> None:
        """Run one step."""
        if self.backward:
            self.forget()
            self.forward().backward(self.incoming)
        else:
            self.forward()


class Spread(NamedTuple):
    """The median of some times and the range of the middle 80 % of them, in milliseconds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, times: list[float]) -> Spread:
        """Summarise times."""
        if len(times) == 1:
            return cls(times[0], times[0], times[0])
        tenths = statistics.quantiles(times, n=10, method="inclusive")
        return cls(statistics.median(times), tenths[0], tenths[-1])

    def overlaps(self, other: Spread) -> bool:
        """Return whether the two ranges share some times, so that the difference is within the spread."""
        return self.low <= other.high and other.low <= self.high


def in_turns(
    runs: Mapping[str, Callable[[], object]],
    device: torch.device,
    seconds: float = 1.0,
    repeats: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> dict[str, list[float]]:
    """Time all runs, one after the other, round after round, and return the milliseconds of each.

    Args:
        runs: what to time, by name.
        device: where they run.
        seconds: for each run, five rounds at least.
        repeats: exactly this many rounds instead.
        progress: called with the fraction done before every round.

    Example:
        >>> times = in_turns({"sum": lambda: sum(range(9))}, torch.device("cpu"), repeats=7)
        >>> len(times["sum"])
        7
    """
    seconds *= len(runs)
    begun = time.perf_counter()
    for _ in range(WARM_UP):
        for run in runs.values():
            milliseconds(run, device)
        # One round that is longer than the whole budget has warmed up everything.
        if repeats is None and time.perf_counter() - begun > seconds:
            break
    times: dict[str, list[float]] = {name: [] for name in runs}
    begun, rounds, done = time.perf_counter(), 0, 0.0
    while done < 1:
        if progress is not None:
            progress(done)
        for name, run in runs.items():
            times[name].append(milliseconds(run, device))
        rounds += 1
        past = time.perf_counter() - begun
        done = min(rounds / LEAST_REPEATS, past / seconds) if repeats is None else rounds / repeats
    return times


def milliseconds(run: Callable[[], object], device: torch.device) -> float:
    """Time one run: on a GPU by its own clock, from idle to idle."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            start.record()
            run()
            end.record()
            torch.cuda.synchronize()
            return start.elapsed_time(end)
    begun = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - begun)


def peak_memory(step: Step, device: torch.device) -> int | None:
    """Measure the peak bytes of a step beyond weights and inputs, gradients included; None on a CPU."""
    if device.type != "cuda":
        return None
    step()
    step.forget()
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


@contextmanager
def readable_failures(title: str, dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Turn full memory, and types that a device cannot compute in, into a ValueError."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"{title} does not fit into the memory of {device}; use a smaller batch, fewer channels or a smaller map"
        ) from error
    except RuntimeError as error:
        # In float32 everything runs everywhere: a failure there is a bug, and keeps its traceback.
        if dtype == torch.float32:
            raise
        name, reason = str(dtype).removeprefix("torch."), str(error).splitlines()[0]
        raise ValueError(f"{title} cannot run in {name} on {device} ({reason}); use float32") from error


def load_per_core() -> float | None:
    """Return the average load per core during the last minute; None where the system does not count it."""
    return os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else None


def keep_freed_pages() -> None:
    """Free a large block once, as any network around a layer would.

    The C library's allocator then keeps pages. Without this, a layer timed alone on a CPU requests every larger tensor
    from the system anew, and waits for it to be zeroed.
    """
    torch.ones(7_500_000)
