"""Collages of CUB: one labelled land bird among water birds."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from gspool import data

CLASSES = {1: "Black_footed_Albatross", 2: "Indigo_Bunting", 3: "Herring_Gull", 101: "White_Pelican", 102: "Sayornis"}
COLOUR = {name: 40 * place + 20 for place, name in enumerate(CLASSES.values())}


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    """Write four pictures of five classes, each class in a grey of its own."""
    folder = tmp_path / "CUB_200_2011"
    images, labels = [], []
    for number, name in CLASSES.items():
        for copy in range(4):
            path = f"{number:03d}.{name}/{name}_{copy}.png"
            (folder / "images" / path).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20 + copy, 16), (COLOUR[name],) * 3).save(folder / "images" / path)
            images.append(f"{len(images) + 1} {path}")
            labels.append(f"{len(images)} {number}")
    (folder / "images.txt").write_text("\n".join(images) + "\n")
    (folder / "image_class_labels.txt").write_text("\n".join(labels) + "\n")
    return tmp_path


def collages(root: Path, split: str, **options: int) -> data.ImageSet:
    return data.create("cub_collage", root, split, allow_partial=True, size=32, **options)


@pytest.mark.parametrize(("split", "name"), [("train", "Indigo_Bunting"), ("test", "Sayornis")])
def test_one_tile_holds_the_labelled_bird_and_the_others_water_birds(birds: Path, split: str, name: str) -> None:
    images = collages(birds, split, draws=3)
    assert len(images) == 12
    assert [each.split(".")[1] for each in images.class_names] == [name]
    water = {COLOUR[each] for each in ("Black_footed_Albatross", "Herring_Gull", "White_Pelican")}
    for index in range(len(images)):
        tiles = images.images[index].unflatten(1, (2, 16)).unflatten(3, (2, 16))[0, :, 8, :, 8].flatten().tolist()
        assert tiles.count(COLOUR[name]) == 1
        assert {*tiles} - {COLOUR[name]} <= water


def test_train_and_test_share_no_picture(birds: Path) -> None:
    train, test = (collages(birds, split, draws=6).images for split in ("train", "test"))
    seen = [{path for files in images.files for path in files} for images in (train, test)]
    assert not seen[0] & seen[1]


def test_the_same_seed_draws_the_same_collages_and_another_others(birds: Path) -> None:
    first, again, other = (collages(birds, "train", seed=seed).images for seed in (1, 1, 2))
    assert first.files == again.files
    assert first.files != other.files
    assert torch.equal(first[0], again[0])


@pytest.mark.parametrize(
    ("split", "options", "words"),
    [
        ("validation", {}, "folds of train"),
        ("train", {"side": 1}, "side must"),
        ("train", {"side": 3}, "8 distractors"),
    ],
)
def test_what_cannot_be_stitched_is_refused(birds: Path, split: str, options: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        collages(birds, split, **options)
