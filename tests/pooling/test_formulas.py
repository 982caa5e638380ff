"""Every layer with its options against its formula in loops, and its gradients against finite differences."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from gspool.pooling import registry
from oracle import EXACT
from pooling.references import reference

DIM = 8
# Options that the formula of a layer knows, beside those of LAYERS.
OPTIONS = {
    "gemean": [{}, {"per_channel": True}, {"p": 0.5}, {"p": 1.0, "learn_p": False}, {"p": 7.3}],
    "gemax": [{"ridge": 1.0}, {"ridge": 0.1}],
    "cbam": [{"reduction": 1}, {"reduction": 2, "kernel_size": 3}, {"reduction": 3, "kernel_size": 5}],
    "delf": [{"hidden": 10}, {"hidden": 10, "normalize": True}],
    "gsop": [{"attention_dim": 5, "grid": grid} for grid in (1, 3, 8)],
    "otp": [{"prototypes": prototypes, "token_dim": 4} for prototypes in (1, 5)],
    "vlad": [{"prototypes": prototypes, "token_dim": 4} for prototypes in (1, 5)],
    "solar": [{"reduction": 1, "p": 3.0}, {"reduction": 2, "p": 1.5}],
    "tsmk": [{}, {"out_dim": 3}, {"out_dim": 3, "kernel_size": 1}, {"kernel_size": 5}],
    "weldon": [{"k": 1}, {"k": 3}, {"k": 1, "k_min": 4}, {"k": 2, "k_min": 0}],
    "tfm": [
        {"layers": 1, "heads": 1, "mlp_ratio": 2.0},
        {"layers": 1, "heads": 4},
        {"layers": 2, "heads": 2, "position": "sinusoidal"},
    ],
    "gsp": [
        {"prototypes": 5},
        {"prototypes": 1, "mu": 0.6, "epsilon": 20.0, "role": "background"},
        {"prototypes": 4, "learn_mu": True, "learn_epsilon": True},
        {"prototypes": 5, "keys": 3},
        {"prototypes": 6, "groups": 2},
        {"prototypes": 6, "groups": 2, "keys": 3, "role": "background"},
    ],
    "gmp+gsp": [{"prototypes": 5}, {"prototypes": 5, "out_dim": 4}],
    "gemean+gsp": [{"prototypes": 5}, {"prototypes": 5, "out_dim": 4}],
    "attention": [{"num_heads": 2}],
    "map": [{"num_heads": 2}],
    "clip": [{"num_heads": 2, "size": 2, "out_dim": 6}],
    "ep": [{"queries": 3, "out_dim": 6}],
    "abmilp": [{"hidden": 5}, {"hidden": 5, "gated": True}],
    "aim": [{"queries": 2, "num_heads": 2}, {"queries": 2, "num_heads": 2, "block": True}],
}
CASES = [(name, options) for name in registry.list() for options in OPTIONS.get(name, [{}])]
SIZES = [(1, 1), (1, 7), (2, 4), (3, 5), (9, 4)]
# Positions are computed in float32.
ROUNDED = {"rtol": 1e-5, "atol": 1e-6}


def randomised(name, options, dim):
    """A layer in float64 whose parameters and running statistics all count."""
    layer = registry.create(name, dim, **options).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        for key, buffer in layer.named_buffers():
            if key.endswith("running_mean"):
                buffer.normal_()
            elif key.endswith("running_var"):
                buffer.uniform_(0.5, 2.0)
    return layer


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_layer_is_its_formula_written_in_loops(name, options):
    layer = randomised(name, options, DIM).eval()
    tolerance = ROUNDED if "position" in options else EXACT
    needed = max(options.get("k", 1), options.get("k_min", 1))
    for size in [(2, 2)] if name == "clip" else SIZES:
        if size[0] * size[1] < needed:
            continue
        # Shorter tokens than those of length one, which GSP and OTP clip to, and longer ones.
        x = torch.tensor([0.1, 3.0]).view(2, 1, 1, 1) * torch.randn(2, DIM, *size, dtype=torch.float64)
        out = layer.pool(x)
        for index, image in enumerate(x):
            expected = reference(name)(image.numpy(), layer)
            for ours, theirs in zip(out, expected, strict=True):
                assert (ours is None) == (theirs is None), expected._fields
                if theirs is not None:
                    assert_close(ours[index], torch.from_numpy(theirs), **tolerance)


class Outputs(torch.nn.Module):
    """All that a layer returns, as a tuple."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return tuple(value for value in self.layer.pool(x) if value is not None)


# T-SMK holds the lengths of its features constant, which finite differences cannot: its own test compares gradients.
# One raster of GSoP is enough: its size does not change the formula.
@pytest.mark.parametrize(
    ("name", "options"), [case for case in CASES if case[0] != "tsmk" and case[1].get("grid") in (None, 3)]
)
def test_gradients_of_features_and_parameters_are_those_of_finite_differences(name, options):
    module = Outputs(randomised(name, options, dim=4))
    names, values = [key for key, _ in module.named_parameters()], [*module.parameters()]
    x = torch.randn(2, 4, 2, 2, dtype=torch.float64, requires_grad=True)

    def pooled(x, *values):
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,))

    module.eval()
    if sum(value.numel() for value in values) < 100:
        assert torch.autograd.gradcheck(pooled, (x, *values))
        return
    assert torch.autograd.gradcheck(module, (x,))
    # Many parameters are checked along one random direction; with batch norm, that of training is another function.
    for _ in range(1 + any(isinstance(part, torch.nn.modules.batchnorm._BatchNorm) for part in module.modules())):
        assert torch.autograd.gradcheck(pooled, (x, *values), fast_mode=True, rtol=1e-3, atol=1e-6)
        module.train()
