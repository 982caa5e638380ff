"""Laws that the kernels obey on any device: run by Triton's interpreter in test_kernels.py, on a GPU by -m gpu."""

import torch
from torch.testing import assert_close

from gspool.functional import gsp_pool, partial_transport
from gspool.functional.kernels import distance_map, launch
from gspool.functional.kernels.plan import SLICE
from gspool.functional.product_distance import product_distance
from oracle import WEIGHT_ERROR, pooled, random_problem, relative_weight_error, subtracted_distance

# Largest error as a part of the largest value: of outputs, of gradients.
ERROR = {
    torch.float32: {"pooled": 3e-6, "weights": 3e-6, "gradient": 3e-5},
    torch.float16: {"pooled": 1e-3, "weights": 5e-6, "gradient": 3e-3},
    torch.bfloat16: {"pooled": 8e-3, "weights": 2e-5, "gradient": 2e-2},
}
NAMES = ("tokens", "prototypes", "mu", "epsilon")


def slices_fit(shape, strides, dtype, prototypes, exact, roomy):
    """Stand in for the rule by which gradients are formed slice by slice: wherever they can be."""
    return dtype != torch.float16 and prototypes <= min(SLICE, shape[2]) and roomy


def forget_plans():
    """Let the next calls be planned anew."""
    for each in (launch, distance_map):
        each.plan_forward.cache_clear()
        each.plan_backward.cache_clear()


def problem(batch, tokens, prototypes, dim, device="cpu", seed=0):
    features, centres = random_problem(batch, tokens, prototypes, dim, torch.float32, seed)
    return (features * dim**-0.5).to(device), (centres * dim**-0.5).to(device)


def differentiated(tokens, prototypes, mu, epsilon, backend, mask=None, role="foreground", outputs="pwa", dtype=None):
    """Outputs and the four gradients of a random linear functional of the chosen outputs."""
    dtype = tokens.dtype if dtype is None else dtype
    generator = torch.Generator().manual_seed(7)
    tokens = tokens.detach().to(dtype).requires_grad_()
    prototypes = prototypes.detach().to(torch.promote_types(prototypes.dtype, dtype)).requires_grad_()
    mu = torch.full((tokens.shape[0],), mu, dtype=torch.float64, device=tokens.device).requires_grad_()
    scalar = torch.float64 if dtype == torch.float64 else torch.float32
    epsilon = torch.tensor(epsilon, dtype=scalar, device=tokens.device).requires_grad_()
    out = gsp_pool(tokens, prototypes, mu, epsilon, mask, backend=backend, role=role)
    loss = 0.0
    for name, value in zip("pwa", out, strict=True):
        direction = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(tokens.device)
        if name in outputs:
            loss = loss + (value.double() * direction).sum()
    loss.backward()
    return out, (tokens.grad, prototypes.grad, mu.grad, epsilon.grad)


def close(ours, theirs, error, what):
    ours, theirs = ours.detach(), theirs.detach()
    assert ours.isfinite().all(), what
    largest = theirs.double().abs().max().clamp_min(1e-3)
    assert float((ours.double() - theirs.double()).abs().max() / largest) <= error, what


def agrees(tokens, prototypes, mu=0.3, epsilon=5.0, dtype=torch.float32, slack=1.0, names=NAMES, **options):
    """Compare with the plain version in float64, given the very numbers that the kernels were given."""
    tokens = tokens.to(dtype)
    out, gradients = differentiated(tokens, prototypes, mu, epsilon, "triton", **options)
    truth, expected = differentiated(tokens, prototypes, mu, epsilon, "torch", dtype=torch.float64, **options)
    error = ERROR[dtype]
    close(out.pooled, truth.pooled, error["pooled"] * slack, "pooled")
    close(out.weights, truth.weights, error["weights"] * slack, "weights")
    close(out.attributes, truth.attributes, error["weights"] * slack, "attributes")
    for name, ours, theirs in zip(NAMES, gradients, expected, strict=True):
        # A sum of many cancelling terms: mu and epsilon lose two digits more than the tensors do.
        wider = 30 if name in ("mu", "epsilon") else 1
        if name in names:
            close(ours, theirs, error["gradient"] * slack * wider, name)


def weights_are_exact(batch, tokens, prototypes, dim, mu, epsilon, device="cpu"):
    features, centres = problem(batch, tokens, prototypes, dim, device)
    out = gsp_pool(features, centres, mu, epsilon, backend="triton")
    truth = pooled(features.cpu(), centres.cpu(), mu, epsilon)
    error = relative_weight_error(out.weights.cpu(), truth[1])
    assert error <= WEIGHT_ERROR[torch.float32] * max(1, epsilon / 10)
    close(out.pooled.cpu(), truth[0], 3e-6 * max(1, epsilon / 10), "pooled")
    close(out.attributes.cpu(), truth[2], 3e-6 * max(1, epsilon / 10), "attributes")


