from __future__ import annotations

import pickle

import pytest
import torch
from torch.utils.data import DataLoader

from gspool.data import ArrayImages, ImageSet
from gspool.data.image_source import SelectedImages

# Python 3.12 and later warn when a process with threads forks, as loaders do by default.
FORK_IS_MEANT = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def noise(image: torch.Tensor) -> torch.Tensor:
    return image.float() + torch.rand(())


@pytest.fixture
def pictures() -> ImageSet:
    """Image i is grey i; classes 0, 1, 2, 0, 1, 2, ..."""
    pixels = torch.arange(12, dtype=torch.uint8).view(12, 1, 1, 1).expand(12, 1, 2, 2)
    return ImageSet(ArrayImages(pixels), torch.arange(12) % 3, ("ant", "bee", "cat"), name="toy", split="test")


def test_an_item_is_an_image_and_its_label(pictures: ImageSet) -> None:
    image, label = pictures[4]
    assert image.shape == (3, 2, 2)
    assert image.unique().tolist() == [4]
    assert label == 1
    assert repr(pictures) == "toy/test: 12 images of 3 classes"
    assert pictures.counts().tolist() == [4, 4, 4]
    assert [label for _, label in pictures] == [0, 1, 2] * 4


def test_a_subset_keeps_labels_and_names_and_asks_the_first_source(pictures: ImageSet) -> None:
    part = pictures.subset([5, 1, 7])
    assert [(int(image.max()), label) for image, label in part] == [(5, 2), (1, 1), (7, 1)]
    assert part.class_names == pictures.class_names
    part = part.subset([2, 0])
    assert [int(image.max()) for image, _ in part] == [7, 5]
    assert isinstance(part.images, SelectedImages)
    assert part.images.source is pictures.images
    assert part.describe(0) == "image 7"


def test_of_classes_numbers_labels_anew_in_their_order(pictures: ImageSet) -> None:
    part = pictures.of_classes([2, 0])
    assert part.class_names == ("ant", "cat")
    assert [(int(image.max()), label) for image, label in part] == [
        (0, 0), (2, 1), (3, 0), (5, 1), (6, 0), (8, 1), (9, 0), (11, 1),
    ]  # fmt: skip


def test_empty_classes_go(pictures: ImageSet) -> None:
    part = pictures.subset([0, 2, 3]).without_empty_classes()
    assert part.class_names == ("ant", "cat")
    assert part.labels.tolist() == [0, 1, 0]


def test_roles_and_foreground_follow_their_images() -> None:
    pixels = torch.zeros(4, 3, 2, 2, dtype=torch.uint8)
    roles = ("query", "gallery", "gallery", "query")
    pictures = ImageSet(
        ArrayImages(pixels), [0, 0, 1, 1], ("a", "b"), name="toy", roles=roles, foreground=torch.arange(4)
    )
    assert pictures.with_role("query").foreground.tolist() == [0, 3]
    assert pictures.with_role("gallery").labels.tolist() == [0, 1]
    assert pictures.of_classes([1]).roles == ("gallery", "query")
    assert "2 query, 2 gallery" in repr(pictures)


def test_seeded_draws_belong_to_seed_epoch_and_image_alone(pictures: ImageSet) -> None:
    seen = pictures.with_transform(noise, seed=5)
    first = [seen[index][0] for index in range(12)]
    torch.manual_seed(99)
    before = torch.get_rng_state()
    backwards = [seen[index][0] for index in reversed(range(12))][::-1]
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one, other) for one, other in zip(first, backwards, strict=True))
    assert len({round(float(image.mean()) % 1, 6) for image in first}) == 12
    seen.set_epoch(1)
    assert not torch.equal(seen[0][0], first[0])
    seen.set_epoch(0)
    assert torch.equal(seen[0][0], first[0])
    assert not torch.equal(pictures.with_transform(noise, seed=6)[0][0], first[0])


@FORK_IS_MEANT
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_that_outlive_an_epoch_hear_of_the_next(pictures: ImageSet, context: str) -> None:
    seen = pictures.with_transform(noise, seed=5)
    workers = {"fork": 2, "spawn": 1}[context]
    loader = DataLoader(
        seen, batch_size=3, num_workers=workers, persistent_workers=True, multiprocessing_context=context
    )
    for epoch in (0, 1):
        seen.set_epoch(epoch)
        loaded = torch.cat([images for images, _ in loader])
        alone = torch.stack([seen[index][0] for index in range(12)])
        assert torch.equal(loaded, alone)


def test_without_a_seed_the_global_generator_rules(pictures: ImageSet) -> None:
    seen = pictures.with_transform(noise)
    torch.manual_seed(0)
    first = seen[0][0]
    torch.manual_seed(0)
    assert torch.equal(seen[0][0], first)
    assert not torch.equal(seen[0][0], first)


def test_a_set_survives_pickling(pictures: ImageSet) -> None:
    again = pickle.loads(pickle.dumps(pictures.with_transform(noise, seed=1)))
    assert torch.equal(again[3][0], pictures.with_transform(noise, seed=1)[3][0])


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
def test_what_does_not_fit_together_is_refused(change: dict, told: str) -> None:
    settings = {"images": ArrayImages(torch.zeros(4, 3, 2, 2, dtype=torch.uint8)), "labels": [0, 0, 1, 1]}
    with pytest.raises(ValueError, match=told):
        ImageSet(**{**settings, "class_names": ("a", "b"), "name": "toy", **change})


def test_bad_cuts_are_refused(pictures: ImageSet) -> None:
    with pytest.raises(ValueError, match="empty subset"):
        pictures.subset([])
    with pytest.raises(ValueError, match=r"classes 0..2, got \[3\]"):
        pictures.of_classes([0, 3])
    with pytest.raises(ValueError, match="no query and gallery"):
        pictures.with_role("query")


@pytest.mark.parametrize("shape", [(4, 2, 5, 5), (4, 5, 5), (3, 5, 5)])
def test_pixels_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"\[N, 3, H, W\]"):
        ArrayImages(torch.zeros(shape, dtype=torch.uint8))
    with pytest.raises(ValueError, match="float32"):
        ArrayImages(torch.zeros(4, 3, 5, 5))
