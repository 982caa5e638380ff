"""Distilled: the objects of Cifar Collage alone, without backgrounds (Sec. 5.1): what pooling could reach at best."""

from __future__ import annotations

from pathlib import Path

from gspool.data.image_set import ImageSet, Split
from gspool.data.image_source import ArrayImages
from gspool.data.super_classes import pools


def distilled(root: Path, split: Split, *, download: bool = False) -> ImageSet:
    """Give the labelled images that `collage` hides among others, 32 x 32 pixels each, in the same order.

    Raises:
        FileNotFoundError: if CIFAR-100 is not under ``root``.
        ValueError: if it is damaged or incomplete.
    """
    pool = pools(root, split, download=download)
    images = ArrayImages(pool.tiles[pool.objects], "distilled")
    return ImageSet(images, pool.labels, pool.class_names, name="distilled", split=split)
