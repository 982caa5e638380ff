"""Independent float64 computations that the library is held to, and the one home of tolerances.

Nothing here is imported from the solver under test: the root is bisected, distances are subtracted, gradients are left
to automatic differentiation of the published fixed point.
"""

import torch

TOLERANCE = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-11},
    torch.float32: {"rtol": 2e-4, "atol": 2e-6},
}
# Promised error of the weights, relative to the largest of the image; times max(1, epsilon / 10).
WEIGHT_ERROR = {torch.float64: 1e-12, torch.float32: 2e-6}


def clip(vectors):
    return vectors / vectors.norm(dim=-1, keepdim=True).clamp_min(1)


def subtracted_distance(prototypes, tokens):
    return (clip(prototypes.double())[:, None, :] - clip(tokens.double())[..., None, :, :]).norm(dim=-1)


def bisected_shares(cost, mu, epsilon):
    """a_j of every token: bisect mean_j sigmoid(tau + l_j) = mu in float64, 200 halvings."""
    log_affinity = torch.logsumexp(-epsilon * cost.double(), dim=-2)
    mu = torch.as_tensor(mu, dtype=torch.float64).expand(log_affinity.shape[:-1])
    low = torch.logit(mu) - log_affinity.amax(-1)
    high = torch.logit(mu) - log_affinity.amin(-1)
    for _ in range(200):
        middle = (low + high) / 2
        below = torch.sigmoid(middle[..., None] + log_affinity).mean(-1) < mu
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    shares = torch.sigmoid(((low + high) / 2)[..., None] + log_affinity)
    return torch.where((mu >= 1)[..., None], 1.0, shares)


def pooled(tokens, prototypes, mu, epsilon):
    """The three outputs of gsp_pool, image by image, the long way."""
    cost = subtracted_distance(prototypes, tokens)
    shares = bisected_shares(cost, mu, epsilon)
    weights = shares / shares.sum(-1, keepdim=True)
    attributes = (torch.softmax(-epsilon * cost, dim=-2) * weights[..., None, :]).sum(-1)
    return (weights[..., None] * tokens.double()).sum(-2), weights, attributes


def relative_weight_error(weights, expected):
    return float(((weights.double() - expected).abs().amax(-1) / expected.amax(-1)).max())


def random_problem(batch, tokens, prototypes, dim, dtype=torch.float64, seed=0, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    return (spread * draw(batch, tokens, dim)).to(dtype), draw(prototypes, dim).to(dtype)
