"""The heads of attentive probing against plain loops written from their equations."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gspool.pooling import registry
from gspool.pooling.abmilp import ABMILP
from gspool.pooling.aim import AIM
from gspool.pooling.class_token import ClassToken, WithClassToken
from gspool.pooling.clip import CLIPPool
from gspool.pooling.embedding import create_embedding
from gspool.pooling.ep import EP
from gspool.pooling.gap import GAP
from gspool.pooling.latent_attention import MAP

# Loops convert single scores to numbers.
pytestmark = pytest.mark.usefixtures("no_grad")
TOKENS = torch.randn(3, 7, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture
def no_grad():
    with torch.no_grad():
        yield


def softmax(scores: list[float]) -> list[float]:
    exponentials = torch.tensor(scores, dtype=torch.float64).exp()
    return (exponentials / exponentials.sum()).tolist()


def test_ep_is_a_softmax_for_every_query_and_its_slice_of_the_values():
    layer = EP(8, out_dim=6, queries=3).double()
    nn.init.normal_(layer.queries)
    out = layer.pool(TOKENS)
    for image in range(3):
        expected, weights = [], torch.zeros(7, dtype=torch.float64)
        for j, query in enumerate(layer.queries):
            attention = softmax([float(query @ token) / 8**0.5 for token in TOKENS[image]])
            values = [(layer.embed.weight @ token)[2 * j : 2 * j + 2] for token in TOKENS[image]]
            expected.append(sum(a * value for a, value in zip(attention, values, strict=True)))
            weights += torch.tensor(attention) / 3
        torch.testing.assert_close(out.pooled[image], torch.cat(expected))
        torch.testing.assert_close(out.weights[image], weights)


@pytest.mark.parametrize("gated", [False, True])
def test_abmilp_is_the_softmax_of_a_small_network(gated):
    layer = ABMILP(8, hidden=5, gated=gated).double()
    out = layer.pool(TOKENS)
    for image in range(3):
        scores = []
        for token in TOKENS[image]:
            hidden = torch.tanh(layer.features.weight @ token + layer.features.bias)
            if gated:
                hidden = hidden * torch.sigmoid(layer.gate.weight @ token + layer.gate.bias)
            scores.append(float(layer.score.weight[0] @ hidden + layer.score.bias))
        expected = sum(a * token for a, token in zip(softmax(scores), TOKENS[image], strict=True))
        torch.testing.assert_close(out.pooled[image], expected)


@pytest.mark.parametrize("block", [False, True])
def test_aim_attends_head_by_head(block):
    layer = AIM(8, queries=2, num_heads=2, block=block).double().eval()
    nn.init.normal_(layer.queries)
    layer.norm.running_mean.normal_()
    out = layer.pool(TOKENS)
    tokens = (TOKENS - layer.norm.running_mean) / (layer.norm.running_var + layer.norm.eps).sqrt()
    for image in range(3):
        rows = []
        for query in layer.queries:
            parts = []
            for head in (slice(0, 4), slice(4, 8)):
                keys = [(layer.key.weight @ token)[head] for token in tokens[image]]
                attention = softmax([float(query[head] @ key) / 2.0 for key in keys])
                values = [(layer.value.weight @ token)[head] for token in tokens[image]]
                parts.append(sum(a * value for a, value in zip(attention, values, strict=True)))
            row = torch.cat(parts)
            if block:
                hidden = query + layer.block.project(row)
                row = hidden + layer.block.mlp(layer.block.norm(hidden))
            rows.append(row)
        # Scores are rounded to float32 before the softmax.
        torch.testing.assert_close(out.pooled[image], torch.stack(rows).mean(0), rtol=1e-5, atol=1e-6)


def test_map_is_attention_of_one_latent_with_layer_norm_and_mlp():
    layer = MAP(8, num_heads=2).double()
    module = layer.timm
    attention = nn.MultiheadAttention(8, 2, batch_first=True).double()
    key, value = module.kv.weight.chunk(2)
    key_bias, value_bias = module.kv.bias.chunk(2)
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.cat([module.q.weight, key, value]))
        attention.in_proj_bias.copy_(torch.cat([module.q.bias, key_bias, value_bias]))
        attention.out_proj.weight.copy_(module.proj.weight)
        attention.out_proj.bias.copy_(module.proj.bias)
    hidden = attention(module.latent.expand(3, -1, -1), TOKENS, TOKENS)[0][:, 0]
    torch.testing.assert_close(layer(TOKENS), hidden + module.mlp(module.norm(hidden)))


def test_clip_is_the_average_attending_with_positions():
    layer = CLIPPool(8, out_dim=6, size=2, num_heads=2).double()
    maps = TOKENS[:, :4].mT.unflatten(2, (2, 2))
    module = layer.timm
    tokens = torch.cat([TOKENS[:, :4].mean(1, keepdim=True), TOKENS[:, :4]], 1) + module.pos_embed
    query, key, value = (tokens @ module.qkv.weight.mT + module.qkv.bias).chunk(3, 2)
    parts = []
    for head in (slice(0, 4), slice(4, 8)):
        scores = torch.einsum("bc,bnc->bn", query[:, 0, head], key[:, :, head]) / 2.0
        parts.append(torch.einsum("bn,bnc->bc", scores.softmax(1), value[:, :, head]))
    torch.testing.assert_close(layer(maps), torch.cat(parts, 1) @ module.proj.weight.mT + module.proj.bias)


def test_the_class_token_passes_and_is_added_by_its_own_projection():
    cls = torch.randn(3, 8, dtype=torch.float64)
    assert ClassToken(8).pool(TOKENS, class_token=cls).pooled is cls
    layer = WithClassToken(GAP(8), dim=8, start=0.5).double()
    expected = cls @ layer.project.weight.mT + 0.5 * TOKENS.mean(1)
    torch.testing.assert_close(layer.pool(TOKENS, class_token=cls).pooled, expected)


@pytest.mark.parametrize("name", ["gap", "gsp", "ep", "delf", "gemean+gsp"])
def test_every_layer_takes_the_class_token_by_its_ending(name):
    head = create_embedding(f"{name}+cls", dim=8, out_dim=4, patch_scale=0.0)
    x, cls = torch.rand(2, 8, 3, 3), torch.rand(2, 8)
    out = head.pool(x, class_token=cls)
    torch.testing.assert_close(out.pooled, head.project(cls))
    assert registry.options(f"{name}+cls").keys() == {*registry.options(name), "patch_scale"}


@pytest.mark.parametrize("name", ["cls", "gap+cls"])
def test_a_backbone_without_class_token_is_refused(name):
    with pytest.raises(ValueError, match="class token"):
        registry.create(name, dim=8)(torch.rand(2, 8, 3, 3))
