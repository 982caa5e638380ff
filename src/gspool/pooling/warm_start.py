"""The reference's warm start: gather what average pooling gives, until there is enough to choose prototypes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class WarmStart(nn.Module):
    """Remember pooled vectors up to a number, across all ranks, and hand them out once.

    The memory is part of the state dict, so that an interrupted run goes on where it was; it is empty once handed out.
    Every rank adds the vectors of all ranks in the same order, so that all of them choose the same prototypes.
    """

    memory: Tensor
    done: Tensor

    def __init__(self, wanted: int, at_least: int, dim: int) -> None:
        super().__init__()
        if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < at_least:
            raise ValueError(
                f"warm_start is the number of vectors to see first, at least the {at_least} prototypes, got {wanted!r}"
            )
        self.wanted = wanted
        self.collecting = True
        self.register_buffer("memory", torch.zeros(0, dim))
        self.register_buffer("done", torch.tensor(False))

    @torch.no_grad()
    def add(self, vectors: Float[Tensor, "B D"]) -> Float[Tensor, "K D"] | None:
        """Remember these vectors; give all of them back once there are enough, and None before."""
        self.memory = torch.cat([self.memory, gather(vectors.to(self.memory))])[: self.wanted]
        if self.memory.shape[0] < self.wanted:
            return None
        seen, self.memory = self.memory, self.memory[:0]
        self.done.fill_(True)
        self.collecting = False
        return seen

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # The memory grows, so a checkpoint's may have another length than ours.
        saved = state_dict.get(prefix + "memory")
        if saved is not None:
            self.memory = self.memory.new_zeros(saved.shape)
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self.collecting = not bool(self.done)

    def extra_repr(self) -> str:
        """Show the progress in `print(model)`."""
        return f"{self.memory.shape[0]} of {self.wanted} vectors seen" if self.collecting else "done"


def gather(vectors: Float[Tensor, "B D"]) -> Float[Tensor, "R D"]:
    """Join the vectors of all ranks in the order of the ranks, which may hold different numbers of them."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return vectors
    parts: list[Tensor | None] = [None] * distributed.get_world_size()
    distributed.all_gather_object(parts, vectors.cpu())
    return torch.cat([part for part in parts if part is not None]).to(vectors.device)
