from __future__ import annotations

import pickle

import pytest
import torch
from torch.utils.data import DataLoader

from gspool.data import ArrayImages, ImageSet
from gspool.data.image_source import SelectedImages


def noise(image):
    return image.float() + torch.rand(())


@pytest.fixture
def pictures():
    """Image i is grey i; classes 0, 1, 2, 0, 1, 2, ..."""
    pixels = torch.arange(12, dtype=torch.uint8).view(12, 1, 1, 1).expand(12, 1, 2, 2)
    return ImageSet(ArrayImages(pixels), torch.arange(12) % 3, ("ant", "bee", "cat"), name="toy", split="test")


def seen(images):
    return [(int(image.max()), label) for image, label in images]


def test_an_item_is_an_image_and_its_label(pictures):
    image, label = pictures[4]
    assert image.shape == (3, 2, 2)
    assert (image.unique().tolist(), label) == ([4], 1)
    assert repr(pictures) == "toy/test: 12 images of 3 classes"
    assert pictures.counts().tolist() == [4, 4, 4]
    assert [label for _, label in pictures] == [0, 1, 2] * 4


def test_a_subset_keeps_labels_and_names_and_asks_the_first_source(pictures):
    part = pictures.subset([5, 1, 7])
    assert seen(part) == [(5, 2), (1, 1), (7, 1)]
    assert part.class_names == pictures.class_names
    part = part.subset([2, 0])
    assert seen(part) == [(7, 1), (5, 2)]
    assert isinstance(part.images, SelectedImages)
    assert part.images.source is pictures.images
    assert part.describe(0) == "image 7"


def test_classes_are_numbered_anew_in_their_order(pictures):
    part = pictures.of_classes([2, 0])
    assert part.class_names == ("ant", "cat")
    assert seen(part) == [(0, 0), (2, 1), (3, 0), (5, 1), (6, 0), (8, 1), (9, 0), (11, 1)]
    part = pictures.subset([0, 2, 3]).without_empty_classes()
    assert part.class_names == ("ant", "cat")
    assert part.labels.tolist() == [0, 1, 0]


def test_roles_and_foreground_follow_their_images():
    images, roles = ArrayImages(torch.zeros(4, 3, 2, 2, dtype=torch.uint8)), ("query", "gallery", "gallery", "query")
    pictures = ImageSet(images, [0, 0, 1, 1], ("a", "b"), name="toy", roles=roles, foreground=torch.arange(4))
    assert pictures.with_role("query").foreground.tolist() == [0, 3]
    assert pictures.with_role("gallery").labels.tolist() == [0, 1]
    assert pictures.of_classes([1]).roles == ("gallery", "query")
    assert "2 query, 2 gallery" in repr(pictures)


def test_seeded_draws_belong_to_seed_epoch_and_image_alone(pictures):
    drawn = pictures.with_transform(noise, seed=5)
    first = [drawn[index][0] for index in range(12)]
    torch.manual_seed(99)
    before = torch.get_rng_state()
    backwards = [drawn[index][0] for index in reversed(range(12))][::-1]
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, first, backwards))
    assert len({round(float(image.mean()) % 1, 6) for image in first}) == 12
    assert torch.equal(pickle.loads(pickle.dumps(drawn))[3][0], first[3])
    drawn.set_epoch(1)
    assert not torch.equal(drawn[0][0], first[0])
    drawn.set_epoch(0)
    assert torch.equal(drawn[0][0], first[0])
    assert not torch.equal(pictures.with_transform(noise, seed=6)[0][0], first[0])


@pytest.mark.parametrize(("context", "workers"), [("fork", 2), ("spawn", 1)])
def test_workers_that_outlive_an_epoch_hear_of_the_next(pictures, context, workers):
    drawn = pictures.with_transform(noise, seed=5)
    options = {"num_workers": workers, "persistent_workers": True, "multiprocessing_context": context}
    loader = DataLoader(drawn, batch_size=3, **options)
    for epoch in (0, 1):
        drawn.set_epoch(epoch)
        loaded = torch.cat([images for images, _ in loader])
        assert torch.equal(loaded, torch.stack([drawn[index][0] for index in range(12)]))


def test_without_a_seed_the_global_generator_rules(pictures):
    drawn = pictures.with_transform(noise)
    torch.manual_seed(0)
    first = drawn[0][0]
    torch.manual_seed(0)
    assert torch.equal(drawn[0][0], first)
    assert not torch.equal(drawn[0][0], first)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"labels": [0, 1]}, "4 images but 2 labels"),
        ({"labels": [0, 1, 2, 3]}, "labels run from 0 to 3, but there are 2 class names"),
        ({"labels": [-1, 0, 0, 1]}, "labels run from -1"),
        ({"roles": ["query", "shop", "gallery", "gallery"]}, "'query' or 'gallery', got .'shop'"),
        ({"roles": ["query"]}, "4 images but 1 roles"),
        ({"images": ArrayImages(torch.zeros(0, 3, 2, 2, dtype=torch.uint8)), "labels": []}, "holds no images"),
    ],
)
def test_what_does_not_fit_together_is_refused(change, told):
    settings = {"images": ArrayImages(torch.zeros(4, 3, 2, 2, dtype=torch.uint8)), "labels": [0, 0, 1, 1]}
    with pytest.raises(ValueError, match=told):
        ImageSet(**{**settings, "class_names": ("a", "b"), "name": "toy", **change})


@pytest.mark.parametrize(
    ("cut", "told"),
    [
        (lambda pictures: pictures.subset([]), "empty subset"),
        (lambda pictures: pictures.of_classes([0, 3]), r"classes 0..2, got \[3\]"),
        (lambda pictures: pictures.with_role("query"), "no query and gallery"),
        (lambda _: ArrayImages(torch.zeros(4, 2, 5, 5, dtype=torch.uint8)), r"\[N, 3, H, W\]"),
        (lambda _: ArrayImages(torch.zeros(3, 5, 5, dtype=torch.uint8)), r"\[N, 3, H, W\]"),
        (lambda _: ArrayImages(torch.zeros(4, 3, 5, 5)), "float32"),
    ],
)
def test_bad_cuts_and_pixels_are_refused(pictures, cut, told):
    with pytest.raises(ValueError, match=told):
        cut(pictures)
