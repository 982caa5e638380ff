"""No NaN and no infinity, forward or backward, whatever finite input comes; but where a dtype has no room for it."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from functional.kernel_cases import float16_overflows_to_infinity, steep_in_float16
from gspool.functional import gsp_pool, partial_transport


@st.composite
def problems(draw):
    tokens, prototypes = draw(st.sampled_from([1, 2, 7, 33])), draw(st.sampled_from([1, 2, 9]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]))
    largest = 4 if dtype == torch.float16 else 10
    norms = 10.0 ** torch.randint(-20, largest + 1, (2, tokens, 1), generator=generator).double()
    x = torch.nn.functional.normalize(torch.randn(2, tokens, 6, generator=generator).double(), dim=-1) * norms
    w = torch.randn(prototypes, 6, generator=generator).double()
    kind = draw(st.sampled_from(["as is", "zeros", "duplicates", "tokens are prototypes", "zero prototypes"]))
    if kind == "zeros":
        x = torch.zeros_like(x)
    elif kind == "duplicates":
        x, w = x[:, :1].expand_as(x).clone(), w[:1].expand_as(w).clone()
    elif kind == "tokens are prototypes":
        x = w[torch.randint(prototypes, (2, tokens), generator=generator)]
    elif kind == "zero prototypes":
        w = torch.zeros_like(w)
    return x.to(dtype), w.to(dtype)


@settings(max_examples=200, deadline=None)
@given(
    problem=problems(),
    mu=st.sampled_from([1e-3, 0.3, 0.5, 0.999, 1.0]),
    epsilon=st.sampled_from([0.0, 0.5, 20.0, 1e3, 1e4]),
)
@example(problem=steep_in_float16(), mu=1e-3, epsilon=1e3)
def test_pooling_stays_finite(problem, mu, epsilon):
    out, gradients = pooled_and_gradients(*problem, mu, epsilon)
    for tensor in (*out, *gradients[2:]):
        assert torch.isfinite(tensor).all()
    _, wide = pooled_and_gradients(*(tensor.detach().double() for tensor in problem), mu, epsilon)
    for narrow, true in zip(gradients[:2], wide[:2], strict=True):
        # Half of the last step of float16 below its end: from there on a number is rounded to infinity.
        room = true.abs() < 0.99 * torch.finfo(narrow.dtype).max
        assert torch.isfinite(narrow[room]).all()
        assert not narrow.isnan().any()


def pooled_and_gradients(x, w, mu, epsilon):
    x, w = (tensor.requires_grad_() for tensor in (x, w))
    mu = torch.full((2,), mu, dtype=torch.float64, requires_grad=True)
    epsilon = torch.tensor(epsilon, dtype=torch.float64, requires_grad=True)
    out = gsp_pool(x, w, mu, epsilon)
    (out.pooled.double().sum() + out.weights.square().sum() + out.attributes.square().sum()).backward()
    return out, (x.grad, w.grad, mu.grad, epsilon.grad)


def test_float16_overflows_to_infinity():
    float16_overflows_to_infinity("torch")


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 1000),
    size=st.sampled_from([1e-20, 1.0, 1e4]),
    mu=st.sampled_from([1e-3, 0.5, 0.999, 1.0]),
    epsilon=st.sampled_from([0.0, 5.0, 1e4]),
)
def test_transport_stays_finite(seed, size, mu, epsilon):
    cost = size * torch.rand(2, 3, 7, generator=torch.Generator().manual_seed(seed))
    cost.requires_grad_()
    mu = torch.tensor(mu, requires_grad=True)
    result = partial_transport(cost, mu, epsilon)
    (result.residual.square().sum() + result.plan.square().sum()).backward()
    for tensor in (*result, cost.grad, mu.grad):
        assert torch.isfinite(tensor).all()


def test_k_center_leaves_no_gradient_of_rounding_noise():
    # Clipped twice, a token and the prototype made from it differ in the last digit; that difference is no direction.
    x = 20 * torch.randn(1, 8, 32, generator=torch.Generator().manual_seed(0))
    w = torch.nn.functional.normalize(x[0, :1], dim=-1)
    leaf = x.clone().requires_grad_()
    gsp_pool(leaf, w, 0.3, 5.0).weights[0, 0].backward()
    assert (leaf.grad[0, 0] == 0).all()
    assert (leaf.grad[0, 1:] != 0).any()


@pytest.mark.parametrize("epsilon", [5.0, 1e4])
def test_an_image_without_tokens_pools_to_zero_where_it_cannot_be_refused(epsilon, monkeypatch):
    # On a GPU nobody looks at the mask; here the looking is switched off.
    monkeypatch.setattr("gspool.functional.checks.values_can_be_read", lambda *tensors: False)
    x = torch.randn(2, 5, 3, requires_grad=True)
    w = torch.randn(2, 3, requires_grad=True)
    mask = torch.tensor([[True] * 5, [False] * 5])
    out = gsp_pool(x, w, 0.3, epsilon, mask)
    out.pooled.sum().backward()
    assert (out.pooled[1] == 0).all()
    assert torch.isfinite(x.grad).all()
    assert torch.isfinite(w.grad).all()
