"""Lightning Fabric: devices, precision, and the processes of a run."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gspool.executor.signals import SIGNALS, blocked_signals
from gspool.training.signals import LAUNCHER, StopRequest

if TYPE_CHECKING:
    import torch

    from gspool.training.config import TrainerConfig

# `lightning` contains Fabric; `pytorch-lightning` brings it as a package of its own.
NAMES = ("lightning.fabric", "lightning_fabric")


def import_fabric() -> ModuleType:
    """Import Lightning Fabric under whichever of its two names is installed.

    Raises:
        ImportError: if it is not installed.
    """
    for name in NAMES:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            # If a dependency of Lightning is missing, its own message is the better one.
            if error.name not in (name, name.split(".")[0]):
                raise
    raise ImportError("training needs Lightning, which is not installed; install it with: pip install 'gspool[train]'")


def make_fabric(
    trainer: TrainerConfig, *, find_unused_parameters: bool = False, device: torch.device | None = None
) -> Any:
    """Return the Fabric of a run: the one device given, or one of the trainer's accelerator, or DDP over several.

    ``find_unused_parameters`` tells DDP that parameters may go without a gradient, as during a warm-up.

    Raises:
        ValueError: if this machine does not have the accelerator, the devices or the precision.
        ImportError: if Lightning is not installed.
    """
    strategy = "auto"
    if trainer.devices * trainer.num_nodes > 1:
        strategy = "ddp_find_unused_parameters_true" if find_unused_parameters else "ddp"
    settings = (
        f"trainer.accelerator={trainer.accelerator!r}, trainer.devices={trainer.devices}, "
        f"trainer.precision={trainer.precision!r}"
    )
    fabric = import_fabric()
    misconfigured = importlib.import_module(f"{fabric.__name__}.utilities.exceptions").MisconfigurationException
    with quiet(), warnings.catch_warnings():
        # Lightning would go on in another precision than the one in config.yaml.
        warnings.filterwarnings("error", r".*AMP with fp16 is not supported on CPU.*")
        try:
            return fabric.Fabric(
                accelerator=trainer.accelerator if device is None else device.type,
                devices=[device.index or 0] if device is not None and device.type == "cuda" else trainer.devices,
                num_nodes=trainer.num_nodes,
                strategy=strategy,
                precision=trainer.precision,
            )
        except (misconfigured, ValueError) as error:
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
    loggers = [logging.getLogger(name) for name in (*NAMES, "lightning.pytorch", "lightning_utilities")]
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
