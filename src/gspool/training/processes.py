"""The processes of a run: Lightning Fabric that starts them, what they tell each other, and how all of them stop."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from gspool.models.device import computes_bf16
from gspool.terminal.signals import SIGNALS, TerminatedError, blocked_signals, handle_signals

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from gspool.training.config import TrainerConfig

# Set by the process that launches others, so that they know whose children they are.
LAUNCHER = "GSPOOL_LAUNCHER"


class TrainingInterruptedError(RuntimeError):
    """A run was asked to stop and did; ``--resume`` goes on. ``signum`` is the signal, ``status`` the exit status."""

    def __init__(self, folder: Path, step: int | None = None, signum: int = signal.SIGINT) -> None:
        after = "" if step is None else f" after step {step}"
        super().__init__(f"stopped{after}; go on with: gspool train --resume {folder}")
        self.folder, self.step, self.signum = folder, step, signum or signal.SIGINT

    @property
    def status(self) -> int:
        """The exit status of a process that ends by this signal: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.signum


def is_one_of_several() -> bool:
    """Check whether this process belongs to a run of several, connected or not yet."""
    return any(os.environ.get(name, "1") not in ("", "1") for name in ("WORLD_SIZE", "SLURM_NTASKS"))


class StopRequest:
    """Whether the run was asked to stop.

    While ``immediate``, a signal raises KeyboardInterrupt or `TerminatedError` on the spot. In the step loop, and for
    the processes of one run at any time, it is noted in ``signum`` and looked at between steps: processes must leave
    together, or the others wait in a collective for the one that has left, and only there can they agree.
    """

    def __init__(self) -> None:
        self.signum = 0
        self.immediate = not is_one_of_several()

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Take note of a signal. A second Ctrl-C interrupts at once; a second SIGTERM changes nothing."""
        again = self.signum == signal.SIGINT and number == signal.SIGINT
        self.signum = number
        if self.immediate or again:
            raise KeyboardInterrupt if number == signal.SIGINT else TerminatedError


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Turn Ctrl-C and SIGTERM into a `StopRequest`; within another such context, into the same one.

    Python delivers signals to the main thread alone: in another thread, whoever started it stops it.
    """
    active = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    if isinstance(active, StopRequest):
        yield active
        return
    request = StopRequest()
    with handle_signals(SIGNALS, request.handle):
        yield request


def is_launched() -> bool:
    """Check whether this process is a rank that the first rank has launched."""
    return os.environ.get(LAUNCHER, "") not in ("", str(os.getpid()))


def leave_with_launcher() -> None:
    """End this rank when the process that launched it has died: it would wait for it in a collective."""
    launcher = int(os.environ[LAUNCHER])

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="watch-launcher").start()


def import_fabric() -> ModuleType:
    """Import Lightning Fabric: by itself, because `lightning` imports torchmetrics and transformers with it."""
    try:
        import lightning_fabric
    except ModuleNotFoundError as error:
        # If a dependency of Fabric is missing, its own message is the better one.
        if error.name != "lightning_fabric":
            raise
        raise ImportError(
            "training needs Lightning Fabric, which is not installed; install it with: pip install 'gspool[train]'"
        ) from error
    return lightning_fabric


def precision_of(trainer: TrainerConfig, device: torch.device | str | None = None) -> str:
    """Return the precision that a trainer computes in on a device, or on that of its accelerator."""
    if trainer.precision != "auto":
        return trainer.precision
    if device is None:
        device = "cpu" if trainer.accelerator == "cpu" or not torch.cuda.is_available() else "cuda"
    return "bf16-mixed" if computes_bf16(device) else "32-true"


