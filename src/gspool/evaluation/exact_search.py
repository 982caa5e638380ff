"""The exact search: fast scores propose, float64 distances decide wherever rounding could have."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from gspool.evaluation.checked_input import check_integer
from gspool.evaluation.top_k import GROUP_SIZES, select_largest

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from gspool.evaluation.metric_space import MetricSpace

_GIBIBYTE = 2**30
# More rows than this at a time take more memory and make a CPU no faster.
_CPU_ROWS = 1024
# Candidates fetched beyond those asked for, so that rounding at the border seldom needs a second look.
_SLACK = 8


class Classes(NamedTuple):
    """The classes of all queries and of the gallery, for a search that is only asked where the hits are."""

    queries: Int[Tensor, " Q"]
    gallery: Int[Tensor, " G"]

    def hits(self, rows: Int[Tensor, " B"], columns: Int[Tensor, "B W"]) -> Bool[Tensor, "B W"]:
        """Return whether a gallery row is of the class of its query."""
        return self.gallery[columns] == self.queries[rows][:, None]


@torch.no_grad()
def search(
    space: MetricSpace, rows: Int[Tensor, " B"], depth: int, memory: int, classes: Classes | None = None
) -> Int[Tensor, "B K"]:
    """Find the ``depth`` nearest gallery rows of the queries ``rows``, nearest first, ties by gallery row.

    With ``classes`` only the ranks of the hits are promised: which of several hits, or of several others, stands where
    among its like changes no metric, and is left as it was proposed.

    Scores propose ``depth`` and a few more candidates. Candidates whose scores lie within the error bound of each
    other are measured again in float64, and a query whose last neighbour lies within the bound of what was left out
    is searched again with more candidates. So the order is that of the exact distances, whatever device or block
    size computed the scores.

    Raises:
        ValueError: if ``memory`` does not hold the scores of a single query.
    """
    found = torch.empty(len(rows), depth, dtype=torch.int64, device=space.device)
    if space.one_point:
        # Everything ties; without this every pair would be measured again.
        found[:] = torch.arange(depth, device=space.device)
        return found + (found >= rows[:, None]) if space.own_gallery else found
    pending, slack = torch.arange(len(rows), device=space.device), _SLACK
    while len(pending):
        width = min(depth + slack, space.reachable)
        step = min(_rows_that_fit(space, width, memory), len(pending))
        buffer = torch.empty(step, len(space.bias), dtype=space.dtype, device=space.device)
        certain = []
        for part in pending.split(step):
            scored = space.scores(rows[part], out=buffer[: len(part)])
            best = select_largest(scored.scores, width)
            squared = scored.squared_norms[:, None] - 2.0 * best.values.double()
            certain.append(_is_border_certain(squared, depth, space))
            hits = None if classes is None else classes.hits(rows[part], best.columns)
            found[part] = _in_exact_order(space, rows[part], best.columns, squared, hits)[:, :depth]
        pending, slack = pending[~torch.cat(certain)], slack * 8
    return found


def working_memory(space: MetricSpace, memory: int | None) -> int:
    """Return the bytes a search may use: ``memory`` if given, else what the space holds and 1 GiB (GPU: up to 8).

    Raises:
        ValueError: if ``memory`` is not a positive number of bytes.
    """
    if memory is None:
        if space.device.type != "cuda":
            return space.bytes_held + _GIBIBYTE
        return space.bytes_held + min(8 * _GIBIBYTE, torch.cuda.mem_get_info(space.device)[0] // 2)
    return check_integer(memory, 1, "memory is a number of bytes, such as 2**30 for one gibibyte")


def _is_border_certain(squared: Float[Tensor, "B W"], depth: int, space: MetricSpace) -> Bool[Tensor, " B"]:
    """Return whether nothing outside the candidates can be among the ``depth`` nearest."""
    if squared.shape[1] == space.reachable:
        return torch.ones(len(squared), dtype=torch.bool, device=squared.device)
    return squared[:, -1] - squared[:, depth - 1] > 2 * space.doubt


def _in_exact_order(
    space: MetricSpace,
    rows: Int[Tensor, " B"],
    columns: Int[Tensor, "B W"],
    squared: Float[Tensor, "B W"],
    hits: Bool[Tensor, "B W"] | None,
) -> Int[Tensor, "B W"]:
    """Order candidates by exact distance, then by gallery row; with ``hits``, as far as the ranks of hits need it.

    A candidate further than twice the bound from both its neighbours in the list stands where it belongs; the others
    form chains, and measuring a chain again moves nothing past its ends. A chain of hits alone, or without any, keeps
    the ranks of its hits in whatever order.
    """
    close = squared.diff(dim=1) <= 2 * space.doubt
    chained = torch.zeros_like(squared, dtype=torch.bool)
    chained[:, 1:] |= close
    chained[:, :-1] |= close
    query, place = chained.nonzero(as_tuple=True)
    chained[:, 1:] &= ~close
    # What is left marks the first candidate of each chain.
    chain = chained[query, place].cumsum(0)
    if hits is not None:
        hit = hits[query, place]
        differs = (hit[1:] != hit[:-1]) & (chain[1:] == chain[:-1])
        mixed = torch.zeros(len(chain) + 1, dtype=torch.bool, device=chain.device)
        mixed[chain[1:][differs]] = True
        query, place, chain = (each[mixed[chain]] for each in (query, place, chain))
    candidates = columns[query, place]
    lengths = space.squared_distances(rows[query], candidates)
    order = candidates.argsort()
    order = order[lengths[order].argsort(stable=True)]
    order = order[chain[order].argsort(stable=True)]
    columns[query, place] = candidates[order]
    return columns


def _rows_that_fit(space: MetricSpace, width: int, memory: int) -> int:
    item = space.columns.element_size()
    # Scores, their group maxima and the members of the chosen groups; values, columns and orders of the candidates.
    scores = len(space.bias) + len(space.bias) // GROUP_SIZES[-1] + min(width * GROUP_SIZES[0], len(space.bias))
    row = scores * item + width * 192 + space.dim * 40
    # One eighth is left to what the caller does with the neighbours found.
    fits = (memory - space.bytes_held) * 7 // 8 // row
    if fits < 1:
        raise ValueError(
            f"memory={memory} bytes do not hold a search among {len(space.gallery)} vectors of {space.dim} columns; "
            f"give at least {space.bytes_held + -(-row * 8 // 7)}"
        )
    return fits if space.device.type != "cpu" else min(fits, _CPU_ROWS)
