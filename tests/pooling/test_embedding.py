"""Pooling with its embedding."""

from __future__ import annotations

import math

import pytest
import torch

from gspool.pooling import registry
from gspool.pooling.embedding import LocalEmbedding, create_embedding


def test_local_embedding_is_one_matrix_for_maps_tokens_and_vectors() -> None:
    embed = LocalEmbedding(5, 3, bias=True).double()
    torch.nn.init.normal_(embed.bias)
    x = torch.randn(2, 5, 3, 4, dtype=torch.float64)
    out = embed(x)
    for row in range(3):
        for column in range(4):
            torch.testing.assert_close(out[:, :, row, column], x[:, :, row, column] @ embed.weight.T + embed.bias)
    torch.testing.assert_close(embed(x.flatten(2).mT), out.flatten(2).mT)
    torch.testing.assert_close(embed(x[:, :, 0, 0]), out[:, :, 0, 0])


def test_local_embedding_starts_glorot_uniform_without_bias() -> None:
    embed = LocalEmbedding(400, 200)
    bound = math.sqrt(6 / 600)
    assert embed.bias is None
    assert 0.99 * bound < embed.weight.abs().max() <= bound
    assert LocalEmbedding(400, 200, bias=True).bias.abs().max() == 0


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("weldon", {"k": 2}, lambda head, x: registry.create("weldon", dim=4, k=2)(head.embed(x))),
        ("gmp", {}, lambda head, x: x.amax((2, 3)) @ head.embed.weight.T),
        # Both are linear, so the place does not matter.
        ("gap", {}, lambda head, x: head.embed(x).mean((2, 3))),
        ("gmp", {"embedding": "before"}, lambda head, x: head.embed(x).amax((2, 3))),
        # The weights do not look at the embedded features.
        ("gsp", {"embedding": "after", "prototypes": 5}, lambda head, x: head.embed(head.layer(x))),
    ],
)
def test_the_embedding_stands_where_the_layer_or_the_caller_puts_it(name, options, expected) -> None:
    head, x = create_embedding(name, dim=6, out_dim=4, **options), torch.randn(2, 6, 3, 3)
    torch.testing.assert_close(head(x), expected(head, x))


@pytest.mark.parametrize(
    "options",
    [{"keys": 3}, {"keys": 3, "groups": 2}, {"embedding": "after", "groups": 2}, {"embedding": "after", "groups": 4}],
    ids=str,
)
def test_gsp_that_compares_raw_features_pools_what_embedding_every_token_would(options) -> None:
    head = create_embedding("gsp", dim=8, out_dim=12, prototypes=4, mu=0.3, epsilon=8.0, **options).double()
    x, mask = torch.randn(2, 8, 3, 4, dtype=torch.float64), torch.ones(2, 3, 4, dtype=torch.bool)
    mask[1, :, 3] = False
    real = x.masked_fill(~mask[:, None], 0.0).requires_grad_()
    tokens = real.flatten(2).mT
    weights, attributes = head.layer.weigh(tokens, mask.flatten(1))
    values = head.embed(tokens).unflatten(2, (head.layer.groups, -1))
    expected = torch.einsum("bgn,bngd->bgd", weights, values).flatten(1)
    padded = x.masked_fill(~mask[:, None], float("nan")).requires_grad_()
    out = head.pool(padded, mask)
    torch.testing.assert_close(out.pooled, expected)
    torch.testing.assert_close(out.weights, weights.mean(1))
    torch.testing.assert_close(out.attributes, attributes)
    wanted = [real, *head.parameters()]
    gradients = torch.autograd.grad(expected.square().sum(), wanted)
    found = torch.autograd.grad(out.pooled.square().sum(), [padded, *head.parameters()])
    for mine, other in zip(found, gradients, strict=True):
        torch.testing.assert_close(mine, other)


def test_groups_behind_a_warm_start_average_until_it_ends() -> None:
    head = create_embedding("gsp", dim=8, out_dim=6, embedding="after", prototypes=4, groups=2, warm_start=4)
    x = torch.randn(4, 8, 3, 3)
    torch.testing.assert_close(head(x), head.embed(x.mean((2, 3))))
    assert not torch.allclose(head(x), head.embed(x.mean((2, 3))))