def steep_in_float16():
    """Float16 tokens and prototypes whose gradient, with mu 0.001 and epsilon 1000, goes beyond 65,504."""
    tokens = [
        [[0.0] * 6, [-2.3842e-07, -4.7684e-07, 2.3842e-07, -9.2983e-06, 3.0994e-06, -1.8477e-06]],
        [[549.5, -623.0, -498.0, 194.0, 61.156, -144.12], [5948.0, -5396.0, 4516.0, -3446.0, 1680.0, 662.0]],
    ]
    return torch.tensor(tokens, dtype=torch.float16), torch.zeros(1, 6, dtype=torch.float16)


def float16_overflows_to_infinity(backend, device="cpu"):
    """What float16 cannot hold is an infinity of its sign, for which loss scaling looks; the rest is what it is."""
    tokens, prototypes = (tensor.to(device) for tensor in steep_in_float16())
    _, (_, narrow, *_) = differentiated(tokens, prototypes, 1e-3, 1e3, backend)
    _, (_, wide, *_) = differentiated(tokens, prototypes, 1e-3, 1e3, "torch", dtype=torch.float64)
    beyond = wide.abs() > 1.01 * 65504
    assert beyond.any()
    assert not beyond.all()
    assert torch.equal(narrow[beyond].double(), wide[beyond].sign() * torch.inf)
    close(narrow[~beyond], wide[~beyond], ERROR[torch.float16]["gradient"], "prototypes")


def tokens_on_prototypes_are_exact(device="cpu"):
    """As k-center initialisation leaves them: some tokens on a prototype, one a hair away, prototypes twice."""
    features, centres = problem(2, 9, 6, 12, device)
    centres[:4] = features[0, :4]
    centres[1] += 1e-3 * torch.randn(12, generator=torch.Generator().manual_seed(1)).to(device)
    centres[5] = centres[4]
    agrees(features, centres, slack=3.0)
    lone = gsp_pool(features.requires_grad_(), features.detach()[0, :1], 0.3, 5.0, backend="triton")
    lone.weights[0, 0].backward()
    assert features.grad[0, 0].eq(0).all()


def long_vectors_agree(device="cpu"):
    """Squares of float32 numbers above 1e19 are infinite; clipped, such vectors are as good as any."""
    for size, length in (((2, 9, 6, 12), 1e20), ((1, 70, 6, 12), 1e30)):
        features, centres = problem(*size, device)
        agrees(features * length, centres)
        agrees(features, centres * length)
        agrees(features * length, centres * length, dtype=torch.bfloat16, slack=2.0)


def ties_are_relative_to_the_lengths(device="cpu"):
    """Short tokens and prototypes, these twice: the problem of unit length with another epsilon."""
    for scale, epsilon in ((0.1, 100.0), (1e-3, 100.0), (1e-6, 1e4)):
        features, centres = (torch.nn.functional.normalize(t, dim=-1) for t in problem(2, 9, 4, 2, device))
        features, centres = scale * features, scale * torch.cat((centres, centres))
        truth = pooled(features.cpu(), centres.cpu(), 0.3, epsilon)
        weights = gsp_pool(features, centres, 0.3, epsilon, backend="triton").weights
        assert relative_weight_error(weights.cpu(), truth[1]) <= WEIGHT_ERROR[torch.float32] * epsilon / 10
        agrees(features, centres, epsilon=epsilon, slack=max(3.0, scale * epsilon))


def small_mu_agrees(device="cpu"):
    """Gradients divide by mu, and must not overflow where it is small."""
    for tokens, mu in ((9, 1e-30), (140, 1e-10)):
        features, centres = problem(1, tokens, 5, 9, device)
        agrees(features, centres, mu=mu, outputs="p", names=("tokens", "prototypes", "epsilon"))
        agrees(features, centres, mu=mu, role="background", outputs="p")
        agrees(features * 1e25, centres, mu=1e-10, outputs="p", names=("tokens", "prototypes", "epsilon"))


def channels_first_needs_no_copy(device="cpu"):
    features, centres = problem(2, 21, 5, 40, device)
    maps = features.transpose(1, 2).contiguous()
    seen, copied = maps.transpose(1, 2).requires_grad_(), features.clone().requires_grad_()
    for tokens in (seen, copied):
        gsp_pool(tokens, centres, 0.4, 8.0, backend="triton").pooled.square().sum().backward()
    assert seen.grad.stride() == seen.stride()
    assert_close(seen.grad, copied.grad, rtol=1e-5, atol=1e-7)
    every_second = torch.cat((features, features + 9), dim=2).view(2, 42, 40)[:, ::2]
    # Other strides are another kernel to a compiler, which may order a sum in another way.
    assert_close(
        gsp_pool(every_second, centres, 0.4, 8.0, backend="triton").weights,
        gsp_pool(every_second.contiguous(), centres, 0.4, 8.0, backend="triton").weights,
        rtol=3e-6,
        atol=1e-8,
    )


