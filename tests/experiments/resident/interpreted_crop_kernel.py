"""The crop kernel, line by line in Python, against the plain version: run with TRITON_INTERPRET=1."""

from __future__ import annotations

import pytest
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2.functional import resized_crop

from gspool.experiments.resident import resample
from gspool.experiments.resident.kernels.crop import crop_rows, most_taps


def pictures(count: int = 4, height: int = 23, width: int = 31) -> torch.Tensor:
    return torch.randint(256, (count, 3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))


def cuts_of(*boxes: tuple[int, int, int, int], rows: tuple[int, ...] = (), flips: tuple[int, ...] = ()) -> torch.Tensor:
    rows, flips = rows or tuple(range(len(boxes))), flips or (0,) * len(boxes)
    return torch.tensor([(row, *box, flip) for row, box, flip in zip(rows, boxes, flips, strict=True)])


def agrees(pixels: torch.Tensor, cuts: torch.Tensor, size: int) -> None:
    ours = crop_rows(pixels, cuts, size)
    plain = resample(pixels[cuts[:, 0]], cuts[:, 1:5], size, cuts[:, 5] != 0)
    assert ours.shape == plain.shape
    assert ours.dtype == torch.uint8
    assert ours.is_contiguous(memory_format=torch.channels_last)
    apart = (ours.int() - plain.int()).abs()
    assert int(apart.max()) <= 1
    for (row, *box, flip), other in zip(cuts.tolist(), apart, strict=True):
        exact = resized_crop(pixels[row].double(), *box, [size, size], InterpolationMode.BILINEAR, antialias=True)
        exact = exact.flip(-1) if flip else exact
        # Only a sum halfway between two levels may be rounded another way when it is formed in another order.
        assert ((exact.frac() - 0.5).abs()[other != 0] < 1e-4).all()


@pytest.mark.parametrize("size", [7, 13, 16, 37])
def test_boxes_of_every_size_agree_with_the_plain_version(size: int) -> None:
    boxes = ((0, 0, 23, 31), (3, 5, 7, 11), (10, 0, 13, 13), (22, 30, 1, 1))
    agrees(pictures(), cuts_of(*boxes), size)
    agrees(pictures(), cuts_of(*boxes, flips=(1, 0, 1, 1)), size)


def test_a_crop_of_one_pixel_sees_the_whole_box() -> None:
    agrees(pictures(3, 6, 7), cuts_of((0, 0, 6, 7), (2, 1, 3, 5), (5, 6, 1, 1), flips=(0, 1, 1)), 1)


@pytest.mark.parametrize("reduction", [2, 3, 4])
def test_reductions_by_whole_numbers_agree(reduction: int) -> None:
    """Centres of samples lie on pixels or between them, where the border of a triangle meets a pixel."""
    side = 5 * reduction
    agrees(pictures(2, side, side + 1), cuts_of((0, 0, side, side), (0, 1, side, side)), 5)


@pytest.mark.parametrize("side", range(40, 60, 3))
def test_no_pixel_of_the_frame_is_forgotten(side: int) -> None:
    agrees(pictures(1, side, side), cuts_of((0, 0, side, side)), 23)


def test_a_box_of_the_wanted_size_is_copied() -> None:
    pixels = pictures()
    seen = crop_rows(pixels, cuts_of((2, 7, 20, 20), (3, 11, 20, 20), flips=(0, 1)), 20)
    assert torch.equal(seen[0], pixels[0, :, 2:22, 7:27])
    assert torch.equal(seen[1], pixels[1, :, 3:23, 11:31].flip(-1))


def test_a_tie_goes_to_the_even_level() -> None:
    pixels = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3]], dtype=torch.uint8).expand(1, 3, 2, 4).contiguous()
    # Of two pixels a sample takes half of each: 0.5 and 2.5.
    seen = crop_rows(pixels, cuts_of((0, 0, 2, 2), (0, 2, 2, 2), rows=(0, 0)), 1)
    assert seen.flatten().tolist() == [0] * 3 + [2] * 3


def test_an_image_may_come_twice_and_out_of_order() -> None:
    boxes = ((0, 0, 20, 30), (1, 1, 9, 9), (0, 0, 20, 30), (5, 3, 17, 28), (1, 1, 9, 9))
    cuts = cuts_of(*boxes, rows=(3, 0, 3, 2, 3), flips=(0, 1, 0, 0, 1))
    agrees(pictures(), cuts, 11)
    seen = crop_rows(pictures(), cuts, 11)
    assert torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[1], seen[4])


def test_nothing_outside_the_box_is_seen() -> None:
    pixels = pictures(1)
    other = pixels.clone()
    other[..., :10], other[..., 20:, :] = 0, 255
    cuts = cuts_of((5, 10, 15, 21))
    assert torch.equal(crop_rows(pixels, cuts, 9), crop_rows(other, cuts, 9))


def test_a_middle_larger_than_the_image_sees_what_there_is() -> None:
    """The frame ends where the image does; what the plain version has no pixel for is black."""
    pixels = pictures(1, 6, 40)
    seen = crop_rows(pixels, cuts_of((-2, 3, 10, 10)), 10)
    assert torch.equal(seen[0, :, 2:8], pixels[0, :, :, 3:13])
    assert int(seen[0, :, [0, 9]].max()) == 0


def test_any_layout_of_the_images_is_read() -> None:
    pixels = pictures()
    cuts = cuts_of((0, 0, 23, 31), (3, 5, 7, 11))
    wanted = crop_rows(pixels, cuts, 13)
    assert torch.equal(crop_rows(pixels.contiguous(memory_format=torch.channels_last), cuts, 13), wanted)
    grey = pixels[:, :1].expand(-1, 3, -1, -1)
    assert torch.equal(crop_rows(grey, cuts, 13), wanted[:, :1].expand(-1, 3, -1, -1))


def test_no_box_gives_no_crop() -> None:
    assert crop_rows(pictures(), torch.zeros(0, 6, dtype=torch.int64), 9).shape == (0, 3, 9, 9)


def test_taps_follow_from_the_frame() -> None:
    assert [most_taps(side, 227) for side in (100, 227, 256, 341, 454)] == [2, 2, 3, 4, 4]
