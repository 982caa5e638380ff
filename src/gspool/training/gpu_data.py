"""Data in one tensor on the device: images decoded once, feature maps or tokens; augmented there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2.functional import resize

from gspool.data import ClassBalancedBatches
from gspool.data.batches import read_ahead
from gspool.data.cache import CachedImages
from gspool.data.crops import centre_boxes, draw_crops, resample, shift_and_flip
from gspool.data.decode import Interpolation, decode, stored_size
from gspool.data.image_set import mixed_seed
from gspool.data.image_source import ArrayImages, FileImages, selected
from gspool.terminal.bar import work_bar
from gspool.training.stream import Batch, epochs

if TYPE_CHECKING:
    from jaxtyping import Bool, Int64
    from torch import Tensor

    from gspool.data import ImageSet

Transform = Literal["crop", "shift", "none"]
# Threads that read batches from disk, and batches that wait: enough for the memory bus, few enough for small machines.
READERS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True, eq=False)
class TensorSet:
    """Labelled images, feature maps or tokens in one tensor; a subset copies labels and never the tensor.

    Args:
        pixels: a tensor [P, ...], one entry per image: uint8 images [P, 3, H, W], feature maps, tokens. Smaller images
            lie in the upper left corner of the common frame. Or an object with ``shape``, ``device`` and rows by index
            that reads them from elsewhere, such as `gspool.features.tokens.TokenRows`.
        labels: class of every image of the set, from 0.
        rows: which entries of ``pixels`` belong to the set, in its order.
        sizes: height and width of the images within the frame; None where all of them fill it.
        queries: marks the queries, for data with a query and a gallery part.
        class_names: names of the classes; their number is that of the largest label unless given.
        name: what the set is called in messages.
        split: train, validation or test.
        transform: what training sees: "crop" (random resized crop and flip), "shift" (shift and flip) or "none".
            Evaluation sees the centre for "crop", all of the image otherwise.
        size: side of the crop, needed by "crop".
        options: options of the transform: flip, and shift for "shift".

    Raises:
        ValueError: if the lengths disagree, a row does not exist, or images of several sizes are not cropped.

    Example:
        >>> pixels = torch.zeros(6, 3, 8, 8, dtype=torch.uint8)
        >>> birds = TensorSet.of(pixels, torch.tensor([0, 0, 1, 1, 2, 2]))
        >>> part = birds.of_classes([0, 2])
        >>> part.rows.tolist(), part.labels.tolist(), part.num_classes
        ([0, 1, 4, 5], [0, 0, 1, 1], 2)
    """

    pixels: Any
    labels: Int64[Tensor, " N"]
    rows: Int64[Tensor, " N"]
    sizes: Int64[Tensor, "P 2"] | None = None
    queries: Bool[Tensor, " N"] | None = None
    class_names: tuple[str, ...] = ()
    name: str = "tensors"
    split: str = "train"
    transform: Transform = "none"
    size: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Rows, labels and sizes are read by the CPU, which plans the batches: no step has to wait for the device.
        for name in ("labels", "rows", "sizes", "queries"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else value.cpu())
        for name in ("labels", "queries"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.rows):
                raise ValueError(f"{len(self.rows)} rows need as many {name}, got {len(values)}")
        if len(self.rows) == 0 or self.rows.min() < 0 or self.rows.max() >= len(self.pixels):
            raise ValueError(f"rows must name some of the {len(self.pixels)} images, got {len(self.rows)} rows")
        if self.transform == "crop" and self.size is None:
            raise ValueError("the transform 'crop' needs the side of the crop, size")
        if self.sizes is not None:
            if tuple(self.sizes.shape) != (len(self.pixels), 2):
                raise ValueError(
                    f"sizes must be [{len(self.pixels)}, 2], height and width, got {tuple(self.sizes.shape)}"
                )
            whole = bool((self.sizes[self.rows] == torch.tensor(self.pixels.shape[-2:])).all())
            if self.transform != "crop" and not whole:
                raise ValueError("images of several sizes need the transform 'crop' (data.transform)")

    @classmethod
    def of(cls, pixels: Any, labels: Int64[Tensor, " N"], **fields: Any) -> TensorSet:
        """Return the set of all entries of a tensor; ``fields`` are any other arguments of the class."""
        return cls(pixels, labels, torch.arange(len(pixels)), **fields)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"{self.name}/{self.split}: {len(self):,} images of {self.num_classes:,} classes on {self.device}"

    @property
    def device(self) -> torch.device:
        """Where the tensor is."""
        return self.pixels.device

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names) or int(self.labels.max()) + 1

    def describe(self, index: int) -> str:
        """Return a name for one image: its row in the tensor."""
        return f"{self.name}/{self.split} row {int(self.rows[index])}"

    def of_classes(self, classes: Iterable[int]) -> TensorSet:
        """Return the images of these classes, labelled anew from 0 in the order of the old labels."""
        kept = torch.tensor(sorted(set(classes)), dtype=torch.int64)
        inside = torch.isin(self.labels, kept).nonzero().flatten()
        names = tuple(self.class_names[label] for label in kept.tolist()) if self.class_names else ()
        part = self.subset(inside)
        return replace(part, labels=torch.searchsorted(kept, part.labels), class_names=names)

    def subset(self, indices: Int64[Tensor, " M"]) -> TensorSet:
        """Return the images at these indices with their labels."""
        return replace(
            self,
            rows=self.rows[indices],
            labels=self.labels[indices],
            queries=None if self.queries is None else self.queries[indices],
        )

    def to(self, device: torch.device | str) -> TensorSet:
        """Return the set with its tensor on another device."""
        return replace(self, pixels=self.pixels.to(device))

    def evaluation_images(self, places: Int64[Tensor, " B"]) -> Tensor:
        """Return the images at some places of the set, as evaluation sees them: the centre crop, or all of it."""
        rows = self.rows[places]
        seen = self.pixels[_sent(rows, self.device)]
        if self.transform != "crop":
            return seen
        assert self.size is not None
        return resample(seen, _sent(centre_boxes(self._sizes_of(rows), self.size), self.device), self.size)

    def training_images(
        self, places: Int64[Tensor, " B"], seed: int, step: int, rank: int = 0, world_size: int = 1
    ) -> Tensor:
        """Return the images at some places as a training step sees them; draws are a function of (seed, step) alone.

        ``places`` are those of the whole batch. Of several processes each returns its own part of it, cut as a single
        process would have cut it.
        """
        generator = torch.Generator().manual_seed(mixed_seed(seed, step, 2))
        rows = self.rows[places]
        if self.transform == "shift":
            seen = shift_and_flip(self.pixels[_sent(rows, self.device)], generator, **self.options)
            return seen.chunk(world_size)[rank]
        own = rows.chunk(world_size)[rank]
        seen = self.pixels[_sent(own, self.device)]
        if self.transform == "none":
            return seen
        assert self.size is not None
        boxes = draw_crops(self._sizes_of(rows), generator)
        flip = torch.rand(len(rows), generator=generator) < self.options.get("flip", 0.5)
        boxes, flip = (_sent(drawn.chunk(world_size)[rank], self.device) for drawn in (boxes, flip))
        return resample(seen, boxes, self.size, flip)

    def _sizes_of(self, rows: Int64[Tensor, " B"]) -> Int64[Tensor, "B 2"]:
        return torch.tensor(self.pixels.shape[-2:]).expand(len(rows), 2) if self.sizes is None else self.sizes[rows]


def tensor_batches(
    images: TensorSet, batches: ClassBalancedBatches, first: int, last: int, seed: int
) -> Iterator[Batch]:
    """Yield the batches of steps ``first`` to ``last - 1``: each process its own part of every batch.

    Example:
        >>> letters = TensorSet.of(torch.zeros(8, 3, 4, 4, dtype=torch.uint8), torch.arange(4).repeat_interleave(2))
        >>> batches = ClassBalancedBatches(letters.labels, classes_per_batch=2, images_per_class=2)
        >>> [batch.images.shape[0] for batch in tensor_batches(letters, batches, 0, 3, seed=0)]
        [4, 4, 4]
    """
    rank, world_size = batches.rank, batches.world_size
    in_memory = isinstance(images.pixels, torch.Tensor)

    def plan() -> Iterator[tuple[int, Tensor, Tensor, Tensor | None]]:
        for epoch in epochs(batches, first, last):
            # Copied once an epoch: a step of a small model takes no longer than a few copies.
            labels = _sent(images.labels[epoch.places], images.device)
            unchanged = in_memory and images.transform == "none"
            rows = _sent(images.rows[epoch.places], images.device) if unchanged else None
            for place, step in enumerate(epoch.steps):
                yield step, epoch.places[place], labels[place], None if rows is None else rows[place]

    def batch_of(planned: tuple[int, Tensor, Tensor, Tensor | None]) -> Batch:
        step, places, labels, rows = planned
        if rows is None:
            seen = images.training_images(places, seed, step, rank, world_size)
        else:
            seen = images.pixels.index_select(0, rows.chunk(world_size)[rank])
        return Batch(seen, labels.chunk(world_size)[rank], places.chunk(world_size)[rank])

    return map(batch_of, plan()) if in_memory else read_ahead(plan(), batch_of, READERS, READERS)


def load_tensors(
    images: ImageSet,
    device: torch.device | str = "cpu",
    *,
    shorter_side: int | None = 256,
    interpolation: Interpolation = "bilinear",
    longest: int = 384,
    workers: int = 8,
    progress: bool = False,
    **fields: Any,
) -> TensorSet:
    """Decode every image of a set once into one uint8 tensor on the device.

    Args:
        images: the data set, or one of `gspool.data.cached`; its transform is not used.
        device: where the tensor goes.
        shorter_side: resize the shorter side to this length first; None keeps sizes, and so does a cached set.
        interpolation: how images are resized.
        longest: of an image longer than this the centre is kept; 384 keeps pictures of 3:2 whole.
        workers: threads that decode.
        progress: show a progress bar.
        **fields: arguments of `TensorSet`, such as transform and size.

    Example:
        >>> from gspool import data
        >>> letters = load_tensors(data.create("glyphs", split="test", images_per_class=1), shorter_side=None)
        >>> letters.pixels.shape, letters.num_classes
        (torch.Size([100, 3, 64, 64]), 100)
    """
    whole, rows = selected(images.images)
    known = {"class_names": images.class_names, "name": images.name, "split": images.split}
    fields = {**known, "queries": query_rows(images), **fields}
    if isinstance(whole, ArrayImages):
        pixels = whole.pixels[rows].expand(-1, 3, -1, -1)
        if shorter_side is not None and min(pixels.shape[2:]) != shorter_side:
            mode = InterpolationMode(interpolation)
            pixels = torch.cat([resize(part, [shorter_side], mode, antialias=True) for part in pixels.split(256)])
        pixels = pixels.to(device)
        return TensorSet.of(pixels, images.labels, **fields)
    if isinstance(whole, CachedImages):
        sides = [stored_size(whole.paths[row], whole.shorter_side) for row in rows.tolist()]
        read: Callable[[int], Tensor] = whole.__getitem__
    elif isinstance(whole, FileImages):
        sides = [stored_size(whole.paths[row], shorter_side) for row in rows.tolist()]
        read = lambda row: decode(whole.paths[row], shorter_side, interpolation)  # noqa: E731
    else:
        raise ValueError(f"images must come from files or an array to be loaded, got {type(whole).__name__}")
    sizes = torch.tensor([(height, width) for width, height in sides]).clamp(max=longest)
    pixels = torch.zeros(len(rows), 3, *sizes.amax(0).tolist(), dtype=torch.uint8)

    def place(entry: int) -> None:
        image = read(int(rows[entry]))
        height, width = sizes[entry].tolist()
        top, left = (image.shape[1] - height) // 2, (image.shape[2] - width) // 2
        pixels[entry, :, :height, :width] = image[:, top : top + height, left : left + width]

    with (
        ThreadPoolExecutor(max(workers, 1)) as pool,
        work_bar(f"decoding {images.name}/{images.split}", 0, len(rows), progress, "images") as bar,
    ):
        for _ in pool.map(place, range(len(rows))):
            bar.advance()
    return TensorSet.of(pixels.to(device), images.labels, sizes=sizes, **fields)


def query_rows(images: ImageSet | TensorSet) -> Bool[Tensor, " N"] | None:
    """Return which images of a set are queries; None where every image is query and gallery at once."""
    if isinstance(images, TensorSet):
        return images.queries
    return None if images.roles is None else torch.tensor([role == "query" for role in images.roles])


def _sent(values: Tensor, device: torch.device) -> Tensor:
    """Copy values of the CPU to a device; from pinned memory the copy does not wait for the steps before it."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values
