from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gspool.data import ArrayImages, ImageSet, class_fold, image_fold, split_images
from gspool.data.splits import shuffled, split_positions


def toy(classes: int, per_class: int) -> ImageSet:
    labels = torch.arange(classes).repeat_interleave(per_class)
    pixels = torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8)
    return ImageSet(ArrayImages(pixels), labels, [f"c{label}" for label in range(classes)], name="toy")


@given(st.integers(2, 40), st.integers(2, 6))
def test_class_folds_are_contiguous_and_hold_every_class_out_once(classes: int, folds: int) -> None:
    if folds > classes:
        folds = classes
    whole = toy(classes, 2)
    held = []
    for fold in range(folds):
        train, validation = class_fold(whole, fold, folds)
        assert not set(train.class_names) & set(validation.class_names)
        assert set(train.class_names) | set(validation.class_names) == set(whole.class_names)
        assert len(train) + len(validation) == len(whole)
        assert train.labels.unique().tolist() == list(range(train.num_classes))
        assert (train.split, validation.split) == ("train", "validation")
        held += validation.class_names
    assert tuple(held) == whole.class_names


@pytest.mark.parametrize(("classes", "held"), [(100, [25, 25, 25, 25]), (98, [25, 25, 24, 24])])
def test_the_fair_protocol_holds_out_quarters_and_the_first_take_the_rest(classes: int, held: list[int]) -> None:
    assert [class_fold(toy(classes, 1), fold).validation.num_classes for fold in range(4)] == held


def test_image_folds_share_classes_and_hold_every_image_out_once() -> None:
    whole = toy(3, 7)
    seen: list[int] = []
    for fold in range(4):
        train, validation = image_fold(whole, fold, 4)
        assert train.class_names == validation.class_names == whole.class_names
        seen += validation.images.indices.tolist()
        assert sorted(train.images.indices.tolist() + validation.images.indices.tolist()) == list(range(21))
    assert sorted(seen) == list(range(21))


@pytest.mark.parametrize(
    ("fold", "folds", "told"), [(4, 4, "numbered 0..3"), (-1, 4, "numbered"), (0, 1, "folds"), (0, 11, "10")]
)
def test_folds_that_do_not_exist_are_refused(fold: int, folds: int, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        class_fold(toy(10, 1), fold, folds)
    with pytest.raises(ValueError, match="2 to 3 images in the smallest class"):
        image_fold(toy(2, 3), 0, 4)


def test_the_order_is_that_of_the_hashes_and_never_changes() -> None:
    # Written down: a new version of any library that moved a class to another split would invalidate old results.
    assert shuffled(["ant", "bee", "cat", "dog", "elk"], seed=0) == EXPECTED_ORDER
    assert shuffled(["ant", "bee", "cat", "dog", "elk"], seed=1) != EXPECTED_ORDER


EXPECTED_ORDER = [2, 3, 0, 1, 4]


@given(st.integers(1, 60), st.integers(0, 5))
def test_parts_hold_every_position_once(count: int, seed: int) -> None:
    parts = split_positions([str(row) for row in range(count)], (0.6, 0.2, 0.2), seed)
    assert sorted([*parts.train, *parts.validation, *parts.test]) == list(range(count))
    assert abs(len(parts.train) - 0.6 * count) <= 0.5
    assert abs(len(parts.test) - 0.2 * count) <= 0.5


@pytest.mark.parametrize("fractions", [(0.5, 0.2, 0.2), (1.2, -0.2, 0.0), (0.5, 0.5)])
def test_fractions_must_share_out_the_whole(fractions: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="must add up to 1"):
        split_positions(["a", "b"], fractions, 0)  # type: ignore[arg-type]


FRACTIONS = st.tuples(*[st.integers(1, 9)] * 3).map(lambda shares: tuple(share / sum(shares) for share in shares))


@given(st.lists(st.integers(3, 12), min_size=1, max_size=4), FRACTIONS, st.integers(0, 5), st.randoms())
def test_every_class_is_in_every_part_and_every_image_in_one(
    counts: list[int], fractions: tuple[float, float, float], seed: int, random: Random
) -> None:
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    random.shuffle(labels)
    pixels = torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8)
    whole = ImageSet(ArrayImages(pixels), labels, [f"c{label}" for label in range(len(counts))], name="toy")
    parts = split_images(whole, fractions, seed)
    assert sorted(row for part in parts for row in part.images.indices.tolist()) == list(range(len(whole)))
    for split, share, part in zip(("train", "validation", "test"), fractions, parts, strict=True):
        assert (part.split, part.class_names) == (split, whole.class_names)
        assert part.counts().min() >= 1
        assert (part.counts() - share * whole.counts()).abs().max() < 2

    # The same images in another order are divided in the same way.
    order = random.sample(range(len(whole)), len(whole))
    again = split_images(whole.subset(order), fractions, seed)
    for part, other in zip(parts, again, strict=True):
        assert {part.describe(row) for row in range(len(part))} == {other.describe(row) for row in range(len(other))}


def test_another_seed_divides_images_in_another_way() -> None:
    first, second = (split_images(toy(2, 20), seed=seed).test.images.indices.tolist() for seed in (0, 1))
    assert first != second
    assert first == split_images(toy(2, 20), seed=0).test.images.indices.tolist()


def test_every_class_and_every_part_needs_its_share() -> None:
    with pytest.raises(ValueError, match=r"1 classes have fewer than three images \(c1\)"):
        split_images(toy(3, 3).subset([0, 1, 2, 3, 4, 6, 7, 8]))
    with pytest.raises(ValueError, match="a positive share each"):
        split_images(toy(2, 5), (0.5, 0.0, 0.5))
