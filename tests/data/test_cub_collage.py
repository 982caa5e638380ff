"""Collages of CUB: one labelled land bird among water birds."""

from __future__ import annotations

import pytest
import torch

from gspool import data

CLASSES = {1: "Black_footed_Albatross", 2: "Indigo_Bunting", 3: "Herring_Gull", 101: "White_Pelican", 102: "Sayornis"}
GREY = {name: 40 * place + 20 for place, name in enumerate(CLASSES.values())}


@pytest.fixture
def birds(write_cub):
    """Write four pictures of five classes, each class in a grey of its own."""
    files = [
        (number, f"{number:03d}.{name}/{name}_{copy}.png", GREY[name])
        for number, name in CLASSES.items()
        for copy in range(4)
    ]
    return write_cub(files, "PNG")


def collages(root, split, **options):
    return data.create("cub_collage", root, split, allow_partial=True, size=32, **options)


@pytest.mark.parametrize(("split", "name"), [("train", "Indigo_Bunting"), ("test", "Sayornis")])
def test_one_tile_holds_the_labelled_bird_and_the_others_water_birds(birds, split, name):
    images = collages(birds, split, draws=3)
    assert len(images) == 12
    assert [each.split(".")[1] for each in images.class_names] == [name]
    water = {GREY[each] for each in ("Black_footed_Albatross", "Herring_Gull", "White_Pelican")}
    for index in range(len(images)):
        tiles = images.images[index].unflatten(1, (2, 16)).unflatten(3, (2, 16))[0, :, 8, :, 8].flatten().tolist()
        assert tiles.count(GREY[name]) == 1
        assert {*tiles} - {GREY[name]} <= water


def test_splits_share_no_picture_and_seeds_draw_others(birds):
    train, test = (collages(birds, split, draws=6).images for split in ("train", "test"))
    seen = [{path for files in images.files for path in files} for images in (train, test)]
    assert not seen[0] & seen[1]
    first, again, other = (collages(birds, "train", seed=seed).images for seed in (1, 1, 2))
    assert first.files == again.files != other.files
    assert torch.equal(first[0], again[0])


@pytest.mark.parametrize(
    ("split", "options", "words"),
    [
        ("validation", {}, "folds of train"),
        ("train", {"side": 1}, "side must"),
        ("train", {"side": 3}, "8 distractors"),
    ],
)
def test_what_cannot_be_stitched_is_refused(birds, split, options, words):
    with pytest.raises(ValueError, match=words):
        collages(birds, split, **options)
