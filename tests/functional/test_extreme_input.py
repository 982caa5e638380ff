"""Values and gradients at the ends of what a dtype can hold: equal to an independent float64 computation, or finite."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from functional.kernel_cases import float16_overflows_to_infinity
from gspool.functional import clip_norm, distance, gsp_pool, partial_transport
from gspool.functional.kernels.dispatch import kernel_scalars
from oracle import WEIGHT_ERROR, differentiable_pooled, pooled, random_problem, relative_weight_error

NAMES = ("tokens", "prototypes", "mu", "epsilon")
# Of gradients, as a part of what a token or prototype can receive: near one, products leave the root of float32.
GRADIENT_ERROR = {torch.float32: 1e-3, torch.float64: 1e-7, torch.bfloat16: 1e-2, torch.float16: 2e-3}
# Shorter offsets than this have squares that underflow, and no direction.
SHORTEST = {torch.float64: 2e-152}


def largest(tokens):
    """The largest number of the tokens, or what their dtype can divide by; padding is NaN."""
    return float(tokens.double().nan_to_num(0).abs().amax().clamp_min(1e-4 if tokens.dtype == torch.float16 else 1e-25))


def compared(tokens, prototypes, mu, epsilon, mask=None, role="foreground", outputs="pwa"):
    """Outputs and gradients, ours and the oracle's, of a random functional that sees tokens of any size alike."""
    real = torch.ones(tokens.shape[:2], dtype=torch.bool) if mask is None else mask
    clean = tokens.double().masked_fill(~real[..., None], 0)
    unit = largest(tokens)
    found = []
    for exact in (False, True):
        x = (clean if exact else tokens).clone().requires_grad_()
        w = (prototypes.double() if exact else prototypes).clone().requires_grad_()
        share = torch.full((tokens.shape[0],), mu, dtype=torch.float64, requires_grad=True)
        sharpness = torch.tensor(epsilon, dtype=torch.float64, requires_grad=True)
        if exact:
            out = differentiable_pooled(x, w, share, sharpness, real, role == "background")
        else:
            out = gsp_pool(x, w, share, sharpness, mask, role=role)
        generator, loss = torch.Generator().manual_seed(1), 0.0
        for name, value in zip("pwa", out, strict=True):
            direction = torch.randn(value.shape, generator=generator, dtype=torch.float64)
            if name in outputs:
                loss = loss + (value.double() * direction).sum() / (unit if name == "p" else 1.0)
        loss.backward()
        found.append(([value.detach() for value in out], [leaf.grad for leaf in (x, w, share, sharpness)]))
    return found


def agrees(tokens, prototypes, mu, epsilon, **options):
    (out, gradients), (expected, true) = compared(tokens, prototypes, mu, epsilon, **options)
    for value in (*out, *gradients):
        assert value.isfinite().all()
    digits = torch.float64 if tokens.dtype == torch.float64 else torch.float32
    # Hostile problems pile up roundings that random ones do not.
    allowed = 50 * WEIGHT_ERROR[digits] * max(1, epsilon / 10)
    assert relative_weight_error(out[1], expected[1]) <= allowed
    assert relative_weight_error(out[2], expected[2]) <= allowed
    bound = GRADIENT_ERROR[tokens.dtype] * max(1, epsilon / 100)
    for name, ours, theirs, vectors in zip(NAMES[:2], gradients, true, (tokens, prototypes), strict=False):
        clipped = 1 / vectors.double().nan_to_num(0).norm(dim=-1, keepdim=True).clamp_min(1)
        # What a vector of that length can receive, or the largest gradient of all where that is more.
        scale = torch.maximum(clipped.clamp_min(1e-18) * max(1.0, epsilon), theirs.abs().amax())
        assert float(((ours.double() - theirs).abs() / scale).max()) <= bound, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [1e18, 1e20, 1e30, 5e36])
@pytest.mark.parametrize("masked", [False, True])
def test_long_vectors(length, dtype, masked):
    mask = torch.tensor([[True] * 7, [True, False] * 3 + [True]]) if masked else None
    x, w = random_problem(2, 7, 4, dim=6, spread=1.0)
    for tokens, prototypes in ((length * x, w), (x, length * w), (length * x, length * w)):
        tokens, prototypes = tokens.to(dtype), prototypes.to(dtype)
        agrees(tokens, prototypes, 0.3, 5.0, mask=mask)
        assert (
            relative_weight_error(
                gsp_pool(tokens, prototypes, 0.3, 5.0).weights, pooled(tokens, prototypes, 0.3, 5.0)[1]
            )
            <= WEIGHT_ERROR[torch.float32]
        )


def test_long_vectors_are_clipped_in_every_mode():
    x, w = random_problem(2, 7, 4, dim=6, dtype=torch.float32)
    long = 1e25 * x
    expected = gsp_pool(long, w, 0.3, 5.0).weights
    compiled = torch.compile(lambda t: gsp_pool(t, w, 0.3, 5.0).weights, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(long), expected)
    torch.testing.assert_close(torch.func.vmap(lambda t: gsp_pool(t[None], w, 0.3, 5.0).weights[0])(long), expected)
    torch.testing.assert_close(clip_norm(1e200 * x.double()), clip_norm(1e20 * x.double()))
    assert distance(w, long).isfinite().all()


