"""The largest entries of each row, found without ordering the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

# Columns are compared in groups of these sizes; rows whose length the largest divides are divided by all.
GROUP_SIZES = (256, 64, 16)
_VECTORS = 32
# From so many wanted entries on, sorting the few that pass a threshold is faster than a selection among all members.
_MANY = 128


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
    # The two selections look at so many entries, the first of them more slowly; where that is not far below all of
    # them, one look does.
    group = min(GROUP_SIZES, key=lambda size: 2 * (columns // size) + k * size)
    if columns % group != 0 or 4 * (columns // group + k * group) > columns * 3:
        return Largest(*scores.topk(k, dim=1))
    stretch = columns // group
    # Small groups are combs over the row: the maxima of whole stretches, entry by entry, fill a vector unit, which
    # neighbours fill only from some dozens on.
    comb = group < _VECTORS
    grouped = scores.view(count, group, stretch) if comb else scores.view(count, stretch, group).transpose(1, 2)
    best = grouped.amax(dim=1).topk(k, dim=1, sorted=False)
    members = grouped.gather(2, best.indices[:, None, :].expand(-1, group, -1)).view(count, -1)
    if k < _MANY or scores.dtype != torch.float32:
        values, places = members.topk(k, dim=1)
    else:
        values, places = _sorted_above(members, best.values.amin(dim=1), k)
    chosen, member = best.indices.gather(1, places % k), places // k
    return Largest(values, chosen + member * stretch if comb else chosen * group + member)


def _sorted_above(members: Float[Tensor, "B S"], floor: Float[Tensor, " B"], k: int) -> Largest:
    """Return the ``k`` largest of each row, when at least k and hardly more of them reach the row's floor.

    A number and its place are sorted as one integer: the bits of a float32 order like it, once those of negative
    numbers are turned over.
    """
    count, width = members.shape
    passing = (members >= floor[:, None]).flatten().nonzero().flatten()
    row = passing // width
    keys = (_turned_over(members.flatten()[passing].view(torch.int32)).long() << 32) | (passing - row * width)
    # Rows have as many as they have; side by side in a matrix they can be sorted at once.
    starts = torch.searchsorted(row, torch.arange(count + 1, device=row.device))
    longest = int(starts.diff().max())
    matrix = torch.full((count * longest,), torch.iinfo(torch.int64).min, device=keys.device)
    matrix[torch.arange(len(row), device=row.device) - starts[row] + row * longest] = keys
    keys = matrix.view(count, longest).sort(dim=1, descending=True).values[:, :k]
    return Largest(_turned_over((keys >> 32).int()).view(torch.float32), keys & 0xFFFFFFFF)


def _turned_over(bits: Int[Tensor, "*N"]) -> Int[Tensor, "*N"]:
    """Turn the bits of negative numbers over, all but the sign; doing it again undoes it."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
