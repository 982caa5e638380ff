"""Laws and gradients of gsp_pool, whose plain twin is distance, then partial_transport, then a weighted sum."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from gspool.functional import distance, gsp_pool, partial_transport, pool
from gspool.functional.product_distance import product_distance
from oracle import TOLERANCE, random_problem


def plain(tokens, prototypes, mu, epsilon, mask=None, background=False):
    residual, plan = partial_transport(distance(prototypes, tokens), mu, epsilon, mask)
    mass, left = plan.sum(-2), residual
    weights = left / left.sum(-1, keepdim=True) if background else mass / mass.sum(-1, keepdim=True)
    attributes = plan.sum(-1) / plan.sum((-1, -2))[..., None]
    return (weights[..., None] * tokens).sum(-2), weights, attributes


def leaves(*tensors):
    return [tensor.clone().requires_grad_() for tensor in tensors]


def scalar(outputs, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return sum((o * torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.dtype)).sum() for o in outputs)


@pytest.mark.parametrize("role", ["foreground", "background"])
@pytest.mark.parametrize(("tokens", "prototypes"), [(1, 1), (7, 1), (63, 65), (49, 8)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("room", [0, pool.KEPT_ON_CPU])
def test_values_and_gradients_equal_the_plain_twin(tokens, prototypes, dtype, role, room, monkeypatch):
    monkeypatch.setattr(pool, "KEPT_ON_CPU", room)
    x, w = random_problem(3, tokens, prototypes, dim=10, dtype=dtype, spread=0.6)
    mu = torch.tensor([0.2, 0.5, 0.8], dtype=dtype)
    epsilon = torch.tensor(5.0, dtype=dtype)
    ours, twin = leaves(x, w, mu, epsilon), leaves(x, w, mu, epsilon)
    out, expected = gsp_pool(*ours, role=role), plain(*twin, background=role == "background")
    for a, b in zip(out, expected, strict=True):
        torch.testing.assert_close(a, b, **TOLERANCE[dtype])
    scalar(out).backward()
    scalar(expected).backward()
    for a, b in zip(ours, twin, strict=True):
        torch.testing.assert_close(a.grad, b.grad, **TOLERANCE[dtype])


@pytest.mark.parametrize("role", ["foreground", "background"])
@pytest.mark.parametrize("masked", [False, True])
def test_gradcheck(masked, role):
    x, w = random_problem(3, 5, 4, dim=3, spread=0.7)
    mu = torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)
    inputs = leaves(x, w, mu, torch.tensor(4.0, dtype=torch.float64))
    mask = torch.arange(5) < torch.tensor([[5], [3], [2]]) if masked else None
    assert torch.autograd.gradcheck(lambda *i: tuple(gsp_pool(*i, mask=mask, role=role)), inputs)


@pytest.mark.parametrize("needed", ["tokens", "prototypes"])
@pytest.mark.parametrize(
    "function", [lambda x, w: gsp_pool(x, w, 0.3, 5.0).pooled, lambda x, w: product_distance(w, x)]
)
def test_only_gradients_that_are_needed_are_computed(function, needed):
    inputs = dict(zip(("tokens", "prototypes"), leaves(*random_problem(3, 12, 7, dim=10)), strict=True))

    def gradient_and_work(wanted: list[str]) -> tuple[torch.Tensor, int]:
        for name, leaf in inputs.items():
            leaf.requires_grad_(name in wanted).grad = None
        out = function(*inputs.values())
        with FlopCounterMode(display=False) as counter:
            out.sin().sum().backward()
        return inputs[needed].grad, counter.get_total_flops()

    expected, all_work = gradient_and_work(["tokens", "prototypes"])
    found, work = gradient_and_work([needed])
    torch.testing.assert_close(found, expected)
    # Each of both gradients takes one product of this size.
    assert all_work - work >= 2 * 3 * 12 * 7 * 10


@pytest.mark.parametrize(("mu", "epsilon"), [(1, 50.0), (0.3, 0)])
def test_mu_one_and_epsilon_zero_are_average_pooling(mu, epsilon):
    x, w = random_problem(2, 6, 3, dim=4)
    ours, average = leaves(x, x)
    pooled = gsp_pool(ours, w, mu, epsilon).pooled
    torch.testing.assert_close(pooled, average.mean(1))
    pooled.square().sum().backward()
    average.mean(1).square().sum().backward()
    torch.testing.assert_close(ours.grad, average.grad)


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), mu=st.floats(0.02, 1.0), epsilon=st.floats(0.0, 100.0))
def test_weights_and_attributes_sum_to_one(seed, mu, epsilon):
    x, w = random_problem(2, 7, 5, dim=4, seed=seed, dtype=torch.float32)
    out = gsp_pool(x, w, mu, epsilon)
    torch.testing.assert_close(out.weights.sum(-1), torch.ones(2))
    torch.testing.assert_close(out.attributes.sum(-1), torch.ones(2))
    assert (out.weights <= 1 / (7 * mu) * (1 + 1e-5)).all()


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000))
def test_order_of_tokens_does_not_matter(seed):
    x, w = random_problem(2, 9, 5, dim=4, seed=seed)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
    there, here = gsp_pool(x[:, order], w, 0.3, 5.0), gsp_pool(x, w, 0.3, 5.0)
    torch.testing.assert_close(there.pooled, here.pooled)
    torch.testing.assert_close(there.weights, here.weights[:, order])


def test_foreground_and_background_share_the_average():
    x, w = random_problem(2, 9, 5, dim=4)
    front, back = gsp_pool(x, w, 0.3, 5.0), gsp_pool(x, w, 0.3, 5.0, role="background")
    torch.testing.assert_close(0.3 * front.pooled + 0.7 * back.pooled, x.mean(1))


def test_a_mask_equals_cropping_whatever_the_padding_holds():
    x, w = random_problem(3, 9, 5, dim=4)
    valid = [9, 4, 1]
    mask = torch.arange(9) < torch.tensor(valid)[:, None]
    padded = torch.where(mask[..., None], x, torch.nan).requires_grad_()
    out = gsp_pool(padded, w, 0.3, 5.0, mask)
    out.pooled.square().sum().backward()
    for i, n in enumerate(valid):
        alone = gsp_pool(x[i : i + 1, :n], w, 0.3, 5.0)
        torch.testing.assert_close(out.pooled[i : i + 1], alone.pooled)
        torch.testing.assert_close(out.weights[i : i + 1, :n], alone.weights)
    assert (padded.grad[~mask] == 0).all()


@pytest.mark.parametrize("room", [0, 2 * 4 * 2 * 40 * 30])
def test_nothing_of_size_bmn_is_kept_for_the_backward_pass_but_on_the_cpu_what_has_room(room, monkeypatch):
    monkeypatch.setattr(pool, "KEPT_ON_CPU", room)
    x, w = leaves(*random_problem(2, 40, 30, dim=4, dtype=torch.float32))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        gsp_pool(x, w, 0.3, 5.0)
    assert max(kept) == (2 * 40 * 30 if room else x.numel())


def test_a_view_of_a_feature_map_gives_the_same():
    x, w = random_problem(2, 12, 5, dim=4)
    maps = x.transpose(1, 2).reshape(2, 4, 3, 4).contiguous().requires_grad_()
    (tokens,) = leaves(x)
    for leaf, seen in ((maps, maps.flatten(2).transpose(1, 2)), (tokens, tokens)):
        gsp_pool(seen, w, 0.3, 5.0).pooled.square().sum().backward()
        assert leaf.grad is not None
    torch.testing.assert_close(maps.grad.flatten(2).transpose(1, 2), tokens.grad)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_in_and_out_float32_inside(dtype):
    x, w = random_problem(2, 12, 5, dim=4)
    out = gsp_pool(x.to(dtype), w.to(dtype), 0.3, 5.0)
    exact = gsp_pool(x.to(dtype).float(), w.to(dtype).float(), 0.3, 5.0)
    assert out.pooled.dtype == dtype
    torch.testing.assert_close(out.weights, exact.weights)
    torch.testing.assert_close(out.pooled, exact.pooled.to(dtype))


def test_autocast_does_not_blur_the_weights():
    x, w = random_problem(2, 12, 5, dim=4, dtype=torch.float32)
    inside, outside = leaves(x, x)
    with torch.autocast("cpu", torch.bfloat16):
        out = gsp_pool(inside, w, 0.3, 50.0)
        out.pooled.square().sum().backward()
    expected = gsp_pool(outside, w, 0.3, 50.0)
    expected.pooled.square().sum().backward()
    assert torch.equal(out.weights, expected.weights)
    torch.testing.assert_close(inside.grad, outside.grad)
