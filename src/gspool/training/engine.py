"""Lightning, under whichever of its two names it is installed."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gspool.training.config import TrainerConfig

NAMES = ("lightning.pytorch", "pytorch_lightning")


def lightning() -> ModuleType:
    """Import Lightning.

    Raises:
        ImportError: if it is not installed, with how to install it.
    """
    for name in NAMES:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            # Lightning is there and something that it needs is not: that is another story.
            if error.name not in (name, name.split(".")[0]):
                raise
    raise ImportError("training needs Lightning, which is not installed; install it with: pip install 'gspool[train]'")


@contextmanager
def hardware_told(settings: TrainerConfig) -> Iterator[None]:
    """Say in the words of the settings what this machine cannot do, where Lightning fails or quietly does otherwise.

    Raises:
        ValueError: if the accelerator, the number of devices or the precision is not to be had here.
    """
    asked = (
        f"trainer.accelerator={settings.accelerator!r}, trainer.devices={settings.devices}, "
        f"trainer.precision={settings.precision!r}"
    )
    misconfigured = importlib.import_module(f"{lightning().__name__}.utilities.exceptions").MisconfigurationException
    with warnings.catch_warnings():
        # Another precision than the one in config.yaml would be a run that nobody asked for.
        warnings.filterwarnings("error", r".*AMP with fp16 is not supported on CPU.*")
        try:
            yield
        except (misconfigured, ValueError) as error:
            raise ValueError(f"the run cannot be set up as asked on this machine ({asked}): {error}") from error
        except UserWarning as error:
            raise ValueError(f"float16 is not for a CPU ({asked}); use bf16-mixed or 32-true there") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Lightning from talking about what is not a choice here: loggers, workers, checkpoints of its own."""
    loggers = [logging.getLogger(name) for name in (*NAMES, "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        for message in (
            r".*does not have many workers.*",
            r".*GPU available but not used.*",
            r".*is less than the logging interval.*",
            r".*Found \d+ module\(s\) in eval mode.*",
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