def test_vectors_longer_than_the_dtype_can_divide_by_are_refused():
    x, w = torch.full((1, 3, 4), 3e38), torch.ones(2, 4)
    with pytest.raises(ValueError, match="longer than 4e\\+37"):
        gsp_pool(x, w, 0.3, 5.0)
    with pytest.raises(ValueError, match="longer than 4e\\+37"):
        gsp_pool(torch.ones(1, 3, 4), 3e38 * w, 0.3, 5.0)


@pytest.mark.parametrize("scale", [0.3, 0.1, 0.01, 1e-4, 1e-10])
def test_ties_are_relative_to_the_lengths(scale):
    """The problem of unit length, made smaller with an epsilon made larger, is the same problem."""
    for seed in range(20):
        x, w = random_problem(2, 9, 4, dim=2, seed=seed)
        x, w = (scale * torch.nn.functional.normalize(t, dim=-1).float() for t in (x, w))
        w = w.repeat(2, 1)
        epsilon = min(100.0, 10 / scale)
        expected = pooled(x, w, 0.3, epsilon)[1]
        assert relative_weight_error(gsp_pool(x, w, 0.3, epsilon).weights, expected) <= 2e-6 * max(1, epsilon / 10)
        agrees(x, w, 0.3, epsilon)


@pytest.mark.parametrize("mu", [1e-30, 1e-10, 1e-4])
@pytest.mark.parametrize("role", ["foreground", "background"])
def test_a_small_mu(mu, role):
    agrees(*random_problem(2, 9, 4, dim=5, dtype=torch.float32), mu, 5.0, role=role)


def test_values_beyond_what_can_be_computed_are_refused():
    x, w, cost = torch.rand(1, 4, 3), torch.rand(2, 3), torch.rand(1, 2, 4)
    for mu in (1e-300, torch.tensor([1e-300], dtype=torch.float64)):
        with pytest.raises(ValueError, match="at least 1e-30"):
            gsp_pool(x, w, mu, 5.0)
        with pytest.raises(ValueError, match="at least 1e-30"):
            kernel_scalars(mu, 5.0, (1,), x.device)
    for epsilon in (1e300, 2e6, torch.tensor(1e300, dtype=torch.float64)):
        with pytest.raises(ValueError, match=r"at most 1e\+06.*hard_selection"):
            gsp_pool(x, w, 0.3, epsilon)
        with pytest.raises(ValueError, match=r"at most 1e\+06.*hard_selection"):
            kernel_scalars(0.3, epsilon, (1,), x.device)
    with pytest.raises(ValueError, match=r"at most 1e\+30"):
        partial_transport(cost, 0.3, 1e300)


@pytest.mark.parametrize("epsilon", [1e6, 1e30])
def test_mu_one_is_average_pooling_however_sharp(epsilon):
    plan = partial_transport(torch.rand(2, 3, 7), 1.0, epsilon).plan
    torch.testing.assert_close(plan.sum(-2), torch.full((2, 7), 1 / 7))


def test_an_empty_batch_stays_empty():
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x, w = torch.zeros(0, 4, 3, dtype=dtype, requires_grad=True), torch.ones(2, 3, requires_grad=True)
        out = gsp_pool(x, w, 0.3, 5.0, torch.ones(0, 4, dtype=torch.bool))
        assert [tuple(value.shape) for value in out] == [(0, 3), (0, 4), (0, 2)]
        (out.pooled.sum() + out.weights.sum()).backward()
        assert x.grad.shape == x.shape
        assert (w.grad == 0).all()
    assert partial_transport(torch.zeros(0, 2, 4), 0.3, 5.0).plan.shape == (0, 2, 4)


