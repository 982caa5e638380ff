"""Which images a process loads: class-balanced or shuffled batches to train, shards to evaluate."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.utils.data import DataLoader, Sampler

from gspool.data.image_set import mixed_seed
from gspool.terminal.signals import blocked_signals

if TYPE_CHECKING:
    from jaxtyping import Int64
    from torch import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")


def placed(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Return rank and number of processes: as given, else from torch.distributed, else of the only one.

    Raises:
        ValueError: if only one of the two is given, or the rank is out of range.

    Example:
        >>> placed()
        (0, 1)
    """
    if (rank is None) != (world_size is None):
        raise ValueError(f"give rank and world_size together or neither, got rank={rank}, world_size={world_size}")
    if rank is None or world_size is None:
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return 0, 1
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must lie in 0..world_size-1, got rank={rank}, world_size={world_size}")
    return rank, world_size


class ClassBalancedBatches(Sampler[list[int]]):
    """Yield batches of ``images_per_class`` images of each of ``classes_per_batch`` different classes.

    The plan of an epoch depends on (seed, epoch) alone: every class appears once before any appears again, no class
    appears twice in a batch, and the images of a class are drawn without replacement until fewer than m are left. A
    class with fewer than m images repeats them within its group. Each rank takes its P / world classes of every batch,
    so the ranks together see exactly the batch of a single process.

    Args:
        labels: one label for each image, such as ``set.labels``.
        classes_per_batch: P, in the batch of all ranks together.
        images_per_class: m; 4 for the pair losses of the paper, 1 for its proxy losses.
        batches_per_epoch: as many as the images fill, unless given.
        seed: of the plans.
        rank: of this process; from torch.distributed where that is running, else 0.
        world_size: likewise, else 1.

    Raises:
        ValueError: if there are too few classes, a number is not positive, or P is not a multiple of the world size.

    Example:
        >>> labels = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
        >>> batches = ClassBalancedBatches(labels, classes_per_batch=2, images_per_class=2)
        >>> len(batches), [sorted(labels[batch].unique(return_counts=True)[1].tolist()) for batch in batches]
        (2, [[2, 2], [2, 2]])
    """

    def __init__(
        self,
        labels: Int64[Tensor, " N"] | Sequence[int],
        classes_per_batch: int,
        images_per_class: int,
        *,
        batches_per_epoch: int | None = None,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        super().__init__()
        self.labels = torch.as_tensor(labels, dtype=torch.int64)
        self.rows = _grouped(self.labels)
        self.classes_per_batch = classes_per_batch
        self.images_per_class = images_per_class
        self.seed = seed
        self.rank, self.world_size = placed(rank, world_size)
        self.epoch = 0
        self.next_batch = 0
        self._first_batch = 0
        self._check()
        if classes_per_batch % self.world_size:
            raise ValueError(
                f"a batch of {classes_per_batch} is divided among the ranks and must be a multiple of their number, "
                f"{self.world_size}; change data.classes_per_batch, or data.batch_size of shuffled batches"
            )
        whole = max(len(self.labels) // (classes_per_batch * images_per_class), 1)
        self.batches_per_epoch = whole if batches_per_epoch is None else batches_per_epoch
        if self.batches_per_epoch < 1:
            raise ValueError(f"batches_per_epoch must be at least 1, got {batches_per_epoch}")

    def _check(self) -> None:
        if self.classes_per_batch < 1 or self.images_per_class < 1:
            raise ValueError(
                f"a batch has at least one image of one class, got classes_per_batch={self.classes_per_batch}, "
                f"images_per_class={self.images_per_class}"
            )
        if self.classes_per_batch > len(self.rows):
            same_size = max(1, self.classes_per_batch * self.images_per_class // max(1, len(self.rows)))
            raise ValueError(
                f"a batch holds different classes, but {self.classes_per_batch} classes a batch were requested and the "
                f"data has {len(self.rows)}; lower classes_per_batch (raise images_per_class to keep the batch size), "
                f"in a run: --data.classes_per_batch {len(self.rows)} --data.images_per_class {same_size}"
            )

    def __len__(self) -> int:
        return self.batches_per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        own = self.classes_per_batch // self.world_size
        plan = self.plan()[:, self.rank * own : (self.rank + 1) * own].flatten(1)
        # Only a loaded state starts in the middle, and only once: a loop that was left early starts over.
        first, self._first_batch = self._first_batch, 0
        for number in range(first, len(plan)):
            self.next_batch = number + 1
            yield plan[number].tolist()

    def plan(self) -> Int64[Tensor, "batches P m"]:
        """Return the images of every batch of this epoch, for all ranks."""
        digest = hashlib.sha256(f"{self.seed} {self.epoch}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        classes = _class_stream(len(self.rows), self.classes_per_batch, self.batches_per_epoch, generator)
        plan = torch.empty(classes.numel(), self.images_per_class, dtype=torch.int64)
        for rows, visits in zip(self.rows, _grouped(classes, len(self.rows)), strict=True):
            plan[visits] = rows[_deal(len(rows), self.images_per_class, len(visits), generator)]
        return plan.view(self.batches_per_epoch, self.classes_per_batch, self.images_per_class)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch. Setting the current epoch again keeps its position."""
        if epoch != self.epoch:
            self.epoch, self.next_batch, self._first_batch = epoch, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the sampler.

        A loader with workers reads batches ahead of time: where training counts its own steps, set ``next_batch`` to
        that count before loading.
        """
        return {"epoch": self.epoch, "next_batch": self.next_batch, "settings": self._settings()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state with the batches that would have followed.

        Raises:
            ValueError: if the state was saved for other data or settings, which have another plan.
        """
        theirs, ours = state["settings"], self._settings()
        different = [name for name in ours if theirs.get(name) != ours[name]]
        if different:
            changes = ", ".join(f"{name} {theirs.get(name)} instead of {ours[name]}" for name in different)
            raise ValueError(
                f"this state belongs to another plan of batches ({changes}); resume with the same settings"
            )
        self.epoch = state["epoch"]
        self.next_batch = self._first_batch = state["next_batch"]

    def _settings(self) -> dict[str, Any]:
        # Without the number of ranks: the plan does not depend on it, so a run may resume on fewer GPUs.
        return {
            "seed": self.seed,
            "classes_per_batch": self.classes_per_batch,
            "images_per_class": self.images_per_class,
            "batches_per_epoch": self.batches_per_epoch,
            "labels": hashlib.sha256(self.labels.numpy().tobytes()).hexdigest()[:16],
        }


class ShuffledBatches(ClassBalancedBatches):
    """Yield batches of ``batch_size`` images; every epoch is a permutation of all images, whatever their classes.

    What is left over after the last whole batch is left out. Ranks and resuming are those of `ClassBalancedBatches`.

    Raises:
        ValueError: if there are fewer images than a batch holds, or the batch is not a multiple of the world size.

    Example:
        >>> batches = ShuffledBatches(torch.zeros(7), batch_size=3)
        >>> [len(batch) for batch in batches]
        [3, 3]
    """

    def __init__(
        self,
        labels: Int64[Tensor, " N"] | Sequence[int],
        batch_size: int,
        *,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        super().__init__(labels, batch_size, 1, seed=seed, rank=rank, world_size=world_size)

    def _check(self) -> None:
        size = self.classes_per_batch
        if not 1 <= size <= len(self.labels):
            raise ValueError(f"{len(self.labels)} images do not fill a batch of {size}; lower the size of the batch")

    def plan(self) -> Int64[Tensor, "batches P 1"]:
        """Return the images of every batch of this epoch, for all ranks."""
        generator = torch.Generator().manual_seed(mixed_seed(self.seed, self.epoch, 3))
        order = torch.randperm(len(self.labels), generator=generator)
        return order[: self.batches_per_epoch * self.classes_per_batch].view(self.batches_per_epoch, -1, 1)


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
        own, world = placed(rank, world_size)
        self.indices = range(own * length // world, (own + 1) * length // world)

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)


class ShieldedLoader(DataLoader[Any]):
    """A loader whose workers do not see Ctrl-C and SIGTERM: they end with the process that they load for."""

    def __iter__(self) -> Any:
        # A signal to the whole process group would end the workers first, and the job would fail, not stop.
        with blocked_signals():
            return super().__iter__()


def loading_processes(asked: int) -> int:
    """Return the number of loader processes: as requested, at most one for each core.

    More would only take turns, and torch warns about them. What is loaded is the same with any number, so a
    configuration may name more than a machine has.

    Example:
        >>> loading_processes(0), 1 <= loading_processes(10_000) < 10_000
        (0, True)
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(asked, cores)


def read_ahead(
    items: Iterable[Item], read: Callable[[Item], Result], threads: int, ahead: int
) -> Generator[Result, None, None]:
    """Yield ``read(item)`` in order, computed by threads, at most ``ahead`` items in advance.

    Threads, not processes: Pillow and files release Python's lock, nothing is copied between processes, and a calling
    program needs no guard around its main part.

    Example:
        >>> list(read_ahead(range(4), lambda number: number**2, threads=2, ahead=2))
        [0, 1, 4, 9]
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="read")
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(read, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        # Left early, by Ctrl-C for example: drop what has not begun.
        pool.shutdown(wait=True, cancel_futures=True)


def _grouped(values: Int64[Tensor, " N"], classes: int | None = None) -> list[Int64[Tensor, " R"]]:
    """Return the positions of every value, in order: of 0..classes-1, or of the values that occur."""
    counts = torch.unique(values, return_counts=True)[1] if classes is None else values.bincount(minlength=classes)
    return [*values.argsort(stable=True).split(counts.tolist())]


def _class_stream(classes: int, per_batch: int, batches: int, generator: torch.Generator) -> Int64[Tensor, " S"]:
    """Return a stream of classes: shuffled passes over all of them, no class twice within a batch.

    The remainder of a pass opens the next batch; the next pass then begins with classes that are not part of it.
    """
    stream = torch.empty(0, dtype=torch.int64)
    while len(stream) < batches * per_batch:
        left = len(stream) % per_batch
        shuffled = torch.randperm(classes, generator=generator)
        fresh = shuffled[~torch.isin(shuffled, stream[len(stream) - left :])][: per_batch - left]
        rest = shuffled[~torch.isin(shuffled, fresh)]
        stream = torch.cat((stream, fresh, rest))
    return stream[: batches * per_batch]


def _deal(images: int, group: int, visits: int, generator: torch.Generator) -> Int64[Tensor, "V m"]:
    """Draw groups of different images, reshuffled when fewer than a group are left."""
    groups = max(images // group, 1)
    # A class with fewer images than a group repeats them.
    copies = -(-group // images)
    dealt = [torch.empty(0, group, dtype=torch.int64)]
    for _ in range(0, visits, groups):
        order = torch.randperm(images, generator=generator).repeat(copies)
        dealt.append(order[: groups * group].view(groups, group))
    return torch.cat(dealt)[:visits]
