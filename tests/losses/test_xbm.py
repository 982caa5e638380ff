"""Cross-batch memory against a plain list of past batches."""

from __future__ import annotations

import pytest
import torch

from gspool import losses
from gspool.losses.xbm import CrossBatchMemoryLoss

DIM, CLASSES = 4, 3


def batches(count: int, size: int = 6) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(size) % CLASSES
    return [
        (torch.nn.functional.normalize(torch.randn(size, DIM, dtype=torch.float64, generator=generator)), labels)
        for _ in range(count)
    ]


def xbm(name: str = "c1", start: int = 0) -> CrossBatchMemoryLoss:
    """A memory of two batches of six."""
    return losses.create(f"xbm+{name}", CLASSES, DIM, memory_batches=2, batch_size=6, start=start).double()


def contrastive_against(queries, labels, others, other_labels):
    """C1 of every query with every other embedding, one pair at a time."""
    total = 0.0
    for x, label in zip(queries, labels, strict=True):
        for y, other in zip(others, other_labels, strict=True):
            s = float(x @ y)
            total += max(1 - s, 0) if label == other else max(s - 0.5, 0)
    return total / len(queries)


def test_memory_loss_equals_a_loop_over_the_remembered_batches():
    plain = losses.create("c1", CLASSES, DIM)
    loss = xbm(start=2)
    past: list[tuple[torch.Tensor, torch.Tensor]] = []
    for step, (x, labels) in enumerate(batches(7)):
        expected = float(plain(x, labels))
        for old, old_labels in past[-2:]:
            expected += contrastive_against(x, labels, old, old_labels)
        assert float(loss(x, labels)) == pytest.approx(expected, rel=1e-9), step
        if step >= 2:
            past.append((x, labels))


def test_the_oldest_row_goes_first_where_batches_do_not_fill_the_memory_evenly():
    loss = CrossBatchMemoryLoss(losses.create("c1", CLASSES, DIM), DIM, capacity=8, start=0).double()
    seen = batches(3)
    for x, labels in seen:
        loss(x, labels)
    kept = {tuple(row) for row in loss.embeddings.tolist()}
    last_eight = torch.cat([x for x, _ in seen])[-8:]
    assert kept == {tuple(row) for row in last_eight.tolist()}


def test_remembered_embeddings_pass_no_gradient_but_the_batch_does():
    loss = xbm()
    (first, labels), (second, _) = batches(2)
    first.requires_grad_()
    second.requires_grad_()
    loss(first, labels)
    loss(second, labels).backward()
    assert first.grad is None
    assert second.grad.abs().sum() > 0


def test_remembered_embeddings_train_the_proxies():
    loss = xbm("pnca")
    plain = losses.create("pnca", CLASSES, DIM).double()
    plain.load_state_dict(loss.loss.state_dict())
    (first, labels), (second, _) = batches(2)
    loss(first, labels)
    value = loss(second, labels)
    assert value.item() == pytest.approx((plain(second, labels) + plain(first, labels)).item(), rel=1e-9)
    value.backward()
    expected = torch.autograd.grad(plain(second, labels) + plain(first, labels), plain.W)[0]
    torch.testing.assert_close(loss.loss.W.grad, expected)


def test_a_restored_memory_goes_on_with_the_same_numbers():
    whole, first, second = (xbm(start=1) for _ in range(3))
    seen = batches(6)
    expected = [float(whole(x, labels)) for x, labels in seen]
    for x, labels in seen[:4]:
        first(x, labels)
    second.load_state_dict(first.state_dict())
    assert [float(second(x, labels)) for x, labels in seen[4:]] == expected[4:]


def test_evaluation_remembers_nothing():
    loss = xbm().eval()
    for x, labels in batches(3):
        loss(x, labels)
    assert int(loss.seen) == 0
    assert int(loss.steps) == 0


def test_a_batch_larger_than_the_memory_is_cut():
    loss = CrossBatchMemoryLoss(losses.create("c1", CLASSES, DIM), DIM, capacity=4, start=0).double()
    x, labels = batches(1)[0]
    loss(x, labels)
    assert {tuple(row) for row in loss.embeddings.tolist()} == {tuple(row) for row in x[-4:].tolist()}


def test_preset_sizes_the_memory():
    assert losses.create("xbm+c1", 100, 8, preset="cub").capacity == 25 * 32
    assert losses.create("xbm+c1", 100, 8, preset="sop").capacity == 1_400 * 32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"capacity": 0}, "capacity must be an integer of at least 1"),
        ({"capacity": 4, "start": -1}, "start must be an integer of at least 0"),
        ({"capacity": 4, "weight": -0.5}, "weight is the factor"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        CrossBatchMemoryLoss(losses.create("c1", CLASSES, DIM), DIM, **settings)


def test_a_loss_that_cannot_meet_a_memory_is_refused_at_once():
    with pytest.raises(ValueError, match="cannot be used with a memory"):
        losses.create("xbm+NPairsLoss", CLASSES, DIM)
