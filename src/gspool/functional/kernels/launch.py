"""Start the kernels of `gsp_pool` at the cost of the driver's own launch; nothing waits for the GPU.

Triton binds and inspects every argument anew in each call, which takes the host longer than the GPU needs for a small
problem. What those arguments turn on (sizes, strides, dtypes, alignment) is the same for every call of one kind, so
here it is inspected once: `plan_forward` and `plan_backward` prepare the launches of a kind, `pool_forward` and
`pool_backward` allocate and start them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool.functional.kernels.backward import (
    gradient_slice_kernel,
    near_gradient_kernel,
    pool_backward_kernel,
    prototype_gradient_kernel,
)
from gspool.functional.kernels.distance import clip_prototypes_kernel
from gspool.functional.kernels.forward import (
    image_sums_kernel,
    tile_affinity_kernel,
    tile_sums_kernel,
    whole_image_kernel,
)
from gspool.functional.kernels.plan import (
    FACTOR_ROWS,
    TOKEN_ROWS,
    BackwardKind,
    Kind,
    Layout,
    Settings,
    Tiling,
    alignment,
    gradient_precision,
    is_sliced,
    kept_sums,
    kind_of,
    layout_of,
    misalignment,
    processors,
    slice_tiling,
    sums_of,
    tiling_of,
    unpacked,
)
from gspool.functional.kernels.solve import ONE_BLOCK, image_shares_kernel
from gspool.functional.results import PoolGradient

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from gspool.functional.results import Incoming, Wanted

# Programs that add to sums of their own where atomic additions are not allowed; the same on every device.
DETERMINISTIC_PROGRAMS = 128
DETERMINISTIC_SPLITS = 16


class Launch:
    """One kernel, one grid and all arguments that do not change from call to call.

    The first call compiles; later ones go straight to the compiled kernel. A caller that keeps a `Launch` promises that
    the tensors of all its calls agree in dtype, in alignment to 16 bytes and in being None.
    """

    __slots__ = ("_constants", "_fixed", "_grid", "_kernel", "_options", "_start")

    def __init__(
        self, kernel: Any, grid: tuple[int, ...], fixed: tuple[int, ...], constants: dict[str, Any], warps: int
    ) -> None:
        self._kernel = kernel
        self._grid = (*grid, 1, 1)[:3]
        self._fixed = fixed
        self._constants = constants
        # Stated, because Triton is about to change its default; the sums are more exact with fused additions.
        self._options = {"num_warps": warps, "enable_fp_fusion": True}
        self._start: Callable[..., None] | None = None

    def __call__(self, *changing: Tensor | float | None) -> None:
        """Launch with the kernel's first arguments: its tensors and the numbers that may differ in every call."""
        if self._start is not None:
            self._start(*changing, *self._fixed)
            return
        compiled = self._kernel[self._grid](*changing, *self._fixed, **self._constants, **self._options)
        # Triton's interpreter compiles nothing, and is asked again in every call.
        if compiled is not None:
            known = len(changing) + len(self._fixed)
            # A compiled kernel takes its constants by position and does not look at them.
            self._fixed += tuple(self._constants[name] for name in self._kernel.arg_names[known:])
            self._start = compiled[self._grid]


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
    layout: Layout
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
    layout = layout_of(B, N, D, M, sums)
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


def _whole_launch(kind: Kind, tiling: Tiling, layout: Layout, keep: int) -> Launch:
    B, N, D = kind.shape
    return Launch(
        whole_image_kernel,
        (B,),
        (N, kind.prototypes, D, *kind.all_strides, layout.images_at, layout.norms_at),
        _how(kind, tiling)
        | {"HAS_MU": kind.mu_dtype is not None, "BACKGROUND": kind.background, "KEEP": keep}
        | {"OPERAND": kind.operand, "SUMS": sums_of(kind)},
        tiling.warps,
    )


