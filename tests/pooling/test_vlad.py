"""The rows of NetVLAD."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gspool.pooling.vlad import NetVLAD
from oracle import EXACT


def layer_with_bias(**options):
    torch.manual_seed(0)
    layer = NetVLAD(6, **options).double()
    torch.nn.init.normal_(layer.assign.bias)
    return layer


@settings(max_examples=30, deadline=None)
@given(
    prototypes=st.integers(1, 20), tokens=st.integers(1, 60), scale=st.floats(1e-3, 1e3), seed=st.integers(0, 10_000)
)
def test_rows_are_of_unit_length_and_attributes_sum_to_one(prototypes, tokens, scale, seed):
    torch.manual_seed(seed)
    layer = NetVLAD(6, prototypes=prototypes, token_dim=4)
    out = layer.pool(scale * torch.randn(2, tokens, 6))
    rows = out.pooled.view(2, prototypes, 4)
    torch.testing.assert_close(rows.norm(dim=2), torch.ones(2, prototypes))
    torch.testing.assert_close(out.attributes.sum(1), torch.ones(2))


def test_a_prototype_that_every_token_shuns_keeps_its_direction():
    """Its assignments underflow in float32; its row, which is divided by them, must not."""
    layer = layer_with_bias(prototypes=3, token_dim=4).float()
    with torch.no_grad():
        layer.assign.bias[1] = -500.0
    x = torch.randn(2, 6, 3, 3, requires_grad=True)
    out = layer.pool(x)
    torch.testing.assert_close(out.pooled.view(2, 3, 4).norm(dim=2), torch.ones(2, 3))
    assert (out.attributes[:, 1] == 0).all()
    out.pooled.sum().backward()
    assert x.grad.isfinite().all()


def test_a_constant_image_gives_the_directions_from_the_prototypes():
    layer = layer_with_bias(prototypes=5, token_dim=4)
    x = torch.randn(1, 6, 1, 1, dtype=torch.float64)
    directions = torch.nn.functional.normalize(layer.embed(x.flatten(1)) - layer.prototypes, dim=1)
    torch.testing.assert_close(layer(x.expand(-1, -1, 3, 4)), directions.view(1, -1), **EXACT)
