from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from matplotlib.ft2font import FT2Font

from gspool import data
from gspool.data import Distortion
from gspool.data.glyph_alphabet import FACES, LETTERS, SYMBOLS, face_file, glyph_masks
from gspool.data.glyphs import affine_maps, characters_of, draw_collages, draw_tiles

STILL = Distortion(rotation=0, scale=(1, 1), shear=0, shift=0, paper=(0, 0), ink=(1, 1), noise=0)


def test_every_face_has_every_character_once():
    assert (len(LETTERS), len(SYMBOLS), len(FACES)) == (454, 306, 12)
    assert len(set(LETTERS + SYMBOLS)) == 454 + 306
    for face in FACES:
        known = FT2Font(str(face_file(face))).get_charmap()
        assert all(ord(character) in known for character in LETTERS + SYMBOLS)
    with pytest.raises(FileNotFoundError, match=r"Comic.ttf is missing; reinstall"):
        face_file("Comic")


def test_letters_and_symbols_of_the_splits_are_disjoint_and_complete():
    parts = [characters_of(split) for split in ("train", "validation", "test")]
    assert [len(part.letters) for part in parts] == [200, 154, 100]
    assert sorted(letter for part in parts for letter in part.letters) == sorted(LETTERS)
    assert sorted(symbol for part in parts for symbol in part.symbols) == sorted(SYMBOLS)


@pytest.mark.parametrize("size", [32, 33, 96])
def test_any_size_is_drawn_and_the_global_generator_left_alone(size):
    before = torch.get_rng_state()
    glyphs = data.create("glyphs", split="test", size=size, images_per_class=1)
    assert torch.equal(torch.get_rng_state(), before)
    image, label = glyphs[99]
    assert (len(glyphs), label) == (100, 99)
    assert image.shape == (3, size, size)
    assert torch.equal(image[0], image[2])


def test_the_same_seed_gives_the_same_pixels_and_another_another():
    first, again, other = (data.create("glyphs", split="test", images_per_class=2, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.images.pixels, again.images.pixels)
    assert not torch.equal(first.images.pixels, other.images.pixels)
    assert first.class_names == again.class_names != other.class_names


def closest(masks, tile):
    """The distance of a tile to the most similar of some masks."""
    return float((masks.float() / 255 - tile.float() / 255).abs().amax((-2, -1)).min())


def test_the_foreground_is_the_letter_and_the_other_tiles_are_symbols():
    """Drawn still, a tile is the mask of a character in one of its faces."""
    glyphs = data.create("glyphs", split="test", images_per_class=4, distortion=STILL)
    letters, symbols = (glyph_masks("".join(characters), 32) for characters in characters_of("test"))
    assert set(glyphs.foreground.tolist()) == {0, 1, 2, 3}
    for index in range(0, len(glyphs), 13):
        image, label = glyphs[index]
        tiles = image[0].unflatten(0, (2, 32)).unflatten(2, (2, 32)).transpose(1, 2).flatten(0, 1)
        for place, tile in enumerate(tiles):
            assert closest(letters[label] if place == int(glyphs.foreground[index]) else symbols, tile) < 0.01
    # Without background the letter fills the image.
    glyphs = data.create("glyphs", split="test", images_per_class=1, size=32, distortion=STILL, background="none")
    assert glyphs.foreground is None
    assert all(closest(letters[index], glyphs[index][0][0]) < 0.01 for index in range(0, 100, 9))


def test_masks_are_centred_and_fill_their_square():
    for glyph in glyph_masks("OIW-", 40).numpy().reshape(-1, 40, 40):
        rows, columns = np.nonzero(glyph)
        assert 28 <= max(np.ptp(rows), np.ptp(columns)) + 1 <= 32
        for axis in (rows, columns):
            assert abs(axis.min() + axis.max() - 39) <= 3


def test_affine_maps_against_turning_slanting_scaling_and_moving_one_by_one():
    amounts = Distortion(rotation=30, scale=(0.5, 1.5), shear=0.4, shift=0.2)
    maps = affine_maps(50, amounts, torch.Generator().manual_seed(3)).double().numpy()
    draw = torch.Generator().manual_seed(3)
    angle = np.deg2rad((torch.rand(50, generator=draw) * 60 - 30).numpy())
    scale = (torch.rand(50, generator=draw) + 0.5).numpy()
    slant = (torch.rand(50, generator=draw) * 0.8 - 0.4).numpy()
    move = (torch.rand(50, 2, generator=draw) * 0.8 - 0.4).numpy()
    for row in range(50):
        cosine, sine = np.cos(angle[row]), np.sin(angle[row])
        turn = np.array([[cosine, -sine], [sine, cosine]])
        slanted = np.array([[1, slant[row]], [0, 1]])
        for place in ((0.0, 0.0), (0.3, -0.7), (-1.0, 1.0)):
            expected = slanted @ turn @ (np.array(place) - move[row]) / scale[row]
            np.testing.assert_allclose(maps[row] @ (*place, 1.0), expected, atol=1e-5)


def test_grey_levels_stay_in_their_ranges_and_noise_has_its_deviation():
    amounts = Distortion(rotation=0, scale=(1, 1), shear=0, shift=0, paper=(0.2, 0.3), ink=(0.4, 0.5), noise=0)
    masks = torch.zeros(200, 16, 16, dtype=torch.uint8)
    masks[:, 4:12, 4:12] = 255
    tiles = draw_tiles(masks, 16, amounts, torch.Generator().manual_seed(0))
    paper, ink = tiles[:, 0, 0], tiles[:, 8, 8] - tiles[:, 0, 0]
    assert 0.2 <= paper.min() < 0.22
    assert 0.28 < paper.max() <= 0.3
    assert 0.4 - 1e-6 <= ink.min() < 0.42
    assert 0.48 < ink.max() <= 0.5 + 1e-6
    blank, places = torch.zeros(1, 1, 8, 8, dtype=torch.uint8), torch.zeros(20, 4, dtype=torch.int64)
    amounts = Distortion(paper=(0.5, 0.5), noise=0.1)
    picture = draw_collages(blank, places, 64, amounts, torch.Generator().manual_seed(0))
    assert float(picture.float().std() / 255) == pytest.approx(0.1, rel=0.02)


def test_thousands_of_images_take_seconds():
    started = time.process_time()
    assert len(data.create("glyphs", split="test")) == 3000
    assert time.process_time() - started < 20


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"size": 4}, "at least 8 pixels, got 4"),
        ({"images_per_class": 0}, "at least 1"),
        ({"background": "sky"}, "'symbols'"),
        ({"seed": -1}, "whole number from 0"),
    ],
)
def test_bad_options_are_refused(options, told):
    with pytest.raises(ValueError, match=told):
        data.create("glyphs", **options)
