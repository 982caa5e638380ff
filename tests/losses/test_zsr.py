"""Zero-shot regularisation against a slow loop over the paper's formula, and its laws."""

import math

import pytest
import torch

from gspool import ZSRLoss
from gspool.losses.zsr import random_half_of_classes


def slow_loss(attributes, labels, embeddings, first, ridge, scale):
    """Sec. 4.3 word by word: fit A on one half (P3, normal equations), cross-entropy on the other, sum of the means."""
    total = 0.0
    for fitted, predicted in ((first, ~first), (~first, first)):
        z, u = attributes[fitted], embeddings[labels[fitted]]
        a = torch.linalg.inv(z.t() @ z + ridge * torch.eye(z.shape[1], dtype=z.dtype)) @ z.t() @ u
        losses = []
        for i in torch.nonzero(predicted).flatten():
            logits = [scale * float((attributes[i] @ a) @ embedding) for embedding in embeddings]
            losses.append(math.log(sum(math.exp(v - logits[labels[i]]) for v in logits)))
        total += sum(losses) / len(losses)
    return total


def batch(labels, attributes=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    z = torch.rand(len(labels), attributes, generator=generator, dtype=torch.float64).softmax(-1)
    return z, torch.tensor(labels)


@pytest.mark.parametrize(
    "labels",
    [[0, 0, 1, 1], [4, 0, 4, 0, 2, 2, 4], [0, 1], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [0, 0, 0, 0, 0, 8]],
)
@pytest.mark.parametrize("attributes", [3, 40])
def test_equals_the_formula(labels, attributes):
    z, y = batch(labels, attributes)
    zsr = ZSRLoss(10, dim=5, ridge=0.05, scale=9.5).double()
    torch.manual_seed(1)
    ours = zsr(z, y)
    torch.manual_seed(1)
    first = random_half_of_classes(y, 10)
    expected = slow_loss(z, y, zsr.class_embeddings.detach(), first, 0.05, 9.5)
    assert ours.item() == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("labels", [[0, 1], [0, 0, 1, 1, 2, 2], [7, 3, 3, 3, 1, 0, 0], [5, 4, 5, 4, 5]])
def test_halves_are_disjoint_in_classes_and_differ_by_at_most_one_class(labels):
    y = torch.tensor(labels)
    for seed in range(20):
        torch.manual_seed(seed)
        first = random_half_of_classes(y, 10)
        one, other = set(y[first].tolist()), set(y[~first].tolist())
        assert not one & other
        assert len(one) - len(other) in (0, 1)


def test_every_class_gets_into_either_half():
    y = torch.arange(6)
    drawn = torch.stack([random_half_of_classes(y, 6) for _ in range(200)]).float().mean(0)
    assert (drawn > 0.3).all()
    assert (drawn < 0.7).all()


def test_order_of_the_batch_does_not_matter():
    z, y = batch([0, 0, 1, 1, 2, 2, 3])
    zsr = ZSRLoss(10, dim=5).double()
    order = torch.randperm(7)
    values = []
    for a, b in ((z, y), (z[order], y[order])):
        torch.manual_seed(3)
        values.append(zsr(a, b))
    torch.testing.assert_close(*values)


def test_gradients_reach_attributes_and_class_embeddings():
    z, y = batch([0, 0, 1, 1, 2])
    z.requires_grad_()
    zsr = ZSRLoss(4, dim=3).double()

    def loss(attributes, embeddings):
        torch.manual_seed(0)
        return torch.func.functional_call(zsr, {"class_embeddings": embeddings}, (attributes, y))

    assert torch.autograd.gradcheck(loss, (z, zsr.class_embeddings))


def test_repeats_average_over_splits():
    z, y = batch([0, 1, 2, 3, 4, 5])
    once, often = ZSRLoss(6, dim=4).double(), ZSRLoss(6, dim=4, repeats=3).double()
    often.load_state_dict(once.state_dict())
    torch.manual_seed(0)
    singles = torch.stack([once(z, y) for _ in range(3)])
    torch.manual_seed(0)
    torch.testing.assert_close(often(z, y), singles.mean())
    assert singles.std() > 0


def test_autocast_computes_in_float32():
    z, y = batch([0, 0, 1, 1, 2, 2])
    z = z.float()
    zsr = ZSRLoss(10, dim=5)
    torch.manual_seed(0)
    plain = zsr(z, y)
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        cast = zsr(z, y)
    assert cast.dtype == torch.float32
    assert torch.equal(plain, cast)


def test_learning_makes_unseen_halves_predictable():
    torch.manual_seed(0)
    y = torch.arange(8).repeat_interleave(4)
    raw = torch.nn.Parameter(torch.randn(32, 12))
    zsr = ZSRLoss(8, dim=16)
    optimiser = torch.optim.Adam([raw, *zsr.parameters()], lr=0.05)
    history = []
    for _ in range(150):
        optimiser.zero_grad()
        loss = zsr(raw.softmax(-1), y)
        loss.backward()
        optimiser.step()
        history.append(float(loss.detach()))
    assert sum(history[-10:]) < 0.7 * sum(history[:10])


def test_compiles():
    z, y = batch([0, 0, 1, 1, 2, 2])
    zsr = ZSRLoss(4, dim=3).double()
    torch.manual_seed(0)
    eager = zsr(z, y)
    torch.manual_seed(0)
    compiled = torch.compile(zsr, fullgraph=True, backend="aot_eager")(z, y)
    torch.testing.assert_close(compiled, eager)


@pytest.mark.parametrize(
    ("attributes", "labels", "message"),
    [
        (torch.rand(3, 4), torch.tensor([2, 2, 2]), "at least two classes.*only class 2.*sampler"),
        (torch.rand(0, 4), torch.tensor([], dtype=torch.long), "empty batch"),
        (torch.rand(3, 4), torch.tensor([0.0, 1.0, float("nan")]), "NaN"),
        (torch.rand(3, 4), torch.tensor([True, False, True]), "integers"),
        (torch.rand(3, 4), [0, 1, 2], "got list"),
        (torch.rand(3, 4), torch.tensor([0, 1]), r"shape \(3,\)"),
        (torch.rand(3, 4), torch.tensor([0, 1, 10]), r"0 \.\. 9"),
        (torch.rand(3, 4), torch.tensor([0, 1, -1]), "number the training classes from 0"),
        (torch.rand(3), torch.tensor([0, 1, 2]), r"\[B, M\]"),
        (torch.ones(3, 4, dtype=torch.long), torch.tensor([0, 1, 2]), "floating point"),
        (torch.rand(3, 4, device="meta"), torch.tensor([0, 1, 2]), "one device"),
    ],
)
def test_refuses_what_cannot_be_regularised(attributes, labels, message):
    with pytest.raises(ValueError, match=message):
        ZSRLoss(10, dim=4)(attributes, labels)


@pytest.mark.parametrize("options", [{"num_classes": 1}, {"dim": 0}, {"ridge": 0.0}, {"scale": -1.0}, {"repeats": 0}])
def test_refuses_wrong_options(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        ZSRLoss(**{"num_classes": 10, **options})
