from __future__ import annotations

import time
from collections import Counter
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gspool.data import ClassBalancedBatches, Shard, ShuffledBatches
from gspool.data.batches import placed


def labels_of(counts):
    """Labels with these counts, in a mixed order."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]


def joined(ranks):
    """The batches of several ranks, put together."""
    return [[index for part in parts for index in part] for parts in zip(*ranks, strict=True)]


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=15),
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_every_batch_has_m_images_of_p_classes_and_ranks_divide_it(counts, own_classes, m, world, epoch):
    # Labels need not be contiguous.
    labels = 7 * labels_of(counts)
    p = min(own_classes, len(counts) // world) * world
    if p == 0:
        return
    alone, *ranks = (
        ClassBalancedBatches(labels, p, m, batches_per_epoch=12, seed=3, rank=rank, world_size=size)
        for rank, size in [(0, 1), *((rank, world) for rank in range(world))]
    )
    for sampler in (alone, *ranks):
        sampler.set_epoch(epoch)
    assert joined(ranks) == list(alone)
    for batch in alone:
        per_class = Counter(labels[batch].tolist())
        assert len(per_class) == p
        assert set(per_class.values()) == {m}
        for label in per_class:
            own = Counter(index for index in batch if labels[index] == label)
            # All different as far as the class has images, and then evenly often.
            assert len(own) == min(m, counts[label // 7])
            assert max(own.values()) - min(own.values()) <= 1


@settings(max_examples=40)
@given(st.integers(2, 23), st.integers(1, 23))
def test_every_class_comes_once_before_any_comes_again(classes, p):
    p = min(p, classes)
    labels = torch.arange(classes).repeat(2)
    sampler = ClassBalancedBatches(labels, p, 1, batches_per_epoch=40)
    stream = labels[sampler.plan().flatten()].tolist()
    for start in range(0, len(stream) - classes + 1, classes):
        assert sorted(stream[start : start + classes]) == list(range(classes))


def test_images_of_a_class_are_dealt_evenly_and_fill_an_epoch():
    sampler = ClassBalancedBatches(torch.arange(5).repeat_interleave(12), 5, 4, batches_per_epoch=30)
    # 30 visits x 4 images of 12: every image comes ten times.
    assert torch.bincount(sampler.plan().flatten(), minlength=60).unique().tolist() == [10]
    assert len(ClassBalancedBatches(labels_of([10] * 10), 5, 4)) == 5
    assert len(ClassBalancedBatches(labels_of([1, 1]), 2, 4)) == 1


def test_the_plan_is_a_function_of_seed_and_epoch():
    def plan(seed, epoch, torch_seed):
        torch.manual_seed(torch_seed)
        sampler = ClassBalancedBatches(labels_of([8] * 9), 3, 2, seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert plan(0, 0, torch_seed=1) == plan(0, 0, torch_seed=2)
    # Seed 0 in epoch 1 and seed 1 in epoch 0 are not the same run.
    assert len({str(plan(*place, torch_seed=1)) for place in ((0, 0), (0, 1), (1, 0))}) == 3


def test_iterating_again_repeats_the_epoch():
    sampler = ClassBalancedBatches(labels_of([8] * 9), 3, 2)
    whole = list(sampler)
    # A look at the first batch, or a loop left early, does not move the beginning.
    assert next(iter(sampler)) == whole[0]
    assert list(sampler) == whole


def test_the_plan_of_a_large_data_set_is_quick():
    labels = torch.arange(11_318).repeat_interleave(5)
    started = time.process_time()
    assert ClassBalancedBatches(labels, 32, 4).plan().shape == (442, 32, 4)
    assert time.process_time() - started < 5


@pytest.mark.parametrize("seen", [0, 2, 6])
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(("kind", "arguments"), [(ClassBalancedBatches, (4, 2)), (ShuffledBatches, (8,))])
def test_a_run_goes_on_where_it_stopped_on_any_number_of_ranks(seen, world, kind, arguments):
    make = partial(kind, labels_of([6] * 8), *arguments, seed=7)
    whole = make()
    whole.set_epoch(2)
    expected = list(whole)
    running = iter(whole)
    for _ in range(seen):
        next(running)
    state = {**whole.state_dict(), "next_batch": seen}
    ranks = [make(rank=rank, world_size=world) for rank in range(world)]
    for sampler in ranks:
        sampler.load_state_dict(state)
        sampler.set_epoch(2)  # trainers announce the epoch again after loading
    assert joined(ranks) == expected[seen:]
    # Iterating again, and the next epoch, begin at the first batch.
    assert joined(ranks) == expected
    for sampler in (whole, *ranks):
        sampler.set_epoch(3)
    assert joined(ranks) == list(whole) != expected


def test_shuffled_batches_hold_every_image_once():
    assert len({*ShuffledBatches(torch.zeros(23), 4, seed=3).plan().flatten().tolist()}) == 20


def test_the_state_of_another_plan_is_refused():
    labels = labels_of([6] * 8)
    state = ClassBalancedBatches(labels, 4, 2, seed=7).state_dict()
    with pytest.raises(ValueError, match=r"another plan of batches \(seed 7 instead of 8\)"):
        ClassBalancedBatches(labels, 4, 2, seed=8).load_state_dict(state)
    with pytest.raises(ValueError, match="labels"):
        ClassBalancedBatches(labels.flip(0), 4, 2, seed=7).load_state_dict(state)


@pytest.mark.parametrize(
    ("make", "arguments", "place", "told"),
    [
        (ClassBalancedBatches, (9, 2), {}, "9 classes a batch were requested and the data has 8"),
        (ClassBalancedBatches, (0, 2), {}, "at least one image of one class"),
        (ClassBalancedBatches, (4, 0), {}, "at least one image of one class"),
        (ClassBalancedBatches, (4, 2), {"batches_per_epoch": 0}, "batches_per_epoch must be at least 1"),
        (ClassBalancedBatches, (4, 2), {"rank": 0, "world_size": 3}, "must be a multiple of their number, 3"),
        (ClassBalancedBatches, (4, 2), {"rank": 1}, "rank and world_size together"),
        (ClassBalancedBatches, (4, 2), {"rank": 2, "world_size": 2}, "rank must lie in"),
        (ShuffledBatches, (49,), {}, "48 images do not fill a batch of 49"),
        (ShuffledBatches, (3,), {"rank": 0, "world_size": 2}, "must be a multiple of their number, 2"),
    ],
)
def test_bad_settings_are_refused(make, arguments, place, told):
    with pytest.raises(ValueError, match=told):
        make(labels_of([6] * 8), *arguments, **place)


@given(st.integers(0, 50), st.integers(1, 9))
def test_shards_hold_every_index_once_and_are_almost_alike(length, world):
    shards = [Shard(length, rank=rank, world_size=world) for rank in range(world)]
    assert [index for shard in shards for index in shard] == list(range(length))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    with pytest.raises(ValueError, match="must not be negative"):
        Shard(-1)


def test_the_place_is_asked_of_the_process_group():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        assert placed() == (0, 1)
        assert placed(1, 4) == (1, 4)
    finally:
        torch.distributed.destroy_process_group()
