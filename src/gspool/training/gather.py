"""What processes tell each other: the rows of a batch with their gradients, evaluated rows, requests to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


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

    Example:
        >>> gather_rows(torch.ones(2, 3)).shape
        torch.Size([2, 3])
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
    """Return the largest value of all processes; all of them must call this at the same step.

    Example:
        >>> any_process(3, torch.device("cpu"))
        3
    """
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
