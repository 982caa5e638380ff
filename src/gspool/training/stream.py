"""The batches of a run by step: any step can be the first, and its batch is the same as in a whole run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from gspool.data import ClassBalancedBatches, ImageSet
from gspool.data.batches import ShieldedLoader, loading_processes
from gspool.data.image_set import mixed_seed

if TYPE_CHECKING:
    from jaxtyping import Int64, UInt8
    from torch import Tensor


class Batch(NamedTuple):
    """Images of one step on one process, their labels, and the rows of the data set they came from."""

    images: UInt8[Tensor, "B 3 H W"]
    labels: Int64[Tensor, B]
    rows: Int64[Tensor, B]


class Visit(NamedTuple):
    """An image in one pass over the data; augmentation is drawn from both."""

    epoch: int
    row: int


class Epoch(NamedTuple):
    """Some steps of one pass over the data, and the rows of the data set in the batch of each, of all processes."""

    number: int
    steps: range
    places: Int64[Tensor, "S B"]


def epochs(batches: ClassBalancedBatches, first: int, last: int) -> Iterator[Epoch]:
    """Yield the batches of steps ``first`` to ``last - 1``, epoch by epoch: the same wherever they begin."""
    length = len(batches)
    for number in range(first // length, -(-last // length)):
        batches.set_epoch(number)
        begin = number * length
        steps = range(max(first, begin), min(last, begin + length))
        yield Epoch(number, steps, batches.plan().flatten(1)[steps.start - begin : steps.stop - begin])


class BatchStream(Sampler[list[Visit]]):
    """Yield this process's part of the batches of steps ``first`` to ``last - 1``, whatever epoch they fall into.

    Example:
        >>> batches = ClassBalancedBatches([0, 0, 1, 1], classes_per_batch=2, images_per_class=1)
        >>> whole = list(BatchStream(batches, 0, 5))
        >>> list(BatchStream(batches, 3, 5)) == whole[3:]
        True
    """

    def __init__(self, batches: ClassBalancedBatches, first: int, last: int) -> None:
        super().__init__()
        self.batches, self.first, self.last = batches, first, last

    def __len__(self) -> int:
        return max(self.last - self.first, 0)

    def __iter__(self) -> Iterator[list[Visit]]:
        for epoch in epochs(self.batches, self.first, self.last):
            own = epoch.places.chunk(self.batches.world_size, dim=1)[self.batches.rank]
            for rows in own.tolist():
                yield [Visit(epoch.number, row) for row in rows]


class StreamedImages(Dataset[tuple["Tensor", int, int]]):
    """Images by `Visit`; the draws of the transform are a function of (seed, epoch, row) alone.

    A worker that loads ahead, or a run that resumes in the middle, therefore sees the same pictures as any other.
    """

    def __init__(self, images: ImageSet, seed: int) -> None:
        self.images, self.seed = images, seed

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, visit: Visit) -> tuple[Tensor, int, int]:
        image, label = self.images.images[visit.row], int(self.images.labels[visit.row])
        if self.images.transform is None:
            return image, label, visit.row
        with torch.random.fork_rng(devices=[]):
            # The CPU's generator alone: seeding all devices takes longer than many a transform.
            torch.default_generator.manual_seed(mixed_seed(self.seed, visit.epoch, visit.row))
            return self.images.transform(image), label, visit.row


def seed_step(seed: int, device: torch.device) -> None:
    """Seed what a step draws from: the generators of the CPU and of its device.

    `torch.manual_seed` also visits every other kind of device and formats a stack trace for each that is not there,
    which takes milliseconds.
    """
    if device.type in ("cpu", "cuda"):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def collate(samples: list[tuple[Tensor, int, int]]) -> Batch:
    """Stack samples into a batch."""
    images, labels, rows = zip(*samples, strict=True)
    sizes = sorted({tuple(image.shape) for image in images})
    if len(sizes) > 1:
        raise ValueError(
            f"images of one batch must have one size, got {sizes[0]} and {sizes[1]}; choose the transform 'crop' "
            "(data.transform), which brings all of them to the backbone's size"
        )
    return Batch(torch.stack(images), torch.tensor(labels), torch.tensor(rows))


def stream_loader(
    images: ImageSet, batches: ClassBalancedBatches, first: int, last: int, seed: int, workers: int, pin: bool
) -> DataLoader[Any]:
    """Return the loader of steps ``first`` to ``last - 1``."""
    return ShieldedLoader(
        StreamedImages(images, seed),
        batch_sampler=BatchStream(batches, first, last),
        collate_fn=collate,
        num_workers=loading_processes(workers),
        pin_memory=pin,
        # torch draws a seed for its workers; from a generator of our own, it leaves the global one alone.
        generator=torch.Generator().manual_seed(mixed_seed(seed)),
    )
