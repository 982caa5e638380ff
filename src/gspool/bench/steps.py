"""What is timed: one step of training or of inference, as a program would make it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor

HALF = (torch.bfloat16, torch.float16)


class TrainingStep:
    """Forward and backward of a module, without an optimiser.

    Half types are mixed precision: weights as they are, float32, and the forward pass under autocast.

    Args:
        module: what to run; it is put into training mode.
        inputs: what it takes; a layer's features want a gradient, a network's images do not.
        dtype: what it computes in.
        inputs_learn: whether the inputs want a gradient.

    Example:
        >>> step = TrainingStep(nn.Linear(4, 2), torch.ones(3, 4))
        >>> step()
        >>> step.inputs.grad.shape
        torch.Size([3, 4])
    """

    def __init__(
        self, module: nn.Module, inputs: Tensor, dtype: torch.dtype = torch.float32, inputs_learn: bool = True
    ) -> None:
        self.module = module.train().to(torch.float32 if dtype in HALF else dtype)
        self.inputs = inputs.detach().clone().requires_grad_(inputs_learn)
        self.dtype = dtype
        self.incoming = torch.randn_like(self.forward())

    def forward(self) -> Tensor:
        """Make the first half of a step."""
        context: AbstractContextManager[object] = nullcontext()
        if self.dtype in HALF:
            context = torch.autocast(self.inputs.device.type, self.dtype)
        with context:
            output: Tensor = self.module(self.inputs)
            return output

    def forget(self) -> None:
        """Drop the gradients of the last step."""
        self.inputs.grad = None
        self.module.zero_grad()

    def __call__(self) -> None:
        """Make one step."""
        self.forget()
        self.forward().backward(self.incoming)


class InferenceStep:
    """Forward of a module in evaluation mode, without a graph; in a half type its weights have that type too.

    Example:
        >>> InferenceStep(nn.Linear(4, 2), torch.ones(3, 4))()
    """

    def __init__(self, module: nn.Module, inputs: Tensor, dtype: torch.dtype = torch.float32) -> None:
        self.module = module.eval().to(dtype)
        self.inputs = inputs

    def forget(self) -> None:
        """Keep nothing: there are no gradients."""

    def forward(self) -> Tensor:
        """Make the step and give what comes out."""
        with torch.inference_mode():
            output: Tensor = self.module(self.inputs)
            return output

    def __call__(self) -> None:
        """Make one step."""
        self.forward()


Step = TrainingStep | InferenceStep


def peak_memory(step: Step, device: torch.device) -> int | None:
    """Give the bytes that a step takes at its peak beyond weights and inputs, gradients included; None on a CPU."""
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
def failures_told(title: str, dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Say in words why what is done in here cannot be done.

    Raises:
        ValueError: if there is no room, or if the type is one that the device or a layer cannot compute in.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"{title} does not fit into the memory of {device}; take a smaller batch, fewer channels or a smaller map"
        ) from error
    except RuntimeError as error:
        # In float32 everything runs everywhere: what fails there is a fault, and keeps its traceback.
        if dtype == torch.float32:
            raise
        name, reason = str(dtype).removeprefix("torch."), str(error).splitlines()[0]
        raise ValueError(f"{title} cannot run in {name} on {device} ({reason}); take float32") from error
