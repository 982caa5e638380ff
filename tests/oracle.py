"""Independent float64 computations that the library is held to, and the one home of tolerances.

Nothing here is imported from the solver under test: the root is bisected, distances are subtracted, gradients are left
to automatic differentiation of the published fixed point.
"""

import torch

TOLERANCE = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-11},
    torch.float32: {"rtol": 2e-4, "atol": 2e-6},
}
EXACT = TOLERANCE[torch.float64]
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


def differentiable_pooled(tokens, prototypes, mu, epsilon, mask, background=False):
    """The same outputs in float64 with a gradient: bisect the root, then let it follow its implicit derivative."""
    count = mask.sum(-1)
    cost = _length(_clip_by_length(prototypes)[:, None, :] - _clip_by_length(tokens)[:, None])
    logits = -epsilon * cost
    log_affinity = torch.logsumexp(logits, dim=1)
    fixed = log_affinity.detach()
    fixed = (fixed - fixed.masked_fill(~mask, -torch.inf).amax(-1, keepdim=True)).masked_fill(~mask, 0)
    low = torch.logit(mu.detach())
    high = low - fixed.amin(-1)
    for _ in range(200):
        middle = (low + high) / 2
        below = torch.sigmoid(middle[:, None] + fixed).masked_fill(~mask, 0).sum(-1) < mu.detach() * count
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    position = ((low + high) / 2)[:, None] + fixed
    slope = torch.nn.functional.logsigmoid(position) + torch.nn.functional.logsigmoid(-position)
    slope = slope.masked_fill(~mask, -1e300)
    moved = (log_affinity - log_affinity.detach()).masked_fill(~mask, 0)
    by_mu = (mu - mu.detach()) * count / torch.logsumexp(slope, dim=-1).exp()
    position = position + moved + (by_mu - (torch.softmax(slope, dim=-1) * moved).sum(-1))[:, None]
    mass = torch.sigmoid(position).masked_fill(~mask, 0) / (count * mu)[:, None]
    left = torch.sigmoid(-position).masked_fill(~mask, 0) / (count * (1 - mu))[:, None]
    weights = left if background else mass
    attributes = (torch.softmax(logits, dim=1) * mass[:, None]).sum(-1)
    return (weights[..., None] * tokens).sum(1), weights, attributes


def _length(vectors):
    unit = vectors.detach().abs().amax(-1, keepdim=True).clamp_min(1e-300)
    return ((vectors / unit).norm(dim=-1, keepdim=True) * unit)[..., 0]


def _clip_by_length(vectors):
    return vectors / _length(vectors)[..., None].clamp_min(1)


def relative_weight_error(weights, expected):
    return float(((weights.double() - expected).abs().amax(-1) / expected.amax(-1)).max())


def random_problem(batch, tokens, prototypes, dim, dtype=torch.float64, seed=0, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    return (spread * draw(batch, tokens, dim)).to(dtype), draw(prototypes, dim).to(dtype)