@st.composite
def hostile(draw):
    """Problems of any size and scale, with duplicates, zeros, padding, and tokens on or near prototypes."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    dtype = draw(st.sampled_from([torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16]))
    images, tokens = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2, 7, 33]))
    prototypes, dim = draw(st.sampled_from([1, 2, 9, 17])), draw(st.sampled_from([1, 2, 5, 24]))
    normal = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    x = _scaled(draw, normal(images, tokens, dim), generator, dtype)
    w = _scaled(draw, normal(prototypes, dim), generator, dtype)
    kind = draw(st.sampled_from(["as is", "twin prototypes", "twin tokens", "on", "near", "zeros", "zero prototypes"]))
    chosen = torch.randint(prototypes, (images, tokens), generator=generator)
    if kind == "twin prototypes":
        w = w[torch.randint(max(1, prototypes // 2), (prototypes,), generator=generator)]
    elif kind == "twin tokens":
        x = x[:, torch.randint(max(1, tokens // 2), (tokens,), generator=generator)]
    elif kind == "on":
        x = w[chosen]
    elif kind == "near":
        x = w[chosen] * (1 + 10.0 ** draw(st.sampled_from([-2, -4])) * normal(images, tokens, dim))
    elif kind == "zeros":
        x = torch.where(torch.rand(images, tokens, 1, generator=generator) < 0.5, 0, x)
    elif kind == "zero prototypes":
        w = torch.where(torch.rand(prototypes, 1, generator=generator) < 0.5, 0, w)
    mask = None
    if draw(st.booleans()):
        mask = torch.rand(images, tokens, generator=generator) < 0.6
        mask[:, 0] = True
        x = x.masked_fill(~mask[..., None], torch.nan)
    return x.to(dtype), w.to(dtype), mask


def _scaled(draw, vectors, generator, dtype):
    top = 4 if dtype == torch.float16 else 30
    kind = draw(st.sampled_from(["unit", "tenth", "all", "each"]))
    if kind in ("unit", "tenth"):
        return vectors * (1.0 if kind == "unit" else 0.1) / vectors.shape[-1] ** 0.5
    size = (1,) if kind == "all" else (*vectors.shape[:-1], 1)
    return vectors * 10.0 ** torch.randint(-30, top + 1, size, generator=generator).double()


def is_resolved(tokens, prototypes, mask):
    """Leave out what products cannot resolve, and lengths of 1, where clipping has a kink.

    Unresolved are offsets whose squares underflow or that are mere rounding, and a second prototype close to a token.
    """
    short = SHORTEST.get(tokens.dtype, 1.5e-17)
    tokens = tokens.double() if mask is None else tokens.double().masked_fill(~mask[..., None], 0)
    prototypes = prototypes.double()
    x, w = clip_norm(tokens), clip_norm(prototypes)
    apart = (w[:, None, :] - x[:, None]).norm(dim=-1)
    lengths = torch.maximum(x.norm(dim=-1)[:, None, :], w.norm(dim=-1)[:, None])
    rounding = (apart > 0) & (apart <= (20 * torch.finfo(torch.float32).eps * lengths).clamp_min(short))
    crowded = (apart < 0.1 * lengths).sum(1) > 1
    at_kink = [((t.norm(dim=-1) - 1).abs() < 1e-6).any() for t in (tokens, prototypes)]
    return not bool(rounding.any() | crowded.any() | at_kink[0] | at_kink[1])


@settings(max_examples=150)
@given(
    problem=hostile(),
    mu=st.sampled_from([1e-30, 1e-3, 0.1, 0.3, 0.7, 0.97, 0.999]),
    epsilon=st.sampled_from([0.0, 0.5, 5.0, 20.0, 100.0, 1e3]),
    role=st.sampled_from(["foreground", "background"]),
    outputs=st.sampled_from(["p", "w", "a", "pwa"]),
)
def test_hostile_problems_equal_the_oracle(problem, mu, epsilon, role, outputs):
    tokens, prototypes, mask = problem
    if is_resolved(*problem):
        agrees(tokens, prototypes, mu, epsilon, mask=mask, role=role, outputs=outputs)
    else:
        (out, gradients), _ = compared(tokens, prototypes, mu, epsilon, mask, role, outputs)
        assert all(value.isfinite().all() for value in (*out, *gradients))
        torch.testing.assert_close(out[1].sum(-1), torch.ones_like(out[1][:, 0]))


@settings(max_examples=200)
@given(
    problem=hostile(),
    mu=st.sampled_from([1e-3, 0.3, 0.5, 0.999, 1.0]),
    epsilon=st.sampled_from([0.0, 0.5, 20.0, 1e3, 1e4]),
)
def test_pooling_stays_finite(problem, mu, epsilon):
    tokens, prototypes, mask = problem
    out, gradients = pooled_and_gradients(tokens, prototypes, mask, mu, epsilon)
    for tensor in (*out, *gradients[2:]):
        assert torch.isfinite(tensor).all()
    _, wide = pooled_and_gradients(tokens, prototypes, mask, mu, epsilon, torch.float64)
    for narrow, true in zip(gradients[:2], wide[:2], strict=True):
        # Half of the last step of float16 below its end: from there on a number is rounded to infinity.
        room = true.abs() < 0.99 * torch.finfo(narrow.dtype).max
        assert torch.isfinite(narrow[room]).all()
        assert not narrow.isnan().any()


def pooled_and_gradients(tokens, prototypes, mask, mu, epsilon, dtype=None):
    x, w = (tensor.to(dtype or tensor.dtype, copy=True).requires_grad_() for tensor in (tokens, prototypes))
    mu = torch.full((len(x),), mu, dtype=torch.float64, requires_grad=True)
    epsilon = torch.tensor(epsilon, dtype=torch.float64, requires_grad=True)
    out = gsp_pool(x, w, mu, epsilon, mask)
    (
        out.pooled.double().sum() / largest(tokens) + out.weights.square().sum() + out.attributes.square().sum()
    ).backward()
    return out, (x.grad, w.grad, mu.grad, epsilon.grad)


def test_float16_overflows_to_infinity():
    float16_overflows_to_infinity("torch")


@settings(max_examples=100)
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
