"""The paper's losses against loops over pairs, in float64 (Supp. "Hyperparameters")."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gspool import losses

DIM, CLASSES = 6, 5


def unit_vectors(count: int, seed: int = 0) -> torch.Tensor:
    vectors = torch.randn(count, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(vectors)


LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 4, 4, 4])
VECTORS = unit_vectors(len(LABELS))


def pairs(labels: torch.Tensor):
    for i in range(len(labels)):
        for j in range(len(labels)):
            if i != j:
                yield i, j, bool(labels[i] == labels[j])


def mean_of_nonzero(values: list[float]) -> float:
    kept = [value for value in values if value > 0]
    return sum(kept) / len(kept) if kept else 0.0


def c1(x, labels, pos_margin=1.0, neg_margin=0.5):
    total = 0.0
    for i, j, same in pairs(labels):
        s = float(x[i] @ x[j])
        total += max(pos_margin - s, 0) if same else max(s - neg_margin, 0)
    return total / len(x)


def c2(x, labels, pos_margin, neg_margin):
    positive, negative = [], []
    for i, j, same in pairs(labels):
        d = np.sqrt(((x[i] - x[j]) ** 2).sum())
        if same:
            positive.append(max(d - pos_margin, 0))
        else:
            negative.append(max(neg_margin - d, 0))
    return mean_of_nonzero(positive) + mean_of_nonzero(negative)


def triplet(x, labels, margin):
    values = []
    for a, p, same in pairs(labels):
        for n in range(len(x)):
            if same and labels[n] != labels[a]:
                d_p, d_n = np.linalg.norm(x[a] - x[p]), np.linalg.norm(x[a] - x[n])
                values.append(max(d_p - d_n + margin, 0))
    return mean_of_nonzero(values)


def ms(x, labels, alpha, beta, base):
    total = 0.0
    for i in range(len(x)):
        positive = sum(np.exp(-alpha * (x[i] @ x[j] - base)) for k, j, same in pairs(labels) if k == i and same)
        negative = sum(np.exp(beta * (x[i] @ x[j] - base)) for k, j, same in pairs(labels) if k == i and not same)
        total += np.log1p(positive) / alpha + np.log1p(negative) / beta
    return total / len(x)


def pnca(x, labels, proxies, temperature):
    total = 0.0
    for vector, label in zip(x, labels, strict=True):
        weights = [np.exp(vector @ p / np.linalg.norm(p) / temperature) for p in proxies]
        total -= np.log(weights[label] / sum(weights))
    return total / len(x)


def panchor(x, labels, proxies, margin, alpha):
    positive = negative = 0.0
    for label, proxy in enumerate(proxies):
        s = x @ proxy / np.linalg.norm(proxy)
        own = np.asarray(labels) == label
        positive += np.log1p(np.exp(-alpha * (s[own] - margin)).sum()) if own.any() else 0.0
        negative += np.log1p(np.exp(alpha * (s[~own] + margin)).sum())
    return positive / len(set(np.asarray(labels).tolist())) + negative / len(proxies)


LOOPS = {"c1": c1, "c2": c2, "triplet": triplet, "ms": ms}


@pytest.mark.parametrize("preset", losses.PRESETS)
@pytest.mark.parametrize("name", LOOPS)
def test_pair_losses_equal_their_loops(name, preset):
    loss = losses.create(name, CLASSES, DIM, preset=preset)
    expected = LOOPS[name](VECTORS.numpy(), LABELS, **losses.PRESETS[preset][name])
    assert loss(VECTORS, LABELS).item() == pytest.approx(expected, rel=1e-9)


def proxies_of(loss: torch.nn.Module) -> np.ndarray:
    """Proxies row by row: ProxyNCA++ keeps them as columns."""
    return (loss.W.t() if hasattr(loss, "W") else loss.proxies).detach().numpy()


@pytest.mark.parametrize("preset", ["cub", "sop"])
def test_proxy_losses_equal_their_loops(preset):
    for name, loop in (("pnca", pnca), ("panchor", panchor)):
        loss = losses.create(name, CLASSES, DIM, preset=preset).double()
        expected = loop(VECTORS.numpy(), LABELS, proxies_of(loss), **losses.PRESETS[preset][name])
        assert loss(VECTORS, LABELS).item() == pytest.approx(expected, rel=1e-9), name


@pytest.mark.parametrize("name", ["c1", "c2", "triplet", "ms", "pnca", "panchor"])
def test_gradients_agree_with_finite_differences(name):
    loss = losses.create(name, CLASSES, DIM).double()
    vectors = VECTORS.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss(torch.nn.functional.normalize(x), LABELS), vectors)


@pytest.mark.parametrize("name", ["c2", "triplet"])
def test_equal_images_have_a_finite_gradient(name):
    vectors = VECTORS[[0, 0, 1, 1]].clone().requires_grad_()
    losses.create(name, CLASSES, DIM)(vectors, torch.tensor([0, 0, 1, 1])).backward()
    assert vectors.grad.isfinite().all()


def test_order_of_the_batch_does_not_matter():
    order = torch.randperm(len(LABELS), generator=torch.Generator().manual_seed(1))
    for name in ("c1", "c2", "triplet", "ms", "pnca", "panchor"):
        loss = losses.create(name, CLASSES, DIM).double()
        assert loss(VECTORS, LABELS).item() == pytest.approx(loss(VECTORS[order], LABELS[order]).item(), rel=1e-9)


def test_table_holds_the_paper_s_values():
    assert losses.PRESETS["cub"]["c2"] == {"pos_margin": 0.0, "neg_margin": 0.3841}
    assert losses.PRESETS["cars196"]["c2"] == {"pos_margin": 0.2652, "neg_margin": 0.5409}
    assert losses.PRESETS["inshop"]["ms"] == {"alpha": 8.49, "beta": 57.38, "base": 0.41}
    assert losses.PRESETS["sop"]["triplet"] == {"margin": 0.0451}
    memory = {name: table["xbm"]["memory_batches"] for name, table in losses.PRESETS.items() if name != "collage"}
    assert memory == {"cub": 25, "cars196": 25, "inshop": 400, "sop": 1_400}
    assert all(table["xbm"]["start"] == 1_000 for table in losses.PRESETS.values())
    assert all(table["pnca"] == {"temperature": 0.11} for table in losses.PRESETS.values())
