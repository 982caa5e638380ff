"""Crops on the device are torchvision's: the same pixels of a box, the same distribution of boxes."""

from __future__ import annotations

import pytest
import torch
from torchvision.transforms import InterpolationMode, v2

from gspool.data.crops import centre_boxes, draw_crops, resample, shift_and_flip

BOXES = [(0, 0, 40, 60), (3, 5, 7, 11), (10, 0, 30, 33), (39, 59, 1, 1), (0, 20, 40, 17)]


def pictures(count, height=40, width=60):
    return torch.randint(256, (count, 3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("size", [1, 13, 27, 64])
def test_a_box_is_resized_as_torchvision_resizes_it(size):
    images = pictures(len(BOXES))
    ours = resample(images, torch.tensor(BOXES), size)
    for image, box, crop in zip(images, BOXES, ours, strict=True):
        theirs = v2.functional.resized_crop(
            image.float(), *box, [size, size], interpolation=InterpolationMode.BILINEAR, antialias=True
        )
        # One level of 255: the sum is rounded once here, and may lie on the border between two levels.
        assert (crop.float() - theirs).abs().max() <= 0.5 + 1e-3
    flip = torch.arange(len(BOXES)) % 2 == 0
    flipped = resample(images, torch.tensor(BOXES), size, flip)
    assert torch.equal(flipped, torch.where(flip[:, None, None, None], ours.flip(-1), ours))


def test_a_box_of_the_wanted_size_is_copied_and_nothing_outside_is_seen():
    images = pictures(1)
    assert torch.equal(resample(images, torch.tensor([[4, 7, 20, 20]]), 20), images[:, :, 4:24, 7:27])
    other = images.clone()
    other[:, :, :, :10] = 255 - other[:, :, :, :10]
    other[:, :, 30:] = 0
    box = torch.tensor([[5, 10, 25, 33]])
    assert torch.equal(resample(images, box, 17), resample(other, box, 17))


@pytest.mark.parametrize("height", [33, 40])
@pytest.mark.parametrize("width", [60, 47])
def test_the_middle_is_torchvisions(height, width):
    images = pictures(1, height, width)
    ours = resample(images, centre_boxes(torch.tensor([[height, width]]), 30), 30)
    assert torch.equal(ours, v2.functional.center_crop(images, [30, 30]))


def test_boxes_follow_the_distribution_of_random_resized_crop():
    sizes = torch.tensor([[256, 384]]).expand(20_000, 2)
    ours = draw_crops(sizes, torch.Generator().manual_seed(0)).double()
    torch.manual_seed(0)
    image = torch.zeros(3, 256, 384)
    maker = v2.RandomResizedCrop(227, scale=(0.16, 1.0), ratio=(3 / 4, 4 / 3))
    drawn = [maker.make_params([image]) for _ in range(4_000)]
    theirs = torch.tensor([[each[key] for key in ("top", "left", "height", "width")] for each in drawn]).double()
    for statistic in (lambda boxes: boxes.mean(0), lambda boxes: boxes.std(0)):
        # The error of a mean over 4,000 draws is below two pixels, 3 deviations wide below five.
        assert (statistic(ours) - statistic(theirs)).abs().max() < 5
    area, shape = ours[:, 2] * ours[:, 3] / (256 * 384), ours[:, 3] / ours[:, 2]
    assert area.min() > 0.15
    assert shape.min() > 0.74
    assert shape.max() < 1.35


def test_boxes_stay_those_that_a_seed_has_always_drawn():
    """Results of earlier trainings can only be made again with the same boxes."""
    sizes = torch.tensor([[256, 341], [300, 256], [10, 1000], [1, 1], [227, 227]])
    boxes = draw_crops(sizes, torch.Generator().manual_seed(7))
    assert boxes.tolist() == [
        [36, 88, 213, 162],
        [92, 78, 117, 139],
        # A strip: every share of its area, in any allowed shape, is taller than it is. Its middle is taken.
        [0, 493, 10, 13],
        [0, 0, 1, 1],
        [48, 62, 169, 157],
    ]
    assert not torch.equal(boxes, draw_crops(sizes, torch.Generator().manual_seed(8)))


def test_shifts_move_the_image_and_bring_in_black():
    images = pictures(200, 9, 9).clamp(min=1)
    seen = shift_and_flip(images, torch.Generator().manual_seed(0), shift=2, flip=0.0)
    windows = torch.nn.functional.pad(images, (2,) * 4).unfold(2, 9, 1).unfold(3, 9, 1)
    # Of the windows [image, channel, top, left, row, column] exactly one is what is seen, and all are in turn.
    found = (windows == seen[:, :, None, None]).all(-1).all(-1).all(1)
    assert found.sum((1, 2)).tolist() == [1] * 200
    assert bool(found.any(0).all())


def test_a_share_of_the_images_is_mirrored():
    images = pictures(200, 9, 9)
    seen = shift_and_flip(images, torch.Generator().manual_seed(0), shift=0, flip=0.5)
    mirrored = (seen == images.flip(-1)).flatten(1).all(1)
    assert torch.equal(seen[~mirrored], images[~mirrored])
    assert 70 < int(mirrored.sum()) < 130


@pytest.mark.gpu
@pytest.mark.parametrize("size", [17, 41, 61])
def test_a_gpu_copies_exactly_and_is_off_by_one_at_most_where_it_resizes(size):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (32, 3, 90, 120), generator=generator, dtype=torch.uint8)
    sizes = torch.tensor([[90, 120], [77, 120], [90, 65], [70, 70]]).repeat(8, 1)
    drawn, flips = draw_crops(sizes, generator), torch.randint(2, (32,), generator=generator) == 1
    for boxes, most in ((centre_boxes(sizes, size), 0), (drawn, 1)):
        plain = resample(pixels, boxes, size, flips)
        ours = resample(pixels.cuda(), boxes.cuda(), size, flips.cuda())
        apart = (ours.cpu().int() - plain.int()).abs()
        assert int(apart.max()) <= most
        assert float((apart == 0).double().mean()) >= 0.99
