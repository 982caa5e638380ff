"""The class token of a transformer, alone and beside what a layer pools."""

from __future__ import annotations

import pytest
import torch

from gspool.pooling import registry
from gspool.pooling.class_token import ClassToken, WithClassToken
from gspool.pooling.embedding import create_embedding
from gspool.pooling.gap import GAP


def test_the_class_token_passes_and_is_added_by_its_own_projection():
    tokens, cls = torch.randn(3, 7, 8, dtype=torch.float64), torch.randn(3, 8, dtype=torch.float64)
    assert ClassToken(8).pool(tokens, class_token=cls).pooled is cls
    layer = WithClassToken(GAP(8), dim=8, start=0.5).double()
    expected = cls @ layer.project.weight.mT + 0.5 * tokens.mean(1)
    torch.testing.assert_close(layer.pool(tokens, class_token=cls).pooled, expected)


@pytest.mark.parametrize("name", ["gap", "gsp", "ep", "delf", "gemean+gsp"])
def test_every_layer_takes_the_class_token_by_its_ending(name):
    head = create_embedding(f"{name}+cls", dim=8, out_dim=4, patch_scale=0.0)
    x, cls = torch.rand(2, 8, 3, 3), torch.rand(2, 8)
    out = head.pool(x, class_token=cls)
    torch.testing.assert_close(out.pooled, head.project(cls))
    assert registry.options(f"{name}+cls").keys() == {*registry.options(name), "patch_scale", "join"}


@pytest.mark.parametrize("name", ["gap", "gsp", "ep"])
def test_side_by_side_class_token_and_patches_are_unit_vectors(name):
    head = create_embedding(f"{name}+cls", dim=8, out_dim=4, patch_scale=0.5, join="concat")
    x, cls = 9 * torch.rand(2, 8, 3, 3), 9 * torch.rand(2, 8)
    out = head.pool(x, class_token=cls).pooled
    assert (head.out_dim, head.parts) == (8, (4, 4))
    token, patches = cls @ head.project.weight.mT, head.layer(x)
    torch.testing.assert_close(out[:, :4], token / token.norm(dim=1, keepdim=True))
    torch.testing.assert_close(out[:, 4:], patches / patches.norm(dim=1, keepdim=True) / 2)
    assert "scale" not in head.state_dict()
    assert create_embedding(name, 8, 4).parts == ()


def test_another_way_to_join_is_refused():
    with pytest.raises(ValueError, match="sum or concat, got 'beside'"):
        registry.create("gap+cls", dim=8, join="beside")


@pytest.mark.parametrize("name", ["cls", "gap+cls"])
def test_a_backbone_without_class_token_is_refused(name):
    with pytest.raises(ValueError, match="class token"):
        registry.create(name, dim=8)(torch.rand(2, 8, 3, 3))
