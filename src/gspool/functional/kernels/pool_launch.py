"""Start the kernels of `gsp_pool`, forward and backward: allocate, choose tiles, launch; nothing waits for the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool.functional.kernels.clipped_prototypes import clip_prototypes_kernel
from gspool.functional.kernels.image_shares import image_shares_kernel
from gspool.functional.kernels.pool_backward import pool_backward_kernel
from gspool.functional.kernels.prototype_gradient import prototype_gradient_kernel
from gspool.functional.kernels.tile_forward import image_sums_kernel, tile_affinity_kernel, tile_sums_kernel
from gspool.functional.kernels.tiling import alignment, tiling_of
from gspool.functional.kernels.whole_image import whole_image_kernel

if TYPE_CHECKING:
    from torch import Tensor

    from gspool.functional.kernels.tiling import Tiling

# Images up to this many tokens are solved in registers; larger ones read their log-affinities again in every step.
ONE_BLOCK = 16384
# Programs that add to sums of their own where atomic additions are not allowed; the same on every device.
DETERMINISTIC_PROGRAMS = 128


class Settings(NamedTuple):
    """The arguments of `gsp_pool` that are not tokens or prototypes; a value stands for a tensor that is None."""

    mu: Tensor | None
    mu_value: float
    epsilon: Tensor | None
    epsilon_value: float
    mask: Tensor | None
    background: bool
    precision: str


class Wanted(NamedTuple):
    """Which gradients are asked for; the one of mu comes for nothing."""

    tokens: bool
    prototypes: bool
    epsilon: bool


def mask_strides(mask: Tensor | None) -> tuple[int, int]:
    """Give the strides of a mask, or zeros that no kernel looks at."""
    return (0, 0) if mask is None else (mask.stride(0), mask.stride(1))


def _addressable(tokens: Tensor) -> Tensor:
    """Copy tokens only if one image spans more than the 32-bit offsets of the kernels can reach."""
    _, N, D = tokens.shape
    reach = (N - 1) * tokens.stride(1) + (D - 1) * tokens.stride(2)
    return tokens if reach < 2**31 else tokens.contiguous()


def prototype_parts(tokens: Tensor, precision: str) -> int:
    """Say in how many numbers of the tokens' dtype a prototype is written: two where one half is not exact enough."""
    return 2 if tokens.dtype != torch.float32 and precision != "tf32" else 1