def make_fabric(
    trainer: TrainerConfig, *, find_unused_parameters: bool = False, device: torch.device | None = None
) -> Any:
    """Return the Fabric of a run: the one device given, or one of the trainer's accelerator, or DDP over several.

    ``find_unused_parameters`` tells DDP that parameters may go without a gradient, as during a warm-up.

    Raises:
        ValueError: if this machine does not have the accelerator, the devices or the precision.
        ImportError: if Lightning Fabric is not installed.
    """
    strategy = "auto"
    if trainer.devices * trainer.num_nodes > 1:
        strategy = "ddp_find_unused_parameters_true" if find_unused_parameters else "ddp"
    settings = (
        f"trainer.accelerator={trainer.accelerator!r}, trainer.devices={trainer.devices}, "
        f"trainer.precision={trainer.precision!r}"
    )
    fabric = import_fabric()
    with quiet(), warnings.catch_warnings():
        # Lightning would go on in another precision than the one in config.yaml.
        warnings.filterwarnings("error", r".*AMP with fp16 is not supported on CPU.*")
        try:
            return fabric.Fabric(
                accelerator=trainer.accelerator if device is None else device.type,
                devices=[device.index or 0] if device is not None and device.type == "cuda" else trainer.devices,
                num_nodes=trainer.num_nodes,
                strategy=strategy,
                precision=precision_of(trainer, device),
            )
        except (fabric.utilities.exceptions.MisconfigurationException, ValueError) as error:
            raise ValueError(f"this machine cannot run these settings ({settings}): {error}") from error
        except UserWarning as error:
            raise ValueError(f"a CPU cannot train in float16 ({settings}); use bf16-mixed or 32-true") from error


def launch(fabric: Any, request: StopRequest) -> None:
    """Start the other processes of a run, if there are any, and connect them.

    They run the same command. Until all are connected they do not see Ctrl-C and SIGTERM; from then on a signal to any
    of them is agreed upon between steps.
    """
    if fabric.world_size > 1:
        request.immediate = False
        if "LOCAL_RANK" not in os.environ:
            os.environ[LAUNCHER] = str(os.getpid())
    with quiet(), blocked_signals():
        fabric.launch()
    if fabric.world_size > 1:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Lightning's banners, and its hints about choices that are not open here."""
    loggers = [logging.getLogger(name) for name in ("lightning_fabric", "lightning_utilities")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        for message in (
            r".*GPU available but not used.*",
            r".*`isinstance\(treespec, LeafSpec\)` is deprecated.*",
            r".*barrier\(\): using the device under current context.*",
        ):
            warnings.filterwarnings("ignore", message)
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def is_distributed() -> bool:
    """Check whether several processes train together."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


class _GatherRows(torch.autograd.Function):
    """Join equally many rows of every process; the gradient of a row is the sum over all processes.

    Each process computes a loss of the whole batch, and DDP averages the gradients of W processes. The sum over the
    processes of dL/drow is W times what one process with the whole batch would have, and the average takes W out again:
    parameters of the model and of the loss both get the gradient of the whole batch.
    """

    @staticmethod
    def forward(ctx: Any, rows: Float[Tensor, "B D"]) -> Float[Tensor, "R D"]:
        parts = [torch.empty_like(rows) for _ in range(distributed.get_world_size())]
        distributed.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Float[Tensor, "R D"]) -> Float[Tensor, "B D"]:
        gradient = gradients[0].contiguous().clone()
        distributed.all_reduce(gradient)
        return gradient.chunk(distributed.get_world_size())[distributed.get_rank()]


def gather_rows(rows: Tensor) -> Tensor:
    """Join the rows of all processes in their order, with gradients; a single process gets its rows back.

    Every process must bring equally many rows, as `gspool.data.ClassBalancedBatches` deals them.
    """
    if not is_distributed():
        return rows
    return _GatherRows.apply(rows)


def gather_blocks(block: Tensor) -> Tensor:
    """Join blocks of any lengths, on the CPU, in the order of the processes: the inverse of `gspool.data.Shard`."""
    if not is_distributed():
        return block.cpu()
    parts: list[Tensor] = [block] * distributed.get_world_size()
    distributed.all_gather_object(parts, block.cpu())
    return torch.cat(parts)


def any_process(value: int, device: torch.device) -> int:
    """Return the largest value of all processes; all of them must call this at the same step."""
    if not is_distributed():
        return value
    largest = torch.tensor(value, device=device)
    distributed.all_reduce(largest, distributed.ReduceOp.MAX)
    return int(largest)


def wait_for_all() -> None:
    """Wait until all processes are here: what one writes, another may be about to read."""
    if is_distributed():
        distributed.barrier()


@torch.no_grad()
def share_buffers(module: torch.nn.Module) -> None:
    """Copy the running statistics of the first process to all, so that they evaluate one model."""
    if is_distributed():
        for buffer in module.buffers():
            distributed.broadcast(buffer, src=0)
