"""What `gspool.experiments.resident.rounded_weights` does, by Triton kernels: one launch for all weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import triton.language as tl

from gspool.experiments.resident.kernels import adam
from gspool.experiments.resident.rounded_weights import Rounded, RoundedWeights, laid_out_alike

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class Launches:
    """A table of addresses, and one launch for all weights."""

    def __init__(self, rounded: RoundedWeights) -> None:
        self.rounded = rounded
        members = rounded.members
        lengths = torch.tensor([member.weight.numel() for member in members])
        chunks = (lengths + adam.CHUNK - 1) // adam.CHUNK
        device = members[0].weight.device
        self.owner = torch.arange(len(members)).repeat_interleave(chunks).to(device, torch.int32)
        self.sums = torch.empty(len(self.owner), device=device)
        columns: dict[Any, list[int]] = {
            adam.WEIGHT: [member.weight.data_ptr() for member in members],
            adam.MEAN: [self._state(member)["exp_avg"].data_ptr() for member in members],
            adam.SQUARE: [self._state(member)["exp_avg_sq"].data_ptr() for member in members],
            adam.STEP: [self._state(member)["step"].data_ptr() for member in members],
            adam.ROUNDED: [member.leaf.data_ptr() for member in members],
            # Until there are gradients, some address that may be read.
            adam.GRADIENT: [member.leaf.data_ptr() for member in members],
            adam.SCALE: [member.scale.data_ptr() for member in members],
            adam.LENGTH: lengths.tolist(),
            adam.SHARED: [member.weight[0].numel() for member in members],
            adam.FIRST: (chunks.cumsum(0) - chunks).tolist(),
        }
        self.described = torch.empty(len(members), len(columns), dtype=torch.int64)
        for column, values in columns.items():
            self.described[:, int(column.value)] = torch.tensor(values)
        self.table = self.described.to(device)

    def _state(self, member: Rounded) -> dict[str, Tensor]:
        return self.rounded.optimiser.state[member.weight]

    @property
    def _kind(self) -> Any:
        return {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}[self.rounded.members[0].leaf.dtype]

    def look_up_gradients(self) -> None:
        """Write the addresses of the gradients into the table."""
        for row, member in zip(self.described, self.rounded.members, strict=True):
            gradient = member.leaf.grad
            if gradient is None or not laid_out_alike(gradient, member.weight):
                raise ValueError("every rounded weight needs a gradient that is laid out as itself")
            row[int(adam.GRADIENT.value)] = gradient.data_ptr()
        self.table.copy_(self.described)

    def round(self) -> None:
        """Round all weights."""
        self._over_chunks(adam.round_weights)

    def squares(self) -> Float[Tensor, ""]:
        """Sum the squares of all gradients."""
        self._over_chunks(adam.sum_squares, self.sums)
        return self.sums.sum()

    def step(self, factor: Float[Tensor, ""]) -> None:
        """Step all weights."""
        group = self.rounded.group
        rate = torch.as_tensor(group["lr"], dtype=torch.float32, device=self.table.device)
        first, second = group["betas"]
        decays = (first, second, math.log(first), math.log(second), group["eps"], group["weight_decay"])
        decoupled = isinstance(self.rounded.optimiser, torch.optim.AdamW)
        self._over_chunks(adam.step_weights, factor, rate, *decays, DECOUPLED=decoupled)

    def _over_chunks(self, kernel: Any, *arguments: Any, **settings: Any) -> None:
        grid = (len(self.owner),)
        kernel[grid](self.table, self.owner, *arguments, **settings, KIND=self._kind, CHUNK=adam.CHUNK)
