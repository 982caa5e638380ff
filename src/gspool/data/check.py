"""Decode every image once before training starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple

import torch

from gspool.data.decode import BrokenImageError
from gspool.data.image_set import ImageSet
from gspool.data.image_source import ArrayImages, selected
from gspool.terminal.bar import work_bar

SHOWN = 10


class Broken(NamedTuple):
    """An image that cannot be read: its position in the set that was checked, and the reason."""

    position: int
    reason: str


class ImageCheck(NamedTuple):
    """The result of a check: the set without broken images, how many were checked, and which are broken."""

    images: ImageSet
    checked: int
    broken: tuple[Broken, ...]
    lost_classes: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.broken:
            return f"{self.images!r}: all {self.checked:,} images can be read"
        lost = f"\nNo image is left of {len(self.lost_classes)} classes: {some(self.lost_classes, 20)}"
        return (
            f"{len(self.broken):,} of {self.checked:,} images cannot be read:\n"
            + first_lines([one.reason for one in self.broken])
            + (lost if self.lost_classes else "")
        )

    def error(self) -> ValueError:
        """Return the error of a set that cannot be used with its broken images."""
        skip = ", or go on without them: policy=skip (in a run: --data.check skip)"
        remedy = f"Repair or remove them{skip if len(self.broken) < self.checked else ''}"
        return ValueError(f"{self.images.name}/{self.images.split}: {self}\n{remedy}")


def in_memory(images: ImageSet) -> bool:
    """Return whether the pixels are in memory already, so that none can be broken."""
    return isinstance(selected(images.images)[0], ArrayImages)


def check_images(
    images: ImageSet,
    policy: Literal["stop", "skip"] = "stop",
    *,
    workers: int | None = None,
    progress: bool = False,
) -> ImageCheck:
    """Decode every image once; broken and missing ones raise an error, or are counted and left out.

    On a set with a cache (`cached`) this also fills the cache, so that nothing is decoded twice.

    Args:
        images: the set to check; its transform is not applied.
        policy: ``stop`` raises if any image is broken; ``skip`` returns the set without them. Classes that lose all
            their images are removed and the labels renumbered.
        workers: number of threads; one for each core, at most 8, unless given.
        progress: show a progress bar.

    Raises:
        ValueError: under ``stop`` if any image is broken, under ``skip`` if none is left; the message names them.

    Example:
        >>> from gspool import data
        >>> print(check_images(data.create("glyphs", split="test", images_per_class=1)))
        glyphs/test: 100 images of 100 classes: all 100 images can be read
    """
    if policy not in ("stop", "skip"):
        raise ValueError(f"policy is 'stop' or 'skip', got {policy!r}")
    threads = min(os.cpu_count() or 1, 8) if workers is None else workers
    if threads < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")

    def check(index: int) -> Broken | None:
        try:
            images.images[index]
        except BrokenImageError as problem:
            return Broken(index, str(problem))
        return None

    broken = []
    pool = ThreadPoolExecutor(threads)
    try:
        with work_bar(f"checking {images.name}/{images.split}", 0, len(images), progress, "images") as bar:
            for result in pool.map(check, range(len(images))):
                bar.advance()
                if result is not None:
                    broken.append(result)
    finally:
        # On Ctrl-C, drop what has not started instead of waiting for all of it.
        pool.shutdown(cancel_futures=True)
    found = ImageCheck(images, len(images), tuple(broken))
    if not broken:
        return found
    if policy == "stop" or len(broken) == len(images):
        raise found.error()
    is_sound = torch.ones(len(images), dtype=torch.bool)
    is_sound[[one.position for one in broken]] = False
    sound = images.subset(is_sound.nonzero().flatten()).without_empty_classes()
    lost = tuple(name for name in images.class_names if name not in {*sound.class_names})
    return found._replace(images=sound, lost_classes=lost)


def some(names: Sequence[str], shown: int = 5) -> str:
    """Return the first names.

    Example:
        >>> some(["ant", "bee", "cat"], 2)
        'ant, bee, ...'
    """
    return ", ".join(names[:shown]) + (", ..." if len(names) > shown else "")


def first_lines(reasons: Sequence[str]) -> str:
    """Return the first reasons, one a line."""
    lines = [f"  {reason}" for reason in reasons[:SHOWN]]
    return "\n".join(lines + ([f"  ... and {len(reasons) - SHOWN:,} more"] if len(reasons) > SHOWN else []))