def _tiled_launches(kind: Kind, tiling: Tiling, layout: Layout, sums: int) -> TiledLaunches:
    B, N, D = kind.shape
    M, T = kind.prototypes, tiling.tiles
    strides = kind.all_strides
    how = _how(kind, tiling)
    block = min(ONE_BLOCK, 1 << (N - 1).bit_length())
    affinity = Launch(tile_affinity_kernel, (B * T,), (N, M, D, T, *strides, layout.norms_at), how, tiling.warps)
    shares = Launch(
        image_shares_kernel,
        (B,),
        (N, TOKEN_ROWS.value * N, layout.images_at, layout.image_stride, *strides[3:]),
        {"BLOCK": block, "ONE_BLOCK": block >= N, "HAS_MASK": how["HAS_MASK"], "HAS_MU": kind.mu_dtype is not None}
        | {"BACKGROUND": kind.background, "WEIGHTS": True},
        warps=min(16, max(4, block // 512)),
    )
    weighted_sums = Launch(
        tile_sums_kernel,
        (B * T,),
        (N, M, D, T, *strides, layout.images_at, layout.norms_at, layout.image_stride),
        how | {"BACKGROUND": kind.background, "KEEP": sums, "OPERAND": kind.operand, "SUMS": sums_of(kind)},
        tiling.warps,
    )
    images = Launch(
        image_sums_kernel,
        (B, -(-(2 if sums else 1) * (D + M) // 512)),
        (D, M, T, layout.images_at, layout.image_stride),
        {"BLOCK": 512, "KEEP": sums},
        warps=4,
    )
    return TiledLaunches(affinity, shares, weighted_sums, images, partial=B * T * 2 * (D + M))


def addressable(tokens: Tensor) -> Tensor:
    """Copy tokens only if one image spans more than the 32-bit offsets of the kernels can reach."""
    _, N, D = tokens.shape
    _, stride_n, stride_d = tokens.stride()
    return tokens if (N - 1) * stride_n + (D - 1) * stride_d < 2**31 else tokens.contiguous()


class Forward(NamedTuple):
    """What a forward pass returns: its three results, and what the backward pass reads.

    ``kept`` holds the numbers of `plan.Layout`, ``clipped`` the prototypes as the matrix units want them.
    """

    pooled: Tensor
    weights: Tensor
    attributes: Tensor
    kept: Tensor
    clipped: Tensor


def pool_forward(tokens: Tensor, prototypes: Tensor, settings: Settings, keep: int) -> tuple[Forward, ForwardPlan]:
    """Return the results and the plan, because the backward pass starts from the same kind of call.

    ``keep`` is 0 where no gradient will be asked for, 2 where one of mu will be, 1 otherwise.
    """
    B, N, D = tokens.shape
    M = prototypes.shape[0]
    tokens, prototypes, settings = addressable(tokens), prototypes.contiguous(), settings.ready()
    kind = kind_of(tokens, prototypes, settings)
    plan = plan_forward(kind, keep)
    pooled = tokens.new_empty((B, D))
    weights = tokens.new_empty((B, N), dtype=torch.float32)
    attributes = tokens.new_empty((B, M), dtype=torch.float32)
    kept = tokens.new_empty(plan.layout.length, dtype=torch.float32)
    clipped = tokens.new_empty((kind.parts, M, D))
    output = Forward(pooled, weights, attributes, kept, clipped)
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


class BackwardPlan(NamedTuple):
    """The launches of one kind of backward pass, in their order, and how many parts the prototypes' sums have."""

    tiles: Launch
    slices: tuple[Launch, ...]
    near: Launch | None
    finish: Launch
    works: int
    parts: int
    factors: int


@functools.lru_cache(maxsize=256)
def plan_backward(kind: Kind, back: BackwardKind) -> BackwardPlan:
    """Prepare the launches for a kind of call."""
    B, N, D = kind.shape
    M, wanted = kind.prototypes, back.wanted
    sliced = wanted.tokens and is_sliced(kind)
    tiling = tiling_of(kind, backward=True, sliced=sliced)
    T = tiling.tiles
    layout = layout_of(B, N, D, M, kept_sums(kind, back.keep))
    if back.atomic:
        programs, parts = B * T, 1
    elif sliced:
        programs, parts = B * T, min(DETERMINISTIC_SPLITS, B)
    else:
        programs = parts = min(B * T, DETERMINISTIC_PROGRAMS)
    strides = kind.all_strides
    precision = gradient_precision(kind, tiling.columns)
    hints = {"N_HINT": alignment(N), "D_HINT": alignment(kind.strides[2]), "GRAD_HINT": alignment(back.grad_strides[2])}
    shared: dict[str, Any] = {
        "OPERAND": kind.operand,
        "HAS_MASK": kind.mask_strides is not None,
        "BACKGROUND": kind.background,
        "ATOMIC": back.atomic,
        "PROTOTYPES": wanted.prototypes,
    }
    tiles = Launch(
        pool_backward_kernel,
        (programs,),
        (N, M, D, T, B * T, *strides, layout.images_at, layout.norms_at, layout.image_stride, *back.grad_strides),
        {"BN": tiling.rows, "BM": tiling.columns, "BD": tiling.channels, "BS": tiling.channels, "BV": 1024}
        | {"PRECISION": kind.precision, "GRADIENT_PRECISION": precision, "PARTS": kind.parts, "STAGES": tiling.stages}
        | {"HAS_MU": kind.mu_dtype is not None, "HAS_EPSILON": kind.epsilon_dtype is not None, "WHOLE": T == 1}
        | {"HAS_GW": back.has_weights, "HAS_GA": back.has_attributes, "TOKENS": wanted.tokens, "MU": wanted.mu}
        | {"EPSILON": wanted.epsilon, "SLICED": sliced, "ONCE": programs == B * T}
        | shared
        | hints,
        tiling.warps,
    )
    finish = Launch(
        prototype_gradient_kernel, (M,), (layout.norms_at, M, D, parts), {"BD": 1024, "BP": 16}, warps=4
    )  # fmt: skip
    if not sliced:
        return BackwardPlan(tiles, (), None, finish, B * T, parts, 0)
    cut = slice_tiling(N, M, kind.dtype == torch.float32 and precision == "tf32x3")
    slices = _slice_launches(kind, back, cut, layout, parts, shared | {"PRECISION": precision} | hints)
    works = B * cut.tiles
    near = Launch(
        near_gradient_kernel,
        (works if back.atomic else parts,),
        (N, M, D, cut.tiles, works, *strides, layout.norms_at, *back.grad_strides),
        {"BN": cut.rows, "BM": cut.columns, "BS": tiling.channels, "PRECISION": precision}
        | {name: shared[name] for name in ("OPERAND", "HAS_MASK", "ATOMIC", "PROTOTYPES")},
        warps=8,
    )
    return BackwardPlan(tiles, slices, near, finish, B * T, parts, FACTOR_ROWS.value * B * N)


def _slice_launches(
    kind: Kind, back: BackwardKind, cut: Tiling, layout: Layout, parts: int, how: dict[str, Any]
) -> tuple[Launch, ...]:
    B, N, D = kind.shape
    T = cut.tiles
    count = -(-D // cut.channels)
    launches = []
    # The first slice overwrites the pulls, so it comes last.
    for first, slices in ((1, count - 1), (0, 1)):
        if slices == 0:
            continue
        splits = max(1, min(B * T, processors(kind.device) // slices)) if back.atomic else parts
        sizes = (N, kind.prototypes, D, T, B * T, first, slices, splits)
        shape = {"BN": cut.rows, "BM": cut.columns, "BS": cut.channels, "STAGES": cut.stages}
        launches.append(
            Launch(
                gradient_slice_kernel,
                (slices * splits,),
                (*sizes, *kind.all_strides, layout.images_at, layout.image_stride, *back.grad_strides),
                shape | {"COUNT_PULLS": first == 0} | how,
                cut.warps,
            )
        )
    return tuple(launches)


def pool_backward(
    tokens: Tensor,
    prototypes: Tensor,
    settings: Settings,
    keep: int,
    kept: Tensor,
    clipped: Tensor,
    incoming: Incoming,
    wanted: Wanted,
    kind: Kind | None = None,
) -> PoolGradient:
    """Return the gradients, that of mu one an image.

    A caller that knows the kind of the forward pass spares the backward pass from finding it again.
    """
    B, _, D = tokens.shape
    M = prototypes.shape[0]
    grad_tokens = torch.empty_like(tokens) if wanted.tokens else None
    tokens, contiguous, settings = addressable(tokens), prototypes.contiguous(), settings.ready()
    grad_pooled = tokens.new_zeros((B, D)) if incoming.pooled is None else incoming.pooled.contiguous()
    grad_weights = None if incoming.weights is None else incoming.weights.contiguous()
    grad_attributes = None if incoming.attributes is None else incoming.attributes.contiguous()
    if kind is None:
        kind = kind_of(tokens, contiguous, settings)
    else:
        tokens, kind = unpacked(tokens, contiguous, settings, kind)
    back = BackwardKind(
        keep,
        (0, 0, 0) if grad_tokens is None else grad_tokens.stride(),
        grad_weights is not None,
        grad_attributes is not None,
        wanted,
        not torch.are_deterministic_algorithms_enabled(),
        misalignment(grad_pooled, grad_weights, grad_attributes, kept, clipped),
    )
    plan = plan_backward(kind, back)
    grad_mu = tokens.new_empty(B, dtype=torch.float64) if wanted.mu else None
    by_tile = tokens.new_empty(plan.works, dtype=torch.float32) if wanted.epsilon else None
    factors = tokens.new_empty(plan.factors, dtype=torch.float32) if plan.factors else None
    accumulated = None
    if wanted.prototypes:
        # The kernel that forms no products itself clears the sums on its way.
        create = tokens.new_empty if plan.slices else tokens.new_zeros
        accumulated = create((plan.parts, M * D + M), dtype=torch.float32)
    if B > 0:
        mu, mu_value, epsilon, epsilon_value, mask, *_ = settings
        plan.tiles(
            tokens, contiguous, clipped, kept, mask, mu, epsilon, grad_pooled, grad_weights, grad_attributes,
            grad_tokens, accumulated, factors, grad_mu, by_tile, mu_value, 1.0 - mu_value, epsilon_value,
        )  # fmt: skip
        for part in plan.slices:
            part(tokens, clipped, kept, mask, grad_pooled, grad_tokens, factors, accumulated)
        if plan.near is not None:
            plan.near(tokens, contiguous, kept, mask, grad_tokens, factors, accumulated)
    grad_prototypes = None
    if accumulated is not None:
        grad_prototypes = prototype_gradient_memory(prototypes, accumulated)
        if B > 0:
            plan.finish(contiguous, kept, accumulated, grad_prototypes)
        else:
            grad_prototypes.zero_()
    return PoolGradient(grad_tokens, grad_prototypes, grad_mu, None if by_tile is None else by_tile.sum())


def prototype_gradient_memory(prototypes: Tensor, accumulated: Tensor) -> Tensor:
    """Reuse the sums' own memory for the result where there is one part and the dtype fits: nothing extra is held."""
    if accumulated.shape[0] == 1 and prototypes.dtype == torch.float32:
        return accumulated.as_strided(prototypes.shape, (prototypes.shape[1], 1))
    return torch.empty(prototypes.shape, dtype=prototypes.dtype, device=prototypes.device)
