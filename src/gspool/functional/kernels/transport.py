"""The kernels of `partial_transport` and their launches: the cost is given, the plan is wanted, both stream through.

Programs work on tiles of tokens and walk over the prototypes; the threshold between them is `solve`. The numbers of an
image stand as those of `gsp_pool` do (`plan`), [B, IMAGE_ENTRIES]. Nothing waits for the GPU.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from gspool.functional.kernels.distance import tile_rows
from gspool.functional.kernels.plan import COUNT, IMAGE_ENTRIES, LOG_SLOPES, MEAN, Settings
from gspool.functional.kernels.solve import ONE_BLOCK, image_shares_kernel, log_slope, position_of, sigmoid

if TYPE_CHECKING:
    from torch import Tensor

TILE_TOKENS, TILE_PROTOTYPES = 64, 32


@triton.jit
def read_piece(matrix, start, row, M, N, stride_m, stride_n, BM: tl.constexpr, fill):
    """Load a piece [prototypes, tokens] of a matrix of one image as float32."""
    column = start + tl.arange(0, BM)
    inside = (column < M)[:, None] & (row < N)[None, :]
    values = tl.load(matrix + column[:, None] * stride_m + row[None, :] * stride_n, mask=inside, other=fill)
    return column, inside, values.to(tl.float32)


@triton.jit
def cost_affinity_kernel(
    cost, epsilon, affinities, epsilon_value, M, N, T, stride_b, stride_m, stride_n,
    BN: tl.constexpr, BM: tl.constexpr, HAS_EPSILON: tl.constexpr,
):  # fmt: skip
    """Write ``l_j = log sum_i exp(-epsilon c_ij)`` of a tile, keeping the largest term apart while summing."""
    image = (tl.program_id(0) // T).to(tl.int64)
    row = (tl.program_id(0) % T) * BN + tl.arange(0, BN)
    sharpness = tl.load(epsilon).to(tl.float32) if HAS_EPSILON else epsilon_value
    largest = tl.full([BN], -1e30, dtype=tl.float32)
    total = tl.zeros([BN], dtype=tl.float32)
    for start in range(0, M, BM):
        _, inside, values = read_piece(cost + image * stride_b, start, row, M, N, stride_m, stride_n, BM, 0.0)
        logits = tl.where(inside, values * -sharpness, float("-inf"))
        higher = tl.maximum(largest, tl.max(logits, axis=0))
        total = total * tl.exp(largest - higher) + tl.sum(tl.exp(logits - higher[None, :]), axis=0)
        largest = higher
    tl.store(affinities + image * N + row, largest + tl.log(total), mask=row < N)


@triton.jit
def plan_kernel(
    cost, mask, epsilon, affinities, images, residual, plan, epsilon_value, M, N, T,
    stride_b, stride_m, stride_n, stride_mb, stride_mn,
    BN: tl.constexpr, BM: tl.constexpr, HAS_MASK: tl.constexpr, HAS_EPSILON: tl.constexpr,
):  # fmt: skip
    """Write residual and plan of a tile (P2)."""
    image = (tl.program_id(0) // T).to(tl.int64)
    row, real = tile_rows(tl.program_id(0) % T, N, mask, image, stride_mb, stride_mn, BN, HAS_MASK)
    sharpness = tl.load(epsilon).to(tl.float32) if HAS_EPSILON else epsilon_value
    entries = images + image * IMAGE_ENTRIES
    affinity = tl.load(affinities + image * N + row, mask=row < N, other=0.0)
    count = tl.maximum(tl.load(entries + COUNT), 1.0)
    position = position_of(affinity, entries)
    mass = tl.where(real, sigmoid(position), 0.0) / count
    tl.store(residual + image * N + row, tl.where(real, sigmoid(-position), 0.0) / count, mask=row < N)
    for start in range(0, M, BM):
        column, inside, values = read_piece(cost + image * stride_b, start, row, M, N, stride_m, stride_n, BM, 0.0)
        assignment = tl.exp(values * -sharpness - affinity[None, :])
        address = plan + image * M * N + column[:, None] * N + row[None, :]
        tl.store(address, assignment * mass[None, :], mask=inside)


@triton.jit
def plan_mean_kernel(
    cost, epsilon, affinities, grad_plan, means, epsilon_value, M, N, T, stride_b, stride_m, stride_n,
    BN: tl.constexpr, BM: tl.constexpr, HAS_EPSILON: tl.constexpr,
):  # fmt: skip
    """Write the mean of the plan's gradient over the prototypes, by assignment, for the tokens of a tile."""
    image = (tl.program_id(0) // T).to(tl.int64)
    row = (tl.program_id(0) % T) * BN + tl.arange(0, BN)
    sharpness = tl.load(epsilon).to(tl.float32) if HAS_EPSILON else epsilon_value
    affinity = tl.load(affinities + image * N + row, mask=row < N, other=0.0)
    mean = tl.zeros([BN], dtype=tl.float32)
    for start in range(0, M, BM):
        _, inside, values = read_piece(cost + image * stride_b, start, row, M, N, stride_m, stride_n, BM, 0.0)
        _, _, g = read_piece(grad_plan + image * M * N, start, row, M, N, N, 1, BM, 0.0)
        mean += tl.sum(tl.where(inside, tl.exp(values * -sharpness - affinity[None, :]) * g, 0.0), axis=0)
    tl.store(means + image * N + row, mean, mask=row < N)


@triton.jit
def root_gradient_kernel(
    affinities, mask, images, means, grad_residual, grad_mu, N, stride_mb, stride_mn,
    BLOCK: tl.constexpr, HAS_MASK: tl.constexpr, HAS_GR: tl.constexpr,
):  # fmt: skip
    """Write the slope-weighted mean of ``dL/da_j`` of one image, which is what the root passes on to mu."""
    image = tl.program_id(0).to(tl.int64)
    entries = images + image * IMAGE_ENTRIES
    log_slopes = tl.load(entries + LOG_SLOPES)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, N, BLOCK):
        row = start + tl.arange(0, BLOCK)
        real = row < N
        position = position_of(tl.load(affinities + image * N + row, mask=real, other=0.0), entries)
        g = tl.load(means + image * N + row, mask=real, other=0.0)
        if HAS_GR:
            g -= tl.load(grad_residual + image * N + row, mask=real, other=0.0)
        if HAS_MASK:
            real = real & (tl.load(mask + image * stride_mb + row * stride_mn, mask=real, other=0) != 0)
        total += tl.where(real, tl.exp(log_slope(position) - log_slopes) * g, 0.0)
    mean = tl.sum(total, axis=0)
    tl.store(entries + MEAN, mean)
    tl.store(grad_mu + image, mean.to(grad_mu.dtype.element_ty))