def padding_is_never_looked_at(device="cpu"):
    features, centres = problem(2, 13, 5, 20, device)
    mask = torch.ones(2, 13, dtype=torch.bool, device=device)
    mask[0, 5:] = False
    mask[1, ::2] = False
    agrees(features, centres, mask=mask)
    poisoned = features.masked_fill(~mask[..., None], float("nan")).requires_grad_()
    out = gsp_pool(poisoned, centres, 0.3, 5.0, mask, backend="triton")
    (out.pooled.sum() + out.weights.square().sum()).backward()
    assert out.weights[~mask].eq(0).all()
    assert poisoned.grad[~mask].eq(0).all()
    assert poisoned.grad.isfinite().all()
    alone = gsp_pool(features[:1, :5], centres, 0.3, 5.0, backend="triton")
    assert_close(out.pooled[:1], alone.pooled, rtol=1e-5, atol=1e-7)


def deterministic_runs_repeat(device="cpu"):
    features, centres = problem(2, 70, 9, 33, device)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        runs = [differentiated(features, centres, 0.3, 5.0, "triton")[1] for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(before)
    for first, second in zip(*runs, strict=True):
        assert first.equal(second)
    for first, usual in zip(runs[0], differentiated(features, centres, 0.3, 5.0, "triton")[1], strict=True):
        assert_close(first, usual, rtol=1e-4, atol=1e-5)


LAWS = (
    tokens_on_prototypes_are_exact,
    long_vectors_agree,
    ties_are_relative_to_the_lengths,
    small_mu_agrees,
    channels_first_needs_no_copy,
    padding_is_never_looked_at,
    deterministic_runs_repeat,
)


def transport_agrees(batch, prototypes, tokens, mu=0.3, epsilon=5.0, device="cpu", masked=False, outputs="rp"):
    features, centres = problem(batch, tokens, prototypes, 6, device)
    cost = subtracted_distance(centres, features)
    mask = None
    if masked:
        mask = torch.ones(batch, tokens, dtype=torch.bool, device=device)
        mask[:, 1::3] = False
    found = []
    for backend, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        given = cost.to(dtype).requires_grad_()
        share = torch.full((batch,), mu, dtype=torch.float64, device=device).requires_grad_()
        sharpness = torch.tensor(epsilon, dtype=dtype, device=device).requires_grad_()
        out = partial_transport(given, share, sharpness, mask, backend=backend)
        generator = torch.Generator().manual_seed(3)
        loss = 0.0
        for name, value in zip("rp", out, strict=True):
            direction = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(device)
            if name in outputs:
                loss = loss + (value.double() * direction).sum()
        loss.backward()
        found.append((*out, given.grad, share.grad, sharpness.grad))
    for name, ours, theirs in zip(("residual", "plan", "cost", "mu", "epsilon"), *found, strict=True):
        close(ours, theirs, 2e-5 * max(1, epsilon / 10), name)


def distances_agree(batch, tokens, prototypes, dim, device="cpu", dtype=torch.float32, wanted="tw", slack=1.0):
    """Distances and gradients against the plain version in float64; one token lies on a prototype, one close to it."""
    features, centres = problem(batch, tokens, prototypes, dim, device)
    features = (1.5 * features).to(dtype)
    centres[0] = features[0, 0]
    centres[-1] = features[-1, -1] + 0.01 * centres[-1]
    direction = torch.randn(batch, prototypes, tokens, generator=torch.Generator().manual_seed(3)).to(device)
    found = []
    for backend, own in (("triton", dtype), ("torch", torch.float64)):
        given = features.clone().to(own).requires_grad_("t" in wanted)
        near = centres.clone().to(torch.promote_types(own, torch.float32)).requires_grad_("w" in wanted)
        distances = product_distance(near, given, backend)
        (distances * direction.to(distances.dtype)).sum().backward()
        found.append((distances, *(each.grad for each in (given, near) if each.requires_grad)))
    ours, theirs = found
    close(ours[0], theirs[0], slack * ERROR[dtype]["weights"], "distances")
    for own, plain in zip(ours[1:], theirs[1:], strict=True):
        close(own, plain, slack * ERROR[dtype]["gradient"], "gradient")


def distances_of_what_is_not_finite_are_nan(value, device="cpu"):
    """As in the plain version, and they alone."""
    tokens, prototypes = problem(2, 20, 6, 9, device)
    tokens[1, 3, 2] = prototypes[4, 0] = value
    ours, plain = (product_distance(prototypes, tokens, backend) for backend in ("triton", "torch"))
    assert ours[1, :, 3].isnan().all()
    assert ours[:, 4].isnan().all()
    assert ours.isnan().equal(plain.isnan())
