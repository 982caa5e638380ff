from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch.nn import functional

from gspool.data import ShiftAndFlip, evaluation_transform, train_transform


def ramp(height, width):
    """An image whose first channel grows to the right and whose second grows downwards, linearly."""
    x = torch.linspace(0, 255, width).expand(height, width)
    y = torch.linspace(0, 255, height)[:, None].expand(height, width)
    return torch.stack((x, y, torch.zeros(height, width))).round().to(torch.uint8)


def expected_area():
    """The mean area of the crops of a square, drawn plainly: uniform area, log-uniform shape, again if too wide."""
    rng = np.random.default_rng(0)
    area = rng.uniform(0.16, 1, 50_000)
    ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3), 50_000))
    fits = (area * ratio <= 1) & (area / ratio <= 1)
    return float(area[fits].mean())


@pytest.mark.parametrize("shape", [(300, 400), (400, 300), (256, 256), (80, 500), (40, 40)])
@pytest.mark.parametrize("transform", [train_transform(), evaluation_transform()])
def test_images_become_227_pixels_of_bytes_also_in_workers(shape, transform):
    image = pickle.loads(pickle.dumps(transform))(ramp(*shape))
    assert (image.dtype, image.shape) == (torch.uint8, (3, 227, 227))


def test_crops_have_the_area_and_shape_of_the_paper_and_half_are_flipped():
    torch.manual_seed(0)
    augment = train_transform()
    areas, ratios, flips = [], [], []
    image = ramp(256, 256)
    for _ in range(1000):
        crop = augment(image).float()
        # On a linear ramp the range of values tells the size of the crop, the sign of the slope the flip.
        slope = crop[0, :, -20:].mean() - crop[0, :, :20].mean()
        width = float(slope.abs()) / 255 / (207 / 227)
        height = float(crop[1, -20:].mean() - crop[1, :20].mean()) / 255 / (207 / 227)
        areas.append(width * height)
        ratios.append(width / height)
        flips.append(bool(slope < 0))
    assert 0.14 < min(areas) < 0.2
    assert 0.9 < max(areas) < 1.05
    assert np.mean(areas) == pytest.approx(expected_area(), abs=0.03)
    assert 0.72 < min(ratios) < 0.8
    assert 1.25 < max(ratios) < 1.38
    assert np.mean(flips) == pytest.approx(0.5, abs=0.05)


def test_evaluation_takes_the_middle_of_the_resized_image():
    image = ramp(256, 384)
    seen = evaluation_transform()(image)
    # 256 is already the shorter side: rows 14..240 and columns 78..304, by hand.
    assert torch.equal(seen, image[:, 14:241, 78:305])
    assert evaluation_transform(64, resize=72)(ramp(100, 90)).shape == (3, 64, 64)


def test_without_resize_the_first_step_is_left_to_the_cache():
    image = ramp(256, 341)
    assert torch.equal(evaluation_transform(resize=None)(image), evaluation_transform()(image))
    torch.manual_seed(1)
    first = train_transform(resize=None)(image)
    torch.manual_seed(1)
    assert torch.equal(train_transform()(image), first)


def test_the_resize_follows_the_interpolation_of_the_backbone():
    image = torch.randint(256, (3, 90, 70), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    cubic = evaluation_transform(32, resize=36, interpolation="bicubic")(image)
    expected = functional.interpolate(image[None].float(), (46, 36), mode="bicubic", antialias=True)[0]
    # Bytes are rounded and cut off after each of the two axes, here only at the end.
    assert (cubic.float() - expected.clamp(0, 255)[:, 7:39, 2:34]).abs().max() < 4
    assert not torch.equal(cubic, evaluation_transform(32, resize=36)(image))


def test_shift_and_flip_moves_by_whole_pixels_over_black():
    torch.manual_seed(0)
    image = torch.arange(1, 26, dtype=torch.uint8).view(1, 5, 5).expand(3, 5, 5)
    windows = functional.pad(image, [2] * 4).unfold(1, 5, 1).unfold(2, 5, 1)
    moved = torch.stack([ShiftAndFlip(shift=2)(image) for _ in range(400)])[:, :, None, None]
    # Of the windows [channel, top, left, row, column], straight or turned, exactly one is what is seen.
    straight, turned = ((moved == each).all(-1).all(-1).all(1) for each in (windows, windows.flip(-1)))
    assert (straight | turned).sum((1, 2)).tolist() == [1] * 400
    assert bool((straight | turned).any(0).all())
    assert float(turned.sum() / 400) == pytest.approx(0.5, abs=0.08)
    assert all(torch.equal(ShiftAndFlip(shift=0, flip=0)(image), image) for _ in range(20))


@pytest.mark.parametrize(
    ("make", "options", "told"),
    [
        (train_transform, {"size": 0}, "size is a length"),
        (train_transform, {"resize": -1}, "resize is a length"),
        (train_transform, {"area": (0.5, 1.5)}, "area is a range"),
        (train_transform, {"area": (0.0, 1.0)}, "area is a range"),
        (train_transform, {"ratio": (2.0, 1.0)}, "ratio is a range"),
        (train_transform, {"flip": 2}, "flip is a probability"),
        (evaluation_transform, {"resize": 200}, r"crop \(227\) does not fit"),
        (ShiftAndFlip, {"shift": -1}, "must not be negative"),
    ],
)
def test_bad_numbers_are_refused(make, options, told):
    with pytest.raises(ValueError, match=told):
        make(**options)


def test_auto_augment_is_drawn_from_the_seed():
    def drawn(seed, auto_augment):
        torch.manual_seed(seed)
        augment = train_transform(32, auto_augment=auto_augment)
        return torch.stack([augment(ramp(40, 40)) for _ in range(5)])

    first = drawn(0, True)
    assert (first.shape, first.dtype) == ((5, 3, 32, 32), torch.uint8)
    assert torch.equal(first, drawn(0, True))
    assert not torch.equal(first, drawn(0, False))