@triton.jit
def cost_gradient_kernel(
    cost, mask, epsilon, affinities, images, means, grad_residual, grad_plan, grad_cost, grad_epsilon, epsilon_value,
    M, N, T, stride_b, stride_m, stride_n, stride_mb, stride_mn,
    BN: tl.constexpr, BM: tl.constexpr, HAS_MASK: tl.constexpr, HAS_EPSILON: tl.constexpr,
    HAS_GR: tl.constexpr, HAS_GP: tl.constexpr, EPSILON: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the cost for a tile (Prop. 4.3, corrected)."""
    image = (tl.program_id(0) // T).to(tl.int64)
    row, real = tile_rows(tl.program_id(0) % T, N, mask, image, stride_mb, stride_mn, BN, HAS_MASK)
    sharpness = tl.load(epsilon).to(tl.float32) if HAS_EPSILON else epsilon_value
    entries = images + image * IMAGE_ENTRIES
    affinity = tl.load(affinities + image * N + row, mask=row < N, other=0.0)
    count = tl.maximum(tl.load(entries + COUNT), 1.0)
    position = position_of(affinity, entries)
    mass = tl.where(real, sigmoid(position), 0.0) / count
    mean = tl.load(means + image * N + row, mask=row < N, other=0.0)
    to_share = mean
    if HAS_GR:
        to_share -= tl.load(grad_residual + image * N + row, mask=row < N, other=0.0)
    own = tl.where(real, tl.exp(log_slope(position)) * (to_share - tl.load(entries + MEAN)) / count, 0.0) - mass * mean
    by_epsilon = tl.zeros([BN], dtype=tl.float32)
    for start in range(0, M, BM):
        column, inside, values = read_piece(cost + image * stride_b, start, row, M, N, stride_m, stride_n, BM, 0.0)
        inner = tl.zeros([BM, BN], dtype=tl.float32) + own[None, :]
        if HAS_GP:
            _, _, g = read_piece(grad_plan + image * M * N, start, row, M, N, N, 1, BM, 0.0)
            inner += mass[None, :] * g
        grad_logits = tl.where(inside, tl.exp(values * -sharpness - affinity[None, :]) * inner, 0.0)
        if EPSILON:
            by_epsilon -= tl.sum(grad_logits * values, axis=0)
        address = grad_cost + image * M * N + column[:, None] * N + row[None, :]
        tl.store(address, (grad_logits * -sharpness).to(grad_cost.dtype.element_ty), mask=inside)
    if EPSILON:
        tl.store(grad_epsilon + tl.program_id(0), tl.sum(by_epsilon, axis=0))


def mask_strides(mask: Tensor | None) -> tuple[int, ...]:
    """Return the strides of a mask, or zeros that no kernel reads."""
    return (0, 0) if mask is None else mask.stride()


def transport_forward(cost: Tensor, settings: Settings) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return residual, plan, and for the backward pass the log-affinities and the numbers of each image."""
    B, M, N = cost.shape
    floats: dict[str, Any] = {"dtype": torch.float32, "device": cost.device}
    residual, plan = torch.empty((B, N), **floats), torch.empty((B, M, N), **floats)
    affinities, images = torch.empty((B, N), **floats), torch.empty((B, IMAGE_ENTRIES.value), **floats)
    if B == 0:
        return residual, plan, affinities, images
    mu, mu_value, epsilon, epsilon_value, mask, *_ = settings.ready()
    T = -(-N // TILE_TOKENS)
    tile = {"BN": TILE_TOKENS, "BM": TILE_PROTOTYPES, "HAS_EPSILON": epsilon is not None}
    cost_affinity_kernel[(B * T,)](cost, epsilon, affinities, epsilon_value, M, N, T, *cost.stride(), **tile)
    block = min(ONE_BLOCK, 1 << (N - 1).bit_length())
    image_shares_kernel[(B,)](
        affinities, mask, mu, images, residual, mu_value, 1.0 - mu_value,
        N, N, 0, IMAGE_ENTRIES.value, *mask_strides(mask),
        BLOCK=block, ONE_BLOCK=block >= N, HAS_MASK=mask is not None, HAS_MU=mu is not None,
        BACKGROUND=False, WEIGHTS=False, num_warps=min(16, max(4, block // 512)),
    )  # fmt: skip
    plan_kernel[(B * T,)](
        cost, mask, epsilon, affinities, images, residual, plan, epsilon_value, M, N, T,
        *cost.stride(), *mask_strides(mask), **tile, HAS_MASK=mask is not None,
    )  # fmt: skip
    return residual, plan, affinities, images


def transport_backward(
    cost: Tensor,
    settings: Settings,
    affinities: Tensor,
    images: Tensor,
    grad_residual: Tensor | None,
    grad_plan: Tensor | None,
    want_epsilon: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of cost, mu (one an image) and epsilon; the last is empty where not wanted."""
    B, M, N = cost.shape
    T = -(-N // TILE_TOKENS)
    floats: dict[str, Any] = {"dtype": torch.float32, "device": cost.device}
    grad_cost = torch.empty((B, M, N), dtype=cost.dtype, device=cost.device)
    mu, _, epsilon, epsilon_value, mask, *_ = settings.ready()
    grad_mu = torch.empty((B,), dtype=torch.float64 if mu is None else mu.dtype, device=cost.device)
    grad_epsilon = torch.empty((B * T if want_epsilon else 0,), **floats)
    if B == 0:
        return grad_cost, grad_mu, grad_epsilon.sum() if want_epsilon else grad_epsilon
    grad_residual = None if grad_residual is None else grad_residual.contiguous()
    grad_plan = None if grad_plan is None else grad_plan.contiguous()
    # A copy, because the kernels write the mean gradient of an image beside its other numbers.
    images = images.clone()
    tile = {"BN": TILE_TOKENS, "BM": TILE_PROTOTYPES, "HAS_EPSILON": epsilon is not None}
    if grad_plan is None:
        means = torch.zeros((B, N), **floats)
    else:
        means = torch.empty((B, N), **floats)
        plan_mean_kernel[(B * T,)](
            cost, epsilon, affinities, grad_plan, means, epsilon_value, M, N, T, *cost.stride(), **tile
        )
    root_gradient_kernel[(B,)](
        affinities, mask, images, means, grad_residual, grad_mu, N, *mask_strides(mask),
        BLOCK=min(4096, 1 << (N - 1).bit_length()), HAS_MASK=mask is not None, HAS_GR=grad_residual is not None,
    )  # fmt: skip
    cost_gradient_kernel[(B * T,)](
        cost, mask, epsilon, affinities, images, means, grad_residual, grad_plan, grad_cost, grad_epsilon,
        epsilon_value, M, N, T, *cost.stride(), *mask_strides(mask), **tile, HAS_MASK=mask is not None,
        HAS_GR=grad_residual is not None, HAS_GP=grad_plan is not None, EPSILON=want_epsilon,
    )  # fmt: skip
    return grad_cost, grad_mu, grad_epsilon.sum() if want_epsilon else grad_epsilon
