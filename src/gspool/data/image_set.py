"""`ImageSet`, the form of every data set: images, labels and class names."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.data import Dataset

from gspool.data.image_source import ImageSource, SelectedImages

if TYPE_CHECKING:
    from jaxtyping import Int64
    from torch import Tensor

# "all" is every image, whatever its split; only data of users (`folder`) can be read so.
Split = Literal["train", "validation", "test", "all"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
QUERY, GALLERY = "query", "gallery"

Transform = Callable[[Any], Any]


class ImageSet(Dataset[tuple[Any, int]]):
    """A labelled set of images; ``set[i]`` is ``(image, label)``, the image uint8 [3, H, W] before any transform.

    Args:
        images: a source of images, see `gspool.data.image_source`.
        labels: int64, one for each image; they index ``class_names``.
        class_names: one name for each class.
        name: the name of the set in messages and reports.
        split: ``train``, ``validation``, ``test`` or ``all``.
        roles: for data with a query and a gallery part, ``query`` or ``gallery`` for each image.
        foreground: for collages, the tile (0 to 3, row by row) that the label refers to.

    Raises:
        ValueError: if the lengths disagree, a label is out of range, or the set is empty.

    Example:
        >>> from gspool.data import ArrayImages
        >>> pixels = torch.zeros(6, 3, 8, 8, dtype=torch.uint8)
        >>> pictures = ImageSet(ArrayImages(pixels), [0, 0, 1, 1, 2, 2], ("ant", "bee", "cat"), name="toy")
        >>> pictures
        toy/train: 6 images of 3 classes
        >>> pictures.of_classes([0, 2]).class_names
        ('ant', 'cat')
    """

    def __init__(
        self,
        images: ImageSource,
        labels: Int64[Tensor, " N"] | Sequence[int],
        class_names: Sequence[str],
        *,
        name: str,
        split: str = "train",
        roles: Sequence[str] | None = None,
        foreground: Int64[Tensor, " N"] | None = None,
    ) -> None:
        self.images = images
        self.labels = torch.as_tensor(labels, dtype=torch.int64)
        self.class_names = tuple(class_names)
        self.name = name
        self.split = split
        self.roles = None if roles is None else tuple(roles)
        self.foreground = foreground
        self.transform: Transform | None = None
        self.seed: int | None = None
        self._epoch = torch.zeros((), dtype=torch.int64)
        self._check()

    def _check(self) -> None:
        count = len(self.images)
        if count == 0:
            raise ValueError(f"{self.name}/{self.split} holds no images")
        for what, values in (("labels", self.labels), ("roles", self.roles), ("foreground", self.foreground)):
            if values is not None and len(values) != count:
                raise ValueError(
                    f"{self.name}/{self.split}: {count} images but {len(values)} {what}; the numbers must be equal"
                )
        if self.labels.min() < 0 or self.labels.max() >= len(self.class_names):
            raise ValueError(
                f"{self.name}/{self.split}: labels run from {int(self.labels.min())} to {int(self.labels.max())}, "
                f"but there are {len(self.class_names)} class names; labels must lie in 0..{len(self.class_names) - 1}"
            )
        unknown = sorted(set(self.roles or ()) - {QUERY, GALLERY})
        if unknown:
            raise ValueError(f"{self.name}/{self.split}: a role is {QUERY!r} or {GALLERY!r}, got {unknown}")

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = self.images[index]
        label = int(self.labels[index])
        if self.transform is None:
            return image, label
        if self.seed is None:
            return self.transform(image), label
        # Random numbers depend on the image and the epoch, not on the worker: any number of workers, and a resumed
        # run, see the same pictures.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mixed_seed(self.seed, int(self._epoch), index))
            return self.transform(image), label

    def __repr__(self) -> str:
        roles = (
            "" if self.roles is None else f" ({self.roles.count(QUERY):,} query, {self.roles.count(GALLERY):,} gallery)"
        )
        return f"{self.name}/{self.split}: {len(self):,} images of {self.num_classes:,} classes{roles}"

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    def counts(self) -> Int64[Tensor, " K"]:
        """Count the images of every class."""
        return torch.bincount(self.labels, minlength=self.num_classes)

    def describe(self, index: int) -> str:
        """Return the path of an image, or its row in a generated set."""
        return self.images.describe(index)

    def with_transform(self, transform: Transform | None, seed: int | None = None) -> ImageSet:
        """Return the same set with a transform applied to every image.

        With a ``seed`` the random numbers of the transform depend on (seed, epoch, index) alone, see `set_epoch`.
        Without one they come from torch's global generator.
        """
        transformed = copy.copy(self)
        transformed.transform, transformed.seed = transform, seed
        # Shared memory, so that persistent workers see the next epoch.
        transformed._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        return transformed

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of transforms with a seed, also in workers that are already running."""
        self._epoch.fill_(epoch)

    def subset(self, indices: Iterable[int] | Int64[Tensor, " M"]) -> ImageSet:
        """Return the images at these indices; labels and class names do not change.

        Raises:
            ValueError: if no index is given.
        """
        chosen = indices if isinstance(indices, torch.Tensor) else torch.tensor(list(indices), dtype=torch.int64)
        if len(chosen) == 0:
            raise ValueError(f"{self.name}/{self.split}: an empty subset was requested")
        part = copy.copy(self)
        part.images = SelectedImages(self.images, chosen)
        part.labels = self.labels[chosen]
        part.roles = None if self.roles is None else tuple(self.roles[int(index)] for index in chosen)
        part.foreground = None if self.foreground is None else self.foreground[chosen]
        return part

    def of_classes(self, classes: Iterable[int]) -> ImageSet:
        """Return the images of these classes, relabelled from 0 in the order of the old labels.

        Raises:
            ValueError: if a class does not exist, or none has an image.
        """
        kept = sorted(set(classes))
        unknown = [label for label in kept if not 0 <= label < self.num_classes]
        if unknown:
            raise ValueError(f"{self.name}/{self.split} has classes 0..{self.num_classes - 1}, got {unknown}")
        new_label = torch.full((self.num_classes,), -1, dtype=torch.int64)
        new_label[kept] = torch.arange(len(kept))
        part = self.subset((new_label[self.labels] >= 0).nonzero().flatten())
        part.labels = new_label[part.labels]
        part.class_names = tuple(self.class_names[label] for label in kept)
        return part

    def without_empty_classes(self) -> ImageSet:
        """Return the same images, relabelled without the classes that have none."""
        return self.of_classes(self.counts().nonzero().flatten().tolist())

    def with_role(self, role: str) -> ImageSet:
        """Return the query or the gallery part; labels mean the same in both.

        Raises:
            ValueError: if the set has no roles, or no image with this one.
        """
        if self.roles is None:
            raise ValueError(f"{self.name}/{self.split} has no query and gallery parts: every image is both")
        return self.subset([index for index, own in enumerate(self.roles) if own == role])


def mixed_seed(*numbers: int) -> int:
    """Mix several numbers into one seed; neighbouring numbers do not give neighbouring seeds.

    Example:
        >>> mixed_seed(0, 1) != mixed_seed(1, 0)
        True
    """
    return int.from_bytes(hashlib.sha256(repr(numbers).encode()).digest()[:8], "little") >> 1
