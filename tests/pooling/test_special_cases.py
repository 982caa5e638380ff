"""Settings in which one layer is another, and what holds for a single layer only."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize
from torch.testing import assert_close

from gspool.pooling import registry
from gspool.pooling.gemean import GeMean
from oracle import EXACT
from pooling.references import numbers, rows


def average(layer, x):
    return x.mean((2, 3))


def maximum(layer, x):
    return x.amax((2, 3))


# Layer, options, parameters set to zero, what it then is, tolerance.
SAME = [
    ("gsp", {"mu": 1.0}, (), average, EXACT),
    ("gsp", {"epsilon": 0.0}, (), average, EXACT),
    ("gmp+gsp", {"mu": 1.0}, (), lambda layer, x: average(layer, x) + maximum(layer, x), EXACT),
    ("gemean+gsp", {"mu": 1.0, "p": 4.0}, (), lambda layer, x: GeMean(6, p=4.0)(x), EXACT),
    # Clamping adds at most 1e-6 to a weighted feature.
    ("gemean+gsp", {"p": 1.0, "prototypes": 5}, (), lambda layer, x: layer.gsp(x), {"rtol": 0, "atol": 1e-6}),
    ("gemean", {"p": 1.0}, (), average, EXACT),
    ("gemean", {"p": 1e5}, (), maximum, {"rtol": 1e-4, "atol": 0}),
    ("gemax", {"ridge": 1e9}, (), lambda layer, x: 1e-9 * x.sum((2, 3)), {"rtol": 1e-7, "atol": 0}),
    ("weldon", {"k": 15}, (), lambda layer, x: 2 * x.sum((2, 3)), EXACT),
    ("weldon", {"k": 1, "k_min": 0}, (), maximum, EXACT),
    ("tsmk", {"kernel_size": 1}, (), average, EXACT),
    ("otp", {"prototypes": 1, "token_dim": 4}, (), lambda layer, x: layer.embed(average(layer, x)), EXACT),
    ("delf", {"normalize": True}, ("score.weight",), average, EXACT),
    ("abmilp", {}, ("score.weight",), average, EXACT),
    ("ep", {"queries": 2}, ("queries",), lambda layer, x: layer.embed(average(layer, x)), EXACT),
    # Both gates are half open.
    ("cbam", {}, ("squeeze.weight", "excite.weight", "locate.weight"), lambda layer, x: average(layer, x) / 4, EXACT),
    (
        "gsop",
        {"attention_dim": 5},
        tuple(f"{gate}_gate.mix.{part}" for gate in ("channel", "spatial") for part in ("weight", "bias")),
        lambda layer, x: average(layer, x) / 2,
        EXACT,
    ),
    ("solar", {}, ("output.weight", "output.bias"), lambda layer, x: GeMean(6, p=3.0)(x), EXACT),
    ("lse", {"r": 1e-2}, (), average, {"rtol": 0, "atol": 2e-2}),
    ("lse", {"r": 1e4}, (), maximum, {"rtol": 0, "atol": 1e-3}),
]


@pytest.mark.parametrize(("name", "options", "zero", "expected", "tolerance"), SAME)
def test_a_special_case_of_one_layer_is_another(name, options, zero, expected, tolerance):
    layer = registry.create(name, 6, **options).double().eval()
    with torch.no_grad():
        for parameter in zero:
            layer.get_parameter(parameter).zero_()
    # Positive, which clamping leaves alone, and of unit length, which T-SMK weighs alike.
    x = normalize(torch.rand(2, 6, 3, 5, dtype=torch.float64) + 0.1, dim=1)
    assert_close(layer(x), expected(layer, x), **tolerance)


@pytest.mark.parametrize("name", ["gemean", "gemean+gsp"])
def test_a_fixed_power_is_saved_but_not_trained(name):
    layer = registry.create(name, 4, learn_p=False)
    assert "p" not in dict(layer.named_parameters())
    assert layer.state_dict()["p"] == 3.0


def test_sums_of_half_precision_do_not_saturate():
    # Summed in float16, 4096 tokens of 100 would pass its largest number.
    x, mask = torch.full((1, 4096, 2), 100.0, dtype=torch.float16), torch.ones(1, 4096, dtype=torch.bool)
    layer = registry.create("gap", 2)
    assert layer(x).tolist() == layer(x, mask).tolist() == [[100.0, 100.0]]


def test_equal_maxima_share_the_gradient():
    x = torch.tensor([[[2.0], [1.0], [2.0]]], requires_grad=True)
    registry.create("gmp", 1)(x).sum().backward()
    assert x.grad.flatten().tolist() == [0.5, 0.0, 0.5]


def test_weldon_counts_ties_k_times_and_no_more():
    assert registry.create("weldon", 1, k=3)(torch.ones(1, 1, 5, 5)).item() == 6.0


@pytest.mark.parametrize("shape", [(1, 4, 1, 1), (1, 4, 1, 2), (1, 2, 4), (2, 5, 4)])
def test_weldon_refuses_images_with_too_few_tokens(shape):
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]]) if shape == (2, 5, 4) else None
    with pytest.raises(ValueError, match=r"needs 3 tokens, got an image with [12]"):
        registry.create("weldon", 4)(torch.randn(shape), mask)


def test_gsp_and_the_maximum_share_one_embedding_and_gsp_gets_its_options():
    layer = registry.create("gmp+gsp", 6, out_dim=4, prototypes=7, mu=0.6, epsilon=2.0, learn_mu=True, warm_start=64)
    assert {key for key, _ in layer.named_parameters()} == {"embed.weight", "gsp.prototypes", "gsp.mu_logit"}
    assert (layer.gsp.prototypes.shape, layer.gsp.epsilon) == ((7, 4), 2.0)
    assert layer.gsp.mu.item() == pytest.approx(0.6)
    assert layer.gsp.warm_start is not None
    assert registry.create("gmp+gsp", 6, role="background").gsp.role == "background"


def smoothed_by_length(x, layer, lengths):
    """T-SMK for one image [C, H, W] with a gradient, place by place."""
    total = 0.0
    for row in range(x.shape[1]):
        for column in range(x.shape[2]):
            around = x[:, max(0, row - 1) : row + 2, max(0, column - 1) : column + 2].flatten(1).mean(1)
            total = total + lengths[row, column] * (layer.embed.weight @ around + layer.embed.bias)
    return total / (x.shape[1] * x.shape[2])


def test_no_gradient_flows_through_the_lengths_of_tsmk():
    layer = registry.create("tsmk", 4, out_dim=3).double()
    x = torch.randn(1, 4, 3, 4, dtype=torch.float64, requires_grad=True)
    leaves = (x, *layer.parameters())
    lengths = x[0].norm(dim=0)
    gradient = partial(torch.autograd.grad, inputs=leaves, retain_graph=True)
    ours = gradient(layer(x).square().sum())
    assert_close(ours, gradient(smoothed_by_length(x[0], layer, lengths.detach()).square().sum()))
    flowing = gradient(smoothed_by_length(x[0], layer, lengths).square().sum())[0]
    assert (ours[0] - flowing).abs().max() > 0.1 * ours[0].abs().max()


def test_tsmk_of_an_image_of_zeros_is_zero_with_uniform_weights():
    out = registry.create("tsmk", 2).pool(torch.zeros(1, 2, 2, 2))
    assert out.weights.tolist() == [[0.25] * 4]
    assert out.pooled.tolist() == [[0.0, 0.0]]


def test_rare_channels_weigh_more_in_crow():
    x = torch.zeros(1, 2, 4, 4)
    x[0, 0] = 1.0
    x[0, 1, 0, 0] = 4.0
    often, rarely = numbers(registry.create("crow", 2)(x)[0]) / rows(x[0].numpy()).mean(0)
    assert rarely > often


@pytest.mark.parametrize("options", [{}, {"out_dim": 8192, "prototypes": 64}, {"token_dim": 3}, {"out_dim": 128}])
@pytest.mark.parametrize("name", ["otp", "vlad"])
def test_the_sizes_of_a_dictionary_complete_each_other(name, options):
    prototypes = options.get("prototypes", 8)
    token_dim = options.get("token_dim", options.get("out_dim", 128) // prototypes)
    layer = registry.create(name, 6, **options)
    assert layer.prototypes.shape == (prototypes, token_dim)
    assert layer.out_dim == prototypes * token_dim == layer(torch.randn(2, 6, 3, 3)).shape[1]
    assert f"{prototypes} x {token_dim}" in repr(layer)


@settings(max_examples=30)
@given(
    prototypes=st.integers(1, 20), tokens=st.integers(1, 60), scale=st.floats(1e-3, 1e3), seed=st.integers(0, 10_000)
)
def test_rows_of_vlad_are_of_unit_length_and_attributes_sum_to_one(prototypes, tokens, scale, seed):
    torch.manual_seed(seed)
    layer = registry.create("vlad", 6, prototypes=prototypes, token_dim=4)
    out = layer.pool(scale * torch.randn(2, tokens, 6))
    rows = out.pooled.view(2, prototypes, 4)
    torch.testing.assert_close(rows.norm(dim=2), torch.ones(2, prototypes))
    torch.testing.assert_close(out.attributes.sum(1), torch.ones(2))


def test_frozen_batch_norms_of_solar_keep_their_statistics_under_a_mask():
    layer = registry.create("solar", 6)
    layer.query_norm.eval()
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[0, 5:] = False
    layer(torch.randn(2, 12, 6), mask)
    assert layer.query_norm.running_mean.count_nonzero() == 0
    assert layer.key_norm.running_mean.count_nonzero() == 6