def test_groups_have_to_divide_the_embedding() -> None:
    with pytest.raises(ValueError, match="groups divide the 6 outputs of the embedding, got 4"):
        create_embedding("gsp", dim=8, out_dim=6, embedding="after", prototypes=4, groups=4)


def test_inside_means_that_the_layer_embeds_by_itself() -> None:
    head = create_embedding("tsmk", dim=6, out_dim=4, kernel_size=5)
    assert (type(head), head.kernel_size, head.out_dim) == (registry.layer_class("tsmk"), 5, 4)


def test_a_place_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="'before' or 'after' the layer, got 'beside'"):
        create_embedding("gsp", dim=6, out_dim=4, embedding="beside")
    with pytest.raises(ValueError, match="vlad has its embedding inside"):
        create_embedding("vlad", dim=6, out_dim=4, embedding="after")


@pytest.mark.parametrize("name", registry.list())
def test_every_layer_embeds(name: str) -> None:
    head = create_embedding(name, dim=24, out_dim=128)
    out = head.pool(torch.rand(2, 24, 4, 3))
    assert (head.dim, head.out_dim) == (24, 128)
    assert out.pooled.shape == (2, 128)
    if out.weights is not None:
        assert out.weights.shape == (2, 12)
        torch.testing.assert_close(out.weights.sum(1), torch.ones(2))
    if out.attributes is not None:
        torch.testing.assert_close(out.attributes.sum(1), torch.ones(2))


@pytest.mark.parametrize("name", ["gap", "gsp", "weldon"])
def test_masks_and_weights_pass_through(name: str) -> None:
    head = create_embedding(name, dim=8, out_dim=4)
    x = torch.rand(2, 8, 3, 5)
    mask = torch.zeros(2, 3, 5, dtype=torch.bool)
    mask[:, :, :4] = True
    masked, cropped = head.pool(x, mask), head.pool(x[..., :4])
    torch.testing.assert_close(masked.pooled, cropped.pooled)
    if masked.weights is not None:
        torch.testing.assert_close(masked.weights[mask.flatten(1)], cropped.weights.flatten())


@pytest.mark.parametrize("form", ["map", "tokens"])
def test_padding_of_nan_does_not_reach_the_embedding(form: str) -> None:
    head = create_embedding("weldon", dim=6, out_dim=4)
    x, mask = torch.randn(1, 6, 2, 4), torch.ones(1, 2, 4, dtype=torch.bool)
    x[..., 3], mask[..., 3] = float("nan"), False
    out = head(x, mask) if form == "map" else head(x.flatten(2).mT, mask.flatten(1))
    torch.testing.assert_close(out, head(x[..., :3]))
    out.sum().backward()
    assert torch.isfinite(head.embed.weight.grad).all()


def test_all_parameters_of_the_head_are_in_its_state() -> None:
    assert [*create_embedding("gemean", dim=6, out_dim=4).state_dict()] == ["layer.p", "embed.weight"]


@pytest.mark.parametrize("name", ["gap", "gsp", "gmp", "gmp+gsp", "gsp+cls"])
def test_without_a_length_the_features_are_pooled_as_they_are(name: str) -> None:
    head, x = create_embedding(name, dim=6, out_dim=None), torch.randn(2, 6, 3, 3)
    assert head.out_dim == 6
    if "+" not in name:
        alone = registry.create(name, dim=6)
        alone.load_state_dict({key.removeprefix("layer."): value for key, value in head.state_dict().items()})
        torch.testing.assert_close(head(x), alone(x))


@pytest.mark.parametrize("out_dim", [0, -3, 1.5])
def test_out_dim_must_be_a_positive_integer(out_dim: object) -> None:
    with pytest.raises(ValueError, match="out_dim is the length of the embedding"):
        create_embedding("gap", 8, out_dim)  # type: ignore[arg-type]


def test_wrong_names_options_and_channels_are_refused_as_without_embedding() -> None:
    with pytest.raises(ValueError, match="Did you mean 'weldon'"):
        create_embedding("welden", 8, 4)
    with pytest.raises(ValueError, match="no option 'kk'"):
        create_embedding("weldon", 8, 4, kk=3)
    for name in ("gmp", "weldon"):
        with pytest.raises(ValueError, match="made for 8 channels"):
            create_embedding(name, 8, 4)(torch.rand(1, 7, 3, 3))
