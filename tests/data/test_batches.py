from __future__ import annotations

import time
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gspool.data import ClassBalancedBatches, Shard, ShuffledBatches
from gspool.data.batches import placed


def labels_of(counts: list[int]) -> torch.Tensor:
    """Labels with these counts, in a mixed order."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=15),
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_every_batch_has_m_images_of_p_classes_and_ranks_divide_it(
    counts: list[int], own_classes: int, m: int, world: int, epoch: int
) -> None:
    labels = labels_of(counts)
    p = min(own_classes, len(counts) // world) * world
    if p == 0:
        return
    ranks = []
    for rank in range(world):
        sampler = ClassBalancedBatches(labels, p, m, batches_per_epoch=12, seed=3, rank=rank, world_size=world)
        sampler.set_epoch(epoch)
        ranks.append(list(sampler))
    alone = ClassBalancedBatches(labels, p, m, batches_per_epoch=12, seed=3)
    alone.set_epoch(epoch)
    for number, whole in enumerate(alone):
        assert [index for rank in ranks for index in rank[number]] == whole
        per_class = Counter(labels[whole].tolist())
        assert len(per_class) == p
        assert set(per_class.values()) == {m}
        for label in per_class:
            own = [index for index in whole if labels[index] == label]
            # All different as far as the class has images, and then evenly often.
            assert len(set(own)) == min(m, counts[label])
            assert max(Counter(own).values()) - min(Counter(own).values()) <= 1


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 23), st.integers(1, 23))
def test_every_class_comes_once_before_any_comes_again(classes: int, p: int) -> None:
    p = min(p, classes)
    labels = torch.arange(classes).repeat(2)
    sampler = ClassBalancedBatches(labels, p, 1, batches_per_epoch=40)
    stream = labels[sampler.plan().flatten()].tolist()
    for start in range(0, len(stream) - classes + 1, classes):
        assert sorted(stream[start : start + classes]) == list(range(classes))


def test_images_of_a_class_are_dealt_evenly() -> None:
    labels = torch.arange(5).repeat_interleave(12)
    sampler = ClassBalancedBatches(labels, 5, 4, batches_per_epoch=30)
    counts = torch.bincount(sampler.plan().flatten(), minlength=60)
    # 30 visits x 4 images of 12: every image comes ten times.
    assert counts.unique().tolist() == [10]


def test_an_epoch_is_as_long_as_the_images_fill() -> None:
    assert len(ClassBalancedBatches(labels_of([10] * 10), 5, 4)) == 5
    assert len(ClassBalancedBatches(labels_of([1, 1]), 2, 4)) == 1


def test_the_plan_is_a_function_of_seed_and_epoch() -> None:
    def plan(seed: int, epoch: int) -> list[list[int]]:
        sampler = ClassBalancedBatches(labels_of([8] * 9), 3, 2, seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    torch.manual_seed(1)
    first = plan(0, 0)
    torch.manual_seed(2)
    assert plan(0, 0) == first
    assert plan(0, 1) != first
    assert plan(1, 0) != first
    # Seed 0 in epoch 1 and seed 1 in epoch 0 are not the same run.
    assert plan(1, 0) != plan(0, 1)


def test_iterating_again_repeats_the_epoch() -> None:
    sampler = ClassBalancedBatches(labels_of([8] * 9), 3, 2)
    whole = list(sampler)
    assert list(sampler) == whole
    # A look at the first batch, or a loop left early, does not move the beginning.
    assert next(iter(sampler)) == whole[0]
    assert list(sampler) == whole


def test_the_plan_of_a_large_data_set_is_quick() -> None:
    labels = torch.arange(11_318).repeat_interleave(5)
    started = time.process_time()
    sampler = ClassBalancedBatches(labels, 32, 4)
    assert sampler.plan().shape == (442, 32, 4)
    assert time.process_time() - started < 5


@pytest.mark.parametrize("seen", [0, 2, 6])
@pytest.mark.parametrize("world", [1, 2])
def test_a_run_goes_on_where_it_stopped_on_any_number_of_ranks(seen: int, world: int) -> None:
    labels = labels_of([6] * 8)
    whole = ClassBalancedBatches(labels, 4, 2, seed=7)
    whole.set_epoch(2)
    expected = list(whole)
    running = iter(whole)
    for _ in range(seen):
        next(running)
    state = {**whole.state_dict(), "next_batch": seen}
    ranks = [ClassBalancedBatches(labels, 4, 2, seed=7, rank=rank, world_size=world) for rank in range(world)]
    for sampler in ranks:
        sampler.load_state_dict(state)
        sampler.set_epoch(2)  # trainers announce the epoch again after loading
    joined = [[index for part in parts for index in part] for parts in zip(*ranks, strict=True)]
    assert joined == expected[seen:]
    # Iterating again, and the next epoch, begin at the first batch.
    assert [[index for part in parts for index in part] for parts in zip(*ranks, strict=True)] == expected
    for sampler in (whole, *ranks):
        sampler.set_epoch(3)
    assert [[index for part in parts for index in part] for parts in zip(*ranks, strict=True)] == list(whole)


def test_the_state_of_another_plan_is_refused() -> None:
    labels = labels_of([6] * 8)
    state = ClassBalancedBatches(labels, 4, 2, seed=7).state_dict()
    with pytest.raises(ValueError, match=r"another plan of batches \(seed 7 instead of 8\)"):
        ClassBalancedBatches(labels, 4, 2, seed=8).load_state_dict(state)
    with pytest.raises(ValueError, match="labels"):
        ClassBalancedBatches(labels.flip(0), 4, 2, seed=7).load_state_dict(state)


def test_labels_need_not_be_contiguous() -> None:
    labels = torch.tensor([70, 70, 3, 3, 9, 9])
    for batch in ClassBalancedBatches(labels, 2, 2):
        assert len(labels[batch].unique()) == 2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"classes_per_batch": 9}, "9 classes a batch were requested and the data has 8"),
        ({"classes_per_batch": 0}, "at least one image of one class"),
        ({"images_per_class": 0}, "at least one image of one class"),
        ({"batches_per_epoch": 0}, "batches_per_epoch must be at least 1"),
        ({"rank": 0, "world_size": 3}, "must be a multiple of their number, 3"),
        ({"rank": 1}, "rank and world_size together"),
        ({"rank": 2, "world_size": 2}, "rank must lie in"),
    ],
)
def test_bad_settings_are_refused(options: dict, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        ClassBalancedBatches(labels_of([6] * 8), **{"classes_per_batch": 4, "images_per_class": 2, **options})


@given(st.integers(0, 50), st.integers(1, 9))
def test_shards_hold_every_index_once_and_are_almost_alike(length: int, world: int) -> None:
    shards = [Shard(length, rank=rank, world_size=world) for rank in range(world)]
    assert [index for shard in shards for index in shard] == list(range(length))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    with pytest.raises(ValueError, match="must not be negative"):
        Shard(-1)


def test_the_place_is_asked_of_the_process_group() -> None:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        assert placed() == (0, 1)
        assert placed(1, 4) == (1, 4)
    finally:
        torch.distributed.destroy_process_group()


def test_shuffled_batches_hold_every_image_once_an_epoch_and_ranks_divide_them() -> None:
    labels = torch.zeros(23)
    alone, ranks = (
        ShuffledBatches(labels, 4, seed=3),
        [ShuffledBatches(labels, 4, seed=3, rank=rank, world_size=2) for rank in range(2)],
    )
    first, second = list(zip(*ranks, strict=True)), None
    for sampler in (alone, *ranks):
        sampler.set_epoch(1)
    second = list(zip(*ranks, strict=True))
    assert first != second
    assert [one + other for one, other in second] == list(alone)
    assert len({*alone.plan().flatten().tolist()}) == 20
    resumed = ShuffledBatches(labels, 4, seed=3)
    resumed.load_state_dict({**alone.state_dict(), "next_batch": 3})
    assert list(resumed) == list(alone)[3:]


def test_shuffled_batches_refuse_sizes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="7 images do not fill a batch of 8"):
        ShuffledBatches(torch.zeros(7), 8)
    with pytest.raises(ValueError, match="a multiple of their number, 2"):
        ShuffledBatches(torch.zeros(7), 3, rank=0, world_size=2)