def pool_forward(tokens: Tensor, prototypes: Tensor, settings: Settings, keep: bool) -> tuple[Tensor, ...]:
    """Give pooled, weights, attributes, and what the backward pass needs; the order is that of `Kept`."""
    B, N, D = tokens.shape
    M = prototypes.shape[0]
    tokens, prototypes = _addressable(tokens), prototypes.contiguous()
    tiling = tiling_of(tokens, M, settings.precision, backward=False)
    whole = tiling.tiles == 1
    # Of an image that is one tile in the backward pass, that pass forms the sums itself.
    sums_are_kept = keep and tiling_of(tokens, M, settings.precision, backward=True).tiles > 1
    floats: dict[str, Any] = {"dtype": torch.float32, "device": tokens.device}
    pooled = torch.empty((B, D), dtype=tokens.dtype, device=tokens.device)
    weights = torch.empty((B, N), **floats)
    attributes = torch.empty((B, M), **floats)
    state = torch.empty((B, 4, N) if keep or not whole else (0,), **floats)
    summary = torch.empty((B, 8 + 2 * (D + M) if sums_are_kept else 8), **floats)
    w_norms = torch.empty((M,), **floats)
    parts = prototype_parts(tokens, settings.precision)
    clipped = torch.empty((parts, M, D), dtype=tokens.dtype, device=tokens.device)
    if B == 0:
        return pooled, weights, attributes, state, summary, w_norms, clipped
    mu, mask, epsilon = settings.mu, settings.mask, settings.epsilon
    mu = None if mu is None else mu.contiguous()
    mask = None if mask is None else mask.view(torch.uint8)
    clip_prototypes_kernel[(M,)](prototypes, w_norms, clipped, M, D, BD=1024, PARTS=parts)
    shape = {"BN": tiling.rows, "BM": tiling.columns, "BD": tiling.channels}
    how = {
        "PRECISION": settings.precision,
        "PARTS": parts,
        "STAGES": tiling.stages,
        "HAS_MASK": mask is not None,
        "HAS_EPSILON": epsilon is not None,
        "N_HINT": alignment(N),
        "D_HINT": alignment(tokens.stride(2)),
        "num_warps": tiling.warps,
    }
    values = (settings.mu_value, 1.0 - settings.mu_value)
    strides = (*tokens.stride(), *mask_strides(mask))
    if whole and not sums_are_kept:
        whole_image_kernel[(B,)](
            tokens, prototypes, clipped, w_norms, mask, mu, epsilon, pooled, weights, attributes, state, summary,
            *values, settings.epsilon_value, N, M, D, *strides,
            **shape, **how, HAS_MU=mu is not None, BACKGROUND=settings.background, KEEP=keep,
        )  # fmt: skip
        return pooled, weights, attributes, state, summary, w_norms, clipped
    T = tiling.tiles
    tile_affinity_kernel[(B * T,)](
        tokens,
        prototypes,
        clipped,
        w_norms,
        mask,
        epsilon,
        state,
        settings.epsilon_value,
        N,
        M,
        D,
        T,
        *strides,
        **shape,
        **how,
    )
    block = min(ONE_BLOCK, 1 << (N - 1).bit_length())
    image_shares_kernel[(B,)](
        state, mask, mu, summary, weights, 4 * N, summary.shape[1], *values, N, *mask_strides(mask),
        BLOCK=block, ONE_BLOCK=block >= N, HAS_MASK=mask is not None, HAS_MU=mu is not None,
        BACKGROUND=settings.background, WEIGHTS=True, num_warps=min(16, max(4, block // 512)),
    )  # fmt: skip
    partial = torch.empty((B * T, 2 * (D + M)), **floats)
    tile_sums_kernel[(B * T,)](
        tokens, clipped, w_norms, mask, epsilon, state, summary, partial, settings.epsilon_value,
        N, M, D, T, *strides, summary.shape[1],
        **shape, **how, BACKGROUND=settings.background, KEEP=sums_are_kept,
    )  # fmt: skip
    blocks = -(-(2 if sums_are_kept else 1) * (D + M) // 512)
    image_sums_kernel[(B, blocks)](
        partial, pooled, attributes, summary, D, M, T, summary.shape[1], BLOCK=512, KEEP=sums_are_kept
    )
    return pooled, weights, attributes, state if keep else state.new_empty(0), summary, w_norms, clipped


class Incoming(NamedTuple):
    """Gradients of the loss with respect to the three outputs; None where the loss does not depend on one."""

    pooled: Tensor | None
    weights: Tensor | None
    attributes: Tensor | None


class Kept(NamedTuple):
    """What the forward pass kept: four numbers a token, sums of each image, the prototypes' norms and they, clipped."""

    state: Tensor
    summary: Tensor
    w_norms: Tensor
    clipped: Tensor


def gradient_precision(tokens: Tensor, tiling: Tiling, precision: str) -> str:
    """Name the precision of the backward products, as Triton names it."""
    if tokens.dtype != torch.float32:
        # The gradient of float16 tokens is formed from float32 values, whose range float16 does not have.
        return "tf32"
    if precision == "tf32x3" and tiling.columns > 128:
        # Three TF32 products need both halves of all pulls in shared memory, which has no room for so many.
        return "ieee"
    return precision


def pool_backward(
    tokens: Tensor, prototypes: Tensor, settings: Settings, kept: Kept, incoming: Incoming, wanted: Wanted
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Give the gradients of tokens, prototypes, mu (one an image) and epsilon; empty where not wanted."""
    B, N, D = tokens.shape
    M = prototypes.shape[0]
    grad_tokens = torch.empty_like(tokens) if wanted.tokens else tokens.new_empty(0)
    tokens, contiguous = _addressable(tokens), prototypes.contiguous()
    tiling = tiling_of(tokens, M, settings.precision, backward=True)
    T = tiling.tiles
    atomic = not torch.are_deterministic_algorithms_enabled()
    programs = B * T if atomic else min(B * T, DETERMINISTIC_PROGRAMS)
    parts = 1 if atomic else programs
    floats: dict[str, Any] = {"dtype": torch.float32, "device": tokens.device}
    accumulated = torch.zeros((parts if wanted.prototypes else 0, M * D + M), **floats)
    grad_mu = torch.empty((B,), dtype=torch.float64, device=tokens.device)
    grad_epsilon = torch.empty((B * T if wanted.epsilon else 0,), **floats)
    grad_prototypes = _prototype_gradient_memory(prototypes, accumulated, wanted.prototypes)
    if B == 0:
        return grad_tokens, grad_prototypes.zero_(), grad_mu, grad_epsilon.sum()
    mu, mask = settings.mu, settings.mask
    mu = None if mu is None else mu.contiguous()
    mask = None if mask is None else mask.view(torch.uint8)
    grad_pooled = tokens.new_zeros((B, D)) if incoming.pooled is None else incoming.pooled.contiguous()
    grad_strides = grad_tokens.stride() if wanted.tokens else (0, 0, 0)
    pool_backward_kernel[(programs,)](
        tokens, contiguous, kept.clipped, kept.w_norms, mask, mu, settings.epsilon, kept.state, kept.summary,
        grad_pooled,
        None if incoming.weights is None else incoming.weights.contiguous(),
        None if incoming.attributes is None else incoming.attributes.contiguous(),
        grad_tokens, accumulated, grad_mu, grad_epsilon,
        settings.mu_value, 1.0 - settings.mu_value, settings.epsilon_value,
        N, M, D, T, B * T, *tokens.stride(), *mask_strides(mask), kept.summary.shape[1], *grad_strides,
        BN=tiling.rows, BM=tiling.columns, BD=tiling.channels, BS=tiling.channels, BV=1024,
        PRECISION=settings.precision,
        GRADIENT_PRECISION=gradient_precision(tokens, tiling, settings.precision),
        PARTS=kept.clipped.shape[0],
        OPERAND="bf16" if tokens.dtype == torch.bfloat16 else "fp32",
        STAGES=tiling.stages, HAS_MASK=mask is not None, HAS_MU=mu is not None,
        HAS_EPSILON=settings.epsilon is not None, HAS_GW=incoming.weights is not None,
        HAS_GA=incoming.attributes is not None, BACKGROUND=settings.background, WHOLE=T == 1, ATOMIC=atomic,
        TOKENS=wanted.tokens, PROTOTYPES=wanted.prototypes, EPSILON=wanted.epsilon,
        N_HINT=alignment(N), D_HINT=alignment(tokens.stride(2)), GRAD_HINT=alignment(grad_strides[2]),
        num_warps=tiling.warps,
    )  # fmt: skip
    if wanted.prototypes:
        prototype_gradient_kernel[(M,)](
            contiguous, kept.w_norms, accumulated, grad_prototypes, M, D, parts, BD=1024, BP=16
        )
    return grad_tokens, grad_prototypes, grad_mu, grad_epsilon.sum() if wanted.epsilon else grad_epsilon


def _prototype_gradient_memory(prototypes: Tensor, accumulated: Tensor, wanted: bool) -> Tensor:
    """Reuse the sums' own memory for the result where there is one part and the dtype fits: nothing extra is held."""
    if not wanted:
        return prototypes.new_empty(0)
    if accumulated.shape[0] == 1 and prototypes.dtype == torch.float32:
        return accumulated[0, : prototypes.numel()].view(prototypes.shape)
    return torch.empty(prototypes.shape, dtype=prototypes.dtype, device=prototypes.device)
