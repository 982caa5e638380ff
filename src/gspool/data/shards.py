"""Distribute an evaluation set over processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch.utils.data import Sampler


class Place(NamedTuple):
    """The rank of a process and the number of processes of the run."""

    rank: int
    world_size: int


def placed(rank: int | None = None, world_size: int | None = None) -> Place:
    """Return the place of this process: as given, else from torch.distributed, else the only one.

    Raises:
        ValueError: if only one of the two is given, or the rank is out of range.

    Example:
        >>> placed()
        Place(rank=0, world_size=1)
    """
    if (rank is None) != (world_size is None):
        raise ValueError(f"give rank and world_size together or neither, got rank={rank}, world_size={world_size}")
    if rank is None or world_size is None:
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return Place(0, 1)
        return Place(torch.distributed.get_rank(), torch.distributed.get_world_size())
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must lie in 0..world_size-1, got rank={rank}, world_size={world_size}")
    return Place(rank, world_size)


class Shard(Sampler[int]):
    """Yield this process's block of the indices 0..length-1; all blocks together hold every index once.

    Unlike torch's DistributedSampler it never repeats an image to make the blocks equally long, so gathered embeddings
    have no duplicates.

    Raises:
        ValueError: if the length is negative, or the rank is out of range.

    Example:
        >>> [list(Shard(7, rank=rank, world_size=3)) for rank in range(3)]
        [[0, 1], [2, 3], [4, 5, 6]]
    """

    def __init__(self, length: int, rank: int | None = None, world_size: int | None = None) -> None:
        super().__init__()
        if length < 0:
            raise ValueError(f"length is the number of images and must not be negative, got {length}")
        place = placed(rank, world_size)
        self.indices = range(place.rank * length // place.world_size, (place.rank + 1) * length // place.world_size)

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)
