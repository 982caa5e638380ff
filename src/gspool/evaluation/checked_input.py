"""Check user input and convert it to tensors: embeddings, labels, ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Int
    from torch import Tensor


def as_embeddings(values: Any, name: str, device: torch.device | str | None = None) -> Float[Tensor, "N D"]:
    """Convert embeddings to a finite floating tensor [N, D] without gradient.

    Raises:
        ValueError: if they are not a matrix of finite floating numbers with at least one row and one column.
    """
    vectors = _as_tensor(values, name, "a tensor or array of shape [N, D]").detach()
    if vectors.ndim != 2:
        hint = "; a single vector needs vectors[None]" if vectors.ndim == 1 else "; pool feature maps before evaluation"
        raise ValueError(f"{name} must have shape [N, D], one row an item, got {tuple(vectors.shape)}{hint}")
    if 0 in vectors.shape:
        raise ValueError(f"{name} must have at least one row and one column, got shape {tuple(vectors.shape)}")
    if not vectors.is_floating_point():
        raise ValueError(f"{name} must be floating point, got {vectors.dtype}; convert them with {name}.float()")
    vectors = vectors.to(device) if device is not None else vectors
    # The extremes of a tensor with NaN are NaN, and finding them needs no memory.
    if not all(torch.isfinite(extreme) for extreme in vectors.aminmax()):
        bad = (~vectors.isfinite().all(dim=1)).nonzero().flatten()
        raise ValueError(
            f"{name} must be finite, but {len(bad)} of {len(vectors)} rows hold NaN or infinity, the first at row "
            f"{int(bad[0])}; look for a diverged model, a half precision overflow or a division by a zero norm"
        )
    return vectors


def as_labels(
    values: Any, name: str, count: int | None = None, device: torch.device | str = "cpu"
) -> Int[Tensor, " N"]:
    """Convert class labels to an int64 tensor [N] on the device of the embeddings.

    Raises:
        ValueError: if they are not integers in one axis, ``count`` of them where that is known.
    """
    labels = _as_tensor(values, name, "integers, one an item; number the classes if they are names")
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"{name} must be integers, got {labels.dtype}; convert them with {name}.long()")
    if labels.ndim != 1:
        raise ValueError(f"{name} must have shape [N], one integer an item, got {tuple(labels.shape)}")
    if count is not None and len(labels) != count:
        raise ValueError(f"{name} must have one entry for each of the {count} embeddings, got {len(labels)}")
    return labels.to(device=device, dtype=torch.int64)


def as_ranks(ks: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks of R@K as increasing integers without repeats.

    Raises:
        ValueError: if one of them is not an integer of at least 1.
    """
    if isinstance(ks, int | str):
        raise ValueError(f"ks must be a sequence of integers such as (1, 2, 4, 8), got {ks!r}")
    for k in ks:
        check_integer(k, 1, "every k of R@K must be an integer of at least 1")
    return tuple(sorted(set(ks)))


def check_integer(value: Any, least: int, expected: str) -> int:
    """Return a number.

    Raises:
        ValueError: if it is not an integer of at least ``least``; the message begins with what is expected.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{expected}, got {value!r}")
    return value


def _as_tensor(values: Any, name: str, expected: str) -> Tensor:
    if hasattr(values, "flags") and not values.flags.writeable:
        # torch shares memory with arrays and warns of those it must not write to, although nothing here writes.
        values = values.copy()
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must be {expected}, got {type(values).__name__} ({error})") from error
