from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gspool.data import ArrayImages, ImageSet, class_fold, image_fold, split_images
from gspool.data.splits import shuffled, split_positions


def set_of(labels):
    pixels = torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8)
    return ImageSet(ArrayImages(pixels), labels, [f"c{label}" for label in range(max(labels) + 1)], name="toy")


def toy(classes, per_class):
    return set_of(torch.arange(classes).repeat_interleave(per_class).tolist())


@given(st.integers(4, 40), st.integers(2, 6))
def test_class_folds_are_contiguous_and_hold_every_class_out_once(classes, folds):
    folds = min(folds, classes // 2)
    whole = toy(classes, 2)
    held = []
    for fold in range(folds):
        train, validation = class_fold(whole, fold, folds)
        assert not set(train.class_names) & set(validation.class_names)
        assert set(train.class_names) | set(validation.class_names) == set(whole.class_names)
        assert len(train) + len(validation) == len(whole)
        assert train.labels.unique().tolist() == list(range(train.num_classes))
        assert (train.split, validation.split) == ("train", "validation")
        assert validation.num_classes >= 2
        held += validation.class_names
    assert tuple(held) == whole.class_names


@pytest.mark.parametrize(("classes", "held"), [(100, [25, 25, 25, 25]), (98, [25, 25, 24, 24])])
def test_the_fair_protocol_holds_out_quarters_and_the_first_take_the_rest(classes, held):
    assert [class_fold(toy(classes, 1), fold).validation.num_classes for fold in range(4)] == held


def test_image_folds_share_classes_and_hold_every_image_out_once():
    whole = toy(3, 7)
    seen = []
    for fold in range(4):
        train, validation = image_fold(whole, fold, 4)
        assert train.class_names == validation.class_names == whole.class_names
        seen += validation.images.indices.tolist()
        assert sorted(train.images.indices.tolist() + validation.images.indices.tolist()) == list(range(21))
    assert sorted(seen) == list(range(21))


@pytest.mark.parametrize(
    ("cut", "told"),
    [
        (lambda: class_fold(toy(10, 1), 4, 4), "numbered 0..3"),
        (lambda: class_fold(toy(10, 1), -1, 4), "numbered"),
        (lambda: class_fold(toy(10, 1), 0, 1), "folds"),
        (lambda: class_fold(toy(11, 1), 0, 6), "6 folds were requested; possible are 2 to 5 .*two classes"),
        (lambda: image_fold(toy(2, 3), 0, 4), "2 to 3 images in the smallest class"),
        (lambda: split_positions(["a", "b"], (0.5, 0.2, 0.2), 0), "must add up to 1"),
        (lambda: split_positions(["a", "b"], (1.2, -0.2, 0.0), 0), "must add up to 1"),
        (lambda: split_positions(["a", "b"], (0.5, 0.5), 0), "must add up to 1"),
        (lambda: split_images(set_of([0, 0, 0, 1, 1, 2, 2, 2])), r"1 classes have fewer than three images \(c1\)"),
        (lambda: split_images(toy(2, 5), (0.5, 0.0, 0.5)), "a positive share each"),
    ],
)
def test_folds_and_fractions_that_do_not_exist_are_refused(cut, told):
    with pytest.raises(ValueError, match=told):
        cut()


def test_the_order_is_that_of_the_hashes_and_never_changes():
    # Written down: a new version of any library that moved a class to another split would invalidate old results.
    assert shuffled(["ant", "bee", "cat", "dog", "elk"], seed=0) == [2, 3, 0, 1, 4]
    assert shuffled(["ant", "bee", "cat", "dog", "elk"], seed=1) != [2, 3, 0, 1, 4]


@given(st.integers(1, 60), st.integers(0, 5))
def test_parts_hold_every_position_once(count, seed):
    parts = split_positions([str(row) for row in range(count)], (0.6, 0.2, 0.2), seed)
    assert sorted([*parts.train, *parts.validation, *parts.test]) == list(range(count))
    assert abs(len(parts.train) - 0.6 * count) <= 0.5
    assert abs(len(parts.test) - 0.2 * count) <= 0.5


FRACTIONS = st.tuples(*[st.integers(1, 9)] * 3).map(lambda shares: tuple(share / sum(shares) for share in shares))


@given(st.lists(st.integers(3, 12), min_size=1, max_size=4), FRACTIONS, st.integers(0, 5), st.randoms())
def test_every_class_is_in_every_part_and_every_image_in_one(counts, fractions, seed, random: Random):
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    random.shuffle(labels)
    whole = set_of(labels)
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


def test_another_seed_divides_images_in_another_way():
    first, again, other = (split_images(toy(2, 20), seed=seed).test.images.indices.tolist() for seed in (0, 0, 1))
    assert first == again != other
