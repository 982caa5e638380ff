"""Batches by step: the same whenever the stream begins and however many workers load."""

from __future__ import annotations

import pytest
import torch

from gspool.data import ArrayImages, ClassBalancedBatches, ImageSet, ShiftAndFlip
from gspool.training.stream import BatchStream, Visit, collate, stream_loader

LABELS = torch.arange(5).repeat_interleave(4)


def pictures(transform=None) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (20, 3, 8, 8), dtype=torch.uint8, generator=generator)
    names = [f"class {label}" for label in range(5)]
    return ImageSet(ArrayImages(pixels), LABELS, names, name="toy").with_transform(transform)


def batches() -> ClassBalancedBatches:
    return ClassBalancedBatches(LABELS, classes_per_batch=3, images_per_class=2, seed=1)


@pytest.mark.parametrize("first", [0, 1, 2, 3, 7, 10])
def test_a_stream_that_begins_later_goes_on_as_the_epochs_of_the_sampler(first):
    sampler, expected = batches(), []
    for epoch in range(5):
        sampler.set_epoch(epoch)
        expected += [[Visit(epoch, row) for row in batch] for batch in sampler]
    stream = BatchStream(batches(), first, 11)
    assert list(stream) == list(stream) == expected[first:11]
    assert len(stream) == 11 - first


@pytest.mark.parametrize("workers", [0, 2])
def test_augmentation_depends_on_seed_epoch_and_row_alone(workers):
    transform = ShiftAndFlip(shift=2)
    reference = list(stream_loader(pictures(transform), batches(), 0, 6, seed=7, workers=0, pin=False))
    torch.manual_seed(123)
    later = list(stream_loader(pictures(transform), batches(), 4, 6, seed=7, workers=workers, pin=False))
    for batch, expected in zip(later, reference[4:], strict=True):
        torch.testing.assert_close(batch.images, expected.images)
        torch.testing.assert_close(batch.labels, expected.labels)
        torch.testing.assert_close(batch.rows, expected.rows)
    other = list(stream_loader(pictures(transform), batches(), 4, 6, seed=8, workers=0, pin=False))
    assert any(not torch.equal(a.images, b.images) for a, b in zip(other, later, strict=True))


def test_loading_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    list(stream_loader(pictures(ShiftAndFlip()), batches(), 0, 3, seed=0, workers=0, pin=False))
    torch.testing.assert_close(torch.rand(3), expected)


def test_images_of_different_sizes_are_refused_in_words():
    samples = [(torch.zeros(3, 8, 8), 0, 0), (torch.zeros(3, 9, 8), 1, 1)]
    with pytest.raises(ValueError, match=r"one size.*'crop'"):
        collate(samples)


def test_more_workers_than_cores_are_not_begun():
    # Warnings are errors here, and torch has one for it.
    loaded = stream_loader(pictures(ShiftAndFlip()), batches(), 0, 1, seed=0, workers=1_000, pin=False)
    assert 1 <= loaded.num_workers < 1_000
    assert len(list(loaded)) == 1
