"""Start the forward kernels of `gsp_pool`: allocate, choose tiles once a kind of call, launch; nothing waits."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool.functional.kernels.clipped_prototypes import clip_prototypes_kernel
from gspool.functional.kernels.image_shares import image_shares_kernel
from gspool.functional.kernels.kept import KeptLayout, kept_layout
from gspool.functional.kernels.launch import Launch
from gspool.functional.kernels.pool_settings import (
    Kind,
    Settings,
    addressable,
    kept_sums,
    kind_of,
    mask_strides,
    operand_of,
    ready,
    sums_of,
    tiling_of,
)
from gspool.functional.kernels.tile_forward import image_sums_kernel, tile_affinity_kernel, tile_sums_kernel
from gspool.functional.kernels.tiling import Tiling, alignment
from gspool.functional.kernels.whole_image import whole_image_kernel

if TYPE_CHECKING:
    from torch import Tensor

# Images up to this many tokens are solved in registers; larger ones read their log-affinities again in every step.
ONE_BLOCK = 16384


class TiledLaunches(NamedTuple):
    """The steps for images larger than a tile, and how many numbers they hand from one to the next."""

    affinity: Launch
    shares: Launch
    sums: Launch
    images: Launch
    partial: int


class ForwardPlan(NamedTuple):
    """The launches of one kind of forward pass: all of it at once, or tile by tile."""

    kind: Kind
    layout: KeptLayout
    clip: Launch
    whole: Launch | None
    tiled: TiledLaunches | None


@functools.lru_cache(maxsize=256)
def plan_forward(kind: Kind, keep: int) -> ForwardPlan:
    """Prepare the launches for a kind of call; ``keep`` as in `pool_forward`."""
    B, N, D = kind.shape
    M = kind.prototypes
    tiling = tiling_of(kind, backward=False, sliced=False)
    sums = kept_sums(kind, keep)
    layout = kept_layout(B, N, D, M, sums)
    clip = Launch(clip_prototypes_kernel, (M,), (layout.norms_at, M, D), {"BD": 1024, "PARTS": kind.parts}, warps=4)
    # Where the backward pass cuts an image into tiles, it wants sums that a whole image does not form.
    if tiling.tiles == 1 and sums == 0:
        return ForwardPlan(kind, layout, clip, _whole_launch(kind, tiling, layout, keep), None)
    return ForwardPlan(kind, layout, clip, None, _tiled_launches(kind, tiling, layout, sums))


def _how(kind: Kind, tiling: Tiling) -> dict[str, Any]:
    return {
        "BN": tiling.rows,
        "BM": tiling.columns,
        "BD": tiling.channels,
        "PRECISION": kind.precision,
        "PARTS": kind.parts,
        "STAGES": tiling.stages,
        "HAS_MASK": kind.mask_strides is not None,
        "HAS_EPSILON": kind.epsilon_dtype is not None,
        "N_HINT": alignment(kind.shape[1]),
        "D_HINT": alignment(kind.strides[2]),
    }


def _whole_launch(kind: Kind, tiling: Tiling, layout: KeptLayout, keep: int) -> Launch:
    B, N, D = kind.shape
    strides = (*kind.strides, *mask_strides(kind.mask_strides))
    return Launch(
        whole_image_kernel,
        (B,),
        (N, kind.prototypes, D, *strides, layout.summary_at, layout.norms_at),
        _how(kind, tiling)
        | {"HAS_MU": kind.mu_dtype is not None, "BACKGROUND": kind.background, "KEEP": keep}
        | {"OPERAND": operand_of(kind), "SUMS": sums_of(kind)},
        tiling.warps,
    )


def _tiled_launches(kind: Kind, tiling: Tiling, layout: KeptLayout, sums: int) -> TiledLaunches:
    B, N, D = kind.shape
    M, T = kind.prototypes, tiling.tiles
    strides = (*kind.strides, *mask_strides(kind.mask_strides))
    how = _how(kind, tiling)
    block = min(ONE_BLOCK, 1 << (N - 1).bit_length())
    affinity = Launch(tile_affinity_kernel, (B * T,), (N, M, D, T, *strides, layout.norms_at), how, tiling.warps)
    shares = Launch(
        image_shares_kernel,
        (B,),
        (N, 4 * N, layout.summary_at, layout.summary_stride, *mask_strides(kind.mask_strides)),
        {"BLOCK": block, "ONE_BLOCK": block >= N, "HAS_MASK": how["HAS_MASK"], "HAS_MU": kind.mu_dtype is not None}
        | {"BACKGROUND": kind.background, "WEIGHTS": True},
        warps=min(16, max(4, block // 512)),
    )
    weighted_sums = Launch(
        tile_sums_kernel,
        (B * T,),
        (N, M, D, T, *strides, layout.summary_at, layout.norms_at, layout.summary_stride),
        how | {"BACKGROUND": kind.background, "KEEP": sums, "OPERAND": operand_of(kind), "SUMS": sums_of(kind)},
        tiling.warps,
    )
    images = Launch(
        image_sums_kernel,
        (B, -(-(2 if sums else 1) * (D + M) // 512)),
        (D, M, T, layout.summary_at, layout.summary_stride),
        {"BLOCK": 512, "KEEP": sums},
        warps=4,
    )
    return TiledLaunches(affinity, shares, weighted_sums, images, partial=B * T * 2 * (D + M))


def pool_forward(
    tokens: Tensor, prototypes: Tensor, settings: Settings, keep: int
) -> tuple[tuple[Tensor, ...], ForwardPlan]:
    """Give pooled, weights, attributes, and for the backward pass the kept numbers and the clipped prototypes.

    ``keep`` is 0 where no gradient will be asked for, 2 where one of mu will be, 1 otherwise. The plan comes along
    because the backward pass starts from the same kind of call.
    """
    B, N, D = tokens.shape
    M = prototypes.shape[0]
    tokens, prototypes, settings = addressable(tokens), prototypes.contiguous(), ready(settings)
    kind = kind_of(tokens, prototypes, settings)
    plan = plan_forward(kind, keep)
    pooled = tokens.new_empty((B, D))
    weights = tokens.new_empty((B, N), dtype=torch.float32)
    attributes = tokens.new_empty((B, M), dtype=torch.float32)
    kept = tokens.new_empty(plan.layout.length, dtype=torch.float32)
    clipped = tokens.new_empty((kind.parts, M, D))
    output = (pooled, weights, attributes, kept, clipped)
    if B == 0:
        return output, plan
    mu, mu_value, epsilon, epsilon_value, mask, *_ = settings
    rest_value = 1.0 - mu_value
    plan.clip(prototypes, kept, clipped)
    if plan.whole is not None:
        plan.whole(
            tokens, prototypes, clipped, kept, mask, mu, epsilon, pooled, weights, attributes,
            mu_value, rest_value, epsilon_value,
        )  # fmt: skip
    elif plan.tiled is not None:
        tiled = plan.tiled
        partial = tokens.new_empty(tiled.partial, dtype=torch.float32)
        tiled.affinity(tokens, prototypes, clipped, kept, mask, epsilon, epsilon_value)
        tiled.shares(kept, mask, mu, kept, weights, mu_value, rest_value)
        tiled.sums(tokens, clipped, kept, mask, epsilon, partial, epsilon_value)
        tiled.images(partial, pooled, attributes, kept)
    return output, plan
