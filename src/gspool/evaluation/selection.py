"""The largest entries of each row, found without ordering the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

# Columns are judged in groups of these sizes; rows whose length the largest divides are divided by all.
GROUP_SIZES = (256, 64, 8)


class Largest(NamedTuple):
    """The largest entries of each row, largest first, and the columns they stand in."""

    values: Float[Tensor, "B K"]
    columns: Int[Tensor, "B K"]


def select_largest(scores: Float[Tensor, "B G"], k: int) -> Largest:
    """Find the ``k`` largest entries of each row; of equal ones any.

    The k groups of columns with the largest maxima hold the k largest entries: an entry outside them has k larger
    ones, those maxima. So one cheap pass over the scores is followed by two small selections, where ordering whole
    rows costs as much as computing them.

    Example:
        >>> select_largest(torch.tensor([[1.0, 9.0, 4.0]]), k=2).columns
        tensor([[1, 2]])
    """
    count, columns = scores.shape
    # The two selections look at so many entries; where that is not far below all of them, one look does.
    group = min(GROUP_SIZES, key=lambda size: columns // size + k * size)
    if columns % group != 0 or 4 * (columns // group + k * group) > columns * 3:
        return Largest(*scores.topk(k, dim=1))
    grouped = scores.view(count, -1, group)
    groups = grouped.amax(dim=2).topk(k, dim=1, sorted=False).indices
    offsets = torch.arange(count, device=scores.device)[:, None] * grouped.shape[1]
    members = grouped.view(-1, group).index_select(0, (groups + offsets).flatten()).view(count, -1)
    values, places = members.topk(k, dim=1)
    return Largest(values, groups.gather(1, places // group) * group + places % group)
