"""Weights of folded convolutions, rounded once a step for all of them, and stepped by Adam where they lie.

A folded convolution multiplies its weight by a scale a channel and rounds it, and its gradient goes the way back: two
small launches a convolution, a hundred a step, besides those that bound the gradient and those of the optimiser. Here
three launches do all of it. Weights, and what Adam remembers of them, stay the tensors that they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from gspool.experiments.resident.folded_norms import FoldedConvolution
from gspool.functional.kernels.dispatch import TRITON_IS_INSTALLED

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from gspool.experiments.resident.rounded_launches import Launches


class Rounded(NamedTuple):
    """One convolution: its weight, the scale of each channel, and the leaf that takes part in a step instead."""

    folded: FoldedConvolution
    weight: Float[torch.Tensor, "D C k k"]
    scale: Float[torch.Tensor, " D"]
    leaf: Float[torch.Tensor, "D C k k"]


class RoundedWeights:
    """The learned weights of a network's folded convolutions, as a step multiplies by them: in another precision.

    A step is: within `used`, forward, `forget` and backward; then `descend`, which steps every parameter of the
    optimiser. What a step learns is what it would learn without this.

    Args:
        network: whose convolutions; after `fold_frozen_norms`.
        optimiser: Adam or AdamW of all parameters, which has stepped at least once.
        dtype: the precision of the convolutions.

    Raises:
        ValueError: if the network has no folded convolution that learns, or the optimiser is another, treats them
            differently or has not stepped yet.
    """

    def __init__(self, network: nn.Module, optimiser: torch.optim.Optimizer, dtype: torch.dtype) -> None:
        self.optimiser = optimiser
        self.members = [
            Rounded(
                each.forward,
                each.weight,
                each.forward.scale_of_channels(),
                torch.empty_like(each.weight, dtype=dtype).requires_grad_(),
            )
            for each in network.modules()
            if isinstance(each, nn.Conv2d) and isinstance(each.forward, FoldedConvolution) and each.weight.requires_grad
        ]
        self.group = self._group_of_all()
        self._launches: Launches | None = None
        if self.members[0].weight.is_cuda and TRITON_IS_INSTALLED:
            from gspool.experiments.resident.rounded_launches import Launches

            self._launches = Launches(self)

    def _group_of_all(self) -> dict[str, Any]:
        weights = {id(member.weight) for member in self.members}
        groups = [group for group in self.optimiser.param_groups if weights & {id(each) for each in group["params"]}]
        if not weights or len(groups) != 1 or type(self.optimiser) not in (torch.optim.Adam, torch.optim.AdamW):
            raise ValueError("weights are rounded together where folded convolutions learn in one group of Adam")
        if groups[0]["amsgrad"] or groups[0]["maximize"]:
            raise ValueError("weights are rounded together for Adam as it is, without amsgrad and maximize")
        for member in self.members:
            state = self.optimiser.state.get(member.weight, {})
            if "exp_avg" not in state:
                raise ValueError("weights are rounded together once the optimiser has stepped, which makes its state")
            if not all(laid_out_alike(member.weight, state[name]) for name in ("exp_avg", "exp_avg_sq")):
                raise ValueError("the optimiser's state is laid out in another way than the weights")
            if member.weight.stride(0) != member.weight[0].numel():
                raise ValueError("a channel of a weight must lie in one piece")
        return groups[0]

    @contextmanager
    def used(self) -> Iterator[None]:
        """Round all weights, and let the convolutions multiply by the rounded ones for a while."""
        self._round()
        for member in self.members:
            member.folded.rounded = member.leaf
        try:
            yield
        finally:
            for member in self.members:
                member.folded.rounded = None

    def forget(self) -> None:
        """Forget the gradients of the step before."""
        for member in self.members:
            member.leaf.grad = None

    def look_up_gradients(self) -> None:
        """Take note where the gradients of this step lie; steps that repeat it find them there again."""
        if self._launches is not None:
            self._launches.look_up_gradients()

    @torch.no_grad()
    def descend(self, clip: float) -> None:
        """Step every parameter that has a gradient, whose norm over all of them is kept within ``clip`` if not 0."""
        others = [each.grad for group in self.optimiser.param_groups for each in group["params"]]
        gradients = [gradient for gradient in others if gradient is not None]
        factor = torch.ones((), device=self.members[0].weight.device)
        if not (factor.is_cuda and torch.cuda.is_current_stream_capturing()):
            self.look_up_gradients()
        if clip:
            squares = torch.stack(torch._foreach_norm(gradients)).square().sum() if gradients else 0.0
            factor = (clip / ((self._squares() + squares).sqrt() + 1e-6)).clamp(max=1.0)
            if gradients:
                torch._foreach_mul_(gradients, factor)
        self._step(factor)
        self.optimiser.step()

    @torch.no_grad()
    def _round(self) -> None:
        if self._launches is not None:
            self._launches.round()
            return
        for member in self.members:
            torch.mul(member.weight, in_rows(member.scale), out=member.leaf)

    def _squares(self) -> Float[Tensor, ""]:
        if self._launches is not None:
            return self._launches.squares()
        return torch.stack([self._gradient(member).square().sum() for member in self.members]).sum()

    def _step(self, factor: Float[Tensor, ""]) -> None:
        torch._foreach_add_([self.optimiser.state[member.weight]["step"] for member in self.members], 1)
        if self._launches is not None:
            self._launches.step(factor)
            return
        group, decoupled = self.group, isinstance(self.optimiser, torch.optim.AdamW)
        for member in self.members:
            state, gradient = self.optimiser.state[member.weight], factor * self._gradient(member)
            if decoupled:
                member.weight.mul_(1 - group["lr"] * group["weight_decay"])
            else:
                gradient += group["weight_decay"] * member.weight
            first, second = group["betas"]
            mean, square = state["exp_avg"], state["exp_avg_sq"]
            mean.lerp_(gradient, 1 - first)
            square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
            spread = square.sqrt() / (1 - second ** state["step"]).sqrt() + group["eps"]
            member.weight.sub_(group["lr"] / (1 - first ** state["step"]) * mean / spread)

    @staticmethod
    def _gradient(member: Rounded) -> Float[Tensor, "D C k k"]:
        assert member.leaf.grad is not None
        return member.leaf.grad * in_rows(member.scale)


def in_rows(scale: Float[Tensor, " D"]) -> Float[Tensor, "D 1 1 1"]:
    """Shape a scale a channel as a weight is multiplied by it."""
    return scale[:, None, None, None]


def laid_out_alike(one: Tensor, other: Tensor) -> bool:
    """Say whether two tensors of one shape have their values in the same order of memory, without gaps between."""
    return all(
        size == 1 or mine == theirs for size, mine, theirs in zip(one.shape, one.stride(), other.stride(), strict=True)
    )
